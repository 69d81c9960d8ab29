"""SAGN: synchronous accumulated gradient normalization. Local steps, then the mean of all workers' mean gradients.

    worker, each step       x ← x − η g_k(x),  A ← A + g          A begins at 0
    every period of H       push A/H,  wait,  x ← θ
    server                  θ ← θ − γ (1/W) Σ A_k/H,  then release all workers

Use: for slow links, with a server's rate that does not depend on the period; else take `local_sgd`.
Reference: none; a hybrid of `sync_sgd` and `agn` from guides to distributed TensorFlow.
Departures: plain SGD on both sides.
Limits: with H = 1 it is `sync_sgd` with γ; with γ = H η it is `local_sgd`. Staleness is always zero.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class SAGN(Scheme):
    """Local steps, then the mean over workers of their mean gradients."""

    paper = "none; Hermans et al. 2017, made synchronous"
    sync = Barrier()
    elementwise = True
    sends = "gradient_sum"

    communication_period: Period = 5
    """Local steps H between two updates."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    server_learning_rate: Rate = 0.5
    """The server's step size γ."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return worker.gradient_sum / worker.steps

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.server_learning_rate)
        return server.center
