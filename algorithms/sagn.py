"""SAGN: synchronous accumulated gradient normalization. Local steps, then the mean of all workers' mean gradients.

    worker, each step       x ← x − η g_k(x),  A ← A + g
    every period of H       push A/H,  A ← 0,  wait,  x ← θ
    server                  θ ← θ − γ (1/W) Σ A_k/H,  then release everybody

Reference: a hybrid of `sync_sgd` and `agn` that goes round in distributed TensorFlow guides; there is no paper.
Departures: plain SGD on both sides.
Limits: H = 1 is `sync_sgd` with γ. γ = H η is `local_sgd`. Staleness is always zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.contract.optimizers import sgd, take
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import at_least, positive
from ..common.gates.barrier import Barrier


@dataclass(frozen=True, kw_only=True)
class SAGN(Scheme):
    """The mean over workers of means of gradients over a period."""

    name = "sagn"
    idea = "local steps, then the mean over workers of their mean gradients"
    paper = "none; Hermans et al. 2017, made synchronous"

    communication_period: int = 5
    """Local steps H between two updates."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    server_learning_rate: Rate = 0.5
    """The server's step size γ."""

    def __post_init__(self):
        at_least(1, communication_period=self.communication_period)
        positive(learning_rate=self.learning_rate, server_learning_rate=self.server_learning_rate)

    @property
    def gate(self) -> Barrier:
        """All wait for all."""
        return Barrier()

    def local_variables(self, params: Any) -> Mapping[str, Any]:
        """A, the sum of gradients since the last push."""
        return {"accumulated": 0 * params}

    def local_step(self, worker: Any, gradient: Any) -> None:
        """X ← x − η g,  A ← A + g."""
        sgd(worker.params, gradient, self.learning_rate)
        worker.accumulated.assign_add(gradient)

    def message(self, worker: Any) -> Any:
        """A/H;  A ← 0."""
        return take(worker.accumulated) / worker.steps

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """θ ← θ − γ times the mean message."""
        sgd(server.center, message, self.server_learning_rate)
        return server.center
