"""All-reduce: synchronous SGD without a parameter server. All workers make the same step along the mean gradient.

    worker k    g_k = g_k(x),  ḡ = all-reduce (1/W) Σ g_k,  x ← x − η ḡ    x is the same on all workers

With several buckets this is *overlapped* all-reduce, as in PyTorch's DistributedDataParallel (DDP): the gradient is cut
between the variables of the model, and the bucket of the last layers is reduced while the backward pass computes the
others. The arithmetic is the same. With a delay it is *pipelined*: the gradient of a step, from the whole backward
pass, is reduced while the worker computes the next,

    step t      push g_k(x_{t−1}) (0 in the first),  compute g_k(x_t),  wait for ḡ(x_{t−1}),
                x_{t+1} ← x_t − η ḡ(x_{t−1})

Use: for equal workers with fast links and without a ps; not if workers may be lost or are slow. Several buckets where
the gradient travels about as long as a step computes; one where the model is small, as each bucket has messages of its
own. A delay also hides latencies, and the wait for workers that are slow by turns, for half the largest rate.
Reference: Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, 2009; for
SGD, Goyal et al., *Accurate, Large Minibatch SGD*, 2017, arXiv:1706.02677; for buckets, Li et al., *PyTorch
Distributed: Experiences on Accelerating Data Parallel Training*, 2020, arXiv:2006.15704; for the delay, Li et al.,
*Pipe-SGD: A Decentralized Pipelined SGD Framework for Distributed Deep Net Training*, 2018, arXiv:1811.03619, with a
pipeline of two.
Departures: no ring: worker k adds up the k-th slices of all workers, and sends their mean to all. This sends as many
bytes as a ring, in 2 steps instead of 2 (W − 1). Workers that are threads of one process sum in their common memory.
DDP fills buckets up to 25 MB; here they are a number of about equal ones. Pipe-SGD also compresses what travels.
Limits: the arithmetic is that of `sync_sgd` without backup workers; each worker sends 2 (W − 1)/W vectors, where the
ps of `sync_sgd` receives W at once. A lost worker stops the run. With the delay and a curvature h it is stable for
η h < 1, without it for η h < 2; the last gradient of a run is not used. Buckets leave together where a step needs the
whole gradient (`--clip-norm`, `--l2`, hostile workers, several devices a worker, a script's own loop); between threads,
and in simulations without `--layers`, they change nothing.
"""

from dataclasses import dataclass

from ..common.contract import Collective, Delay, Natural, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class AllReduce(Scheme):
    """Synchronous without a ps: all workers average their gradients among themselves."""

    paper = "Patarasuk & Yuan 2009"
    means_gradients = True
    elementwise = True
    aliases = ("overlapped_all_reduce --buckets 4", "ddp --buckets 4", "one_step_delay --delay 1", "pipe_sgd --delay 1")

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    buckets: Natural = 1
    """Number of parts of the gradient, each of which is reduced while the backward pass computes the next."""
    delay: Delay = 0
    """Steps by which the mean gradient comes late, 0 or 1: with 1 it is reduced while the next gradient is computed."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Collective(buckets=self.buckets)

    def local_variables(self, params):
        return {"last": 0 * params} if self.delay else {}

    def local_step(self, worker, gradient):
        if self.delay:
            worker.last.assign(gradient)

    def message(self, worker):
        return worker.last if self.delay else worker.gradient

    def server_update(self, server, message, staleness):
        return message

    def on_reply(self, worker, reply):
        sgd(worker.params, reply, self.learning_rate)
