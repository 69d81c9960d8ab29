"""All-reduce: synchronous SGD without a parameter server. Every worker has the mean gradient and makes the same step.

    worker k    g_k = g_k(x),  ḡ = all-reduce (1/W) Σ g_k,  x ← x − η ḡ    x is the same on all

Reference: Patarasuk and Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, 2009; for
SGD, Goyal et al., *Accurate, Large Minibatch SGD*, 2017, arXiv:1706.02677.
Departures: no ring: worker k adds up the k-th slices of all, and gives their mean to all. As many bytes are sent as in
a ring, in 2 steps instead of 2 (W − 1). Workers as threads of one process sum in their common memory.
Limits: `sync_sgd` with no backup workers, with 2 (W − 1)/W vectors sent by each worker instead of W that
meet at the ps. A lost worker stops everybody.
"""

from dataclasses import dataclass

from ..common.contract import Collective, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class AllReduce(Scheme):
    """Synchronous without a ps: all workers average their gradients among themselves."""

    paper = "Patarasuk & Yuan 2009"
    gate = Collective()
    elementwise = True

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""

    def server_update(self, server, message, staleness):
        return message

    def adopt(self, worker, reply):
        sgd(worker.params, reply, self.learning_rate)
