"""FedOpt: local SGD, and an adaptive optimizer on the server: FedAdam, FedYogi, FedAdagrad.

    worker, each step       x ← x − η g_k(x)
    every period            push x,  wait,  x ← θ
    server                  Δ = (1/W) Σ x_k − θ,  m ← β₁ m + (1 − β₁) Δ,
                            adam:     v ← β₂ v + (1 − β₂) Δ²
                            yogi:     v ← v − (1 − β₂) Δ² sign(v − Δ²)
                            adagrad:  v ← v + Δ²
                            θ ← θ + ε m/(√v + τ),  then release all workers

where v begins at τ², and Adam's correction of the bias is left out, as in the paper.

Use: for federated data with gradients of different size in different layers; not without tuning the server's rate.
Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, *Adaptive Federated Optimization*, ICLR 2021,
arXiv:2003.00295, Algorithm 2.
Departures: all workers take part in every round (`--participation` samples clients), with equal weights; the paper
samples clients, and weighs them by their examples. The paper has β₁ = 0 for FedAdagrad.
Limits: adagrad with β₁ = 0 and a τ that is large beside Δ is `local_sgd` for ε = 2τ, because v stays near τ². FedAvgM
(Hsu, Qi, Brown 2019), whose server has momentum alone, is `bmuf` in its classical form.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Barrier, Decay, Period, Positive, Rate, Scheme, sgd, tf


@dataclass(frozen=True, kw_only=True)
class FedOpt(Scheme):
    """Local steps, then a step of Adam, Yogi or Adagrad on the server."""

    paper = "Reddi et al. 2021"
    aliases = (
        "fedadam --server-optimizer adam",
        "fedyogi --server-optimizer yogi",
        "fedadagrad --server-optimizer adagrad --beta-1 0",
    )
    sync = Barrier()
    elementwise = True
    sends = "params"

    communication_period: Period = 10
    """Local steps between two rounds."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    server_optimizer: Literal["adam", "yogi", "adagrad"] = "adam"
    """Optimizer of the server."""
    server_learning_rate: Rate = 0.03
    """The server's step size ε."""
    beta_1: Decay = 0.9
    """Decay β₁ of the mean move m."""
    beta_2: Decay = 0.99
    """Decay β₂ of the mean square v of adam and yogi."""
    tau: Positive = 0.001
    """Degree of adaptivity τ: the smaller, the more equal the steps of all coordinates."""

    def global_variables(self, center):
        return {"mean": 0 * center, "square": 0 * center + self.tau**2}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def server_update(self, server, message, staleness):
        moved = message - server.center
        server.mean.assign(self.beta_1 * server.mean + (1 - self.beta_1) * moved)
        server.square.assign(self._square(server.square, moved**2))
        server.center.assign_add(self.server_learning_rate * server.mean / (tf.sqrt(server.square) + self.tau))
        return server.center

    def _square(self, square, new):
        if self.server_optimizer == "adagrad":
            return square + new
        if self.server_optimizer == "yogi":
            return square - (1 - self.beta_2) * new * tf.sign(square - new)
        return self.beta_2 * square + (1 - self.beta_2) * new
