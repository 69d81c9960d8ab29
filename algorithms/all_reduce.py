"""All-reduce: synchronous SGD without a parameter server. All workers make the same step along the mean gradient.

    worker k    g_k = g_k(x),  ḡ = all-reduce (1/W) Σ g_k,  x ← x − η ḡ    x is the same on all workers

Use: for equal workers with fast links and without a ps; not if workers may be lost or are slow.
Reference: Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, 2009; for
SGD, Goyal et al., *Accurate, Large Minibatch SGD*, 2017, arXiv:1706.02677.
Departures: no ring: worker k adds up the k-th slices of all workers, and sends their mean to all. This sends as many
bytes as a ring, in 2 steps instead of 2 (W − 1). Workers that are threads of one process sum in their common memory.
Limits: the arithmetic is that of `sync_sgd` without backup workers; each worker sends 2 (W − 1)/W vectors, where the ps
of `sync_sgd` receives W at once. A lost worker stops the run.
"""

from dataclasses import dataclass

from ..common.contract import Collective, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class AllReduce(Scheme):
    """Synchronous without a ps: all workers average their gradients among themselves."""

    paper = "Patarasuk & Yuan 2009"
    sync = Collective()
    elementwise = True

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""

    def server_update(self, server, message, staleness):
        return message

    def on_reply(self, worker, reply):
        sgd(worker.params, reply, self.learning_rate)
