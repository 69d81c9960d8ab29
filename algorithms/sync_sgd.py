"""Synchronous SGD, with backup workers.

    worker k    g_k = g_k(θ),  push g_k,  wait,  x ← θ
    server      of W = R + b workers keep the first R gradients computed at the present θ:
                θ ← θ − η (1/R) Σ g_k,  then release all workers; later gradients are dropped

Use: first, for equal workers with fast links; with stragglers add `--backup-workers`, with slow links take `local_sgd`.
Reference: Chen, Pan, Monga, Bengio, Jozefowicz, *Revisiting Distributed Synchronous SGD*, 2016, arXiv:1604.00981.
Departures: an update has at most one message of each worker, and all ps tasks accept or drop a message as a whole:
this is a strict barrier, unlike TensorFlow's `SyncReplicasOptimizer`.
Limits: with W workers of batch b and no backups it is serial SGD with batch W·b; if a mask or weights divide the losses
by n_k, with Σ n_k g_k / Σ n_k in place of the mean. Staleness is always zero.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Count, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class SyncSGD(Scheme):
    """The mean of one gradient of each worker; late ones may be dropped."""

    paper = "Chen et al. 2016"
    means_gradients = True

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    backup_workers: Count = 0
    """Number b of workers that an update does not wait for."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Barrier(self.backup_workers)

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
