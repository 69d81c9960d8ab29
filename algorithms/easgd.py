"""EASGD: synchronous elastic averaging SGD. Workers explore, tied to the center by springs, and meet regularly.

    every period, before its first step     push x;   server   reply θ,  then  θ ← (1 − β) θ + β (1/W) Σ x_k
    first step                              x ← x − α (x − θ) − η g_k(x)   right-hand sides before the exchange
    other steps                             x ← x − η g_k(x)

with α = β / W. Workers are never reset to the center.

Reference: Zhang, Choromanska, LeCun, *Deep learning with Elastic Averaging SGD*, NIPS 2015, arXiv:1412.6651,
equations (2) and (3) for period one.
Departures: none. What a worker learns after its last exchange does not reach the center.
Limits: an exchange leaves Σ x_k + θ unchanged. β = 0 is W independent runs and a center that never moves; β = 1 makes
the center the mean of the workers. With period one on ½x², stable for α ≤ (4 − 2η)/(2 + W(2 − η)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..common.contract.optimizers import sgd
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import at_least, not_negative, positive
from ..common.gates.barrier import Barrier


@dataclass(frozen=True, kw_only=True)
class EASGD(Scheme):
    """Workers tied to the center by springs, exchanging together."""

    name = "easgd"
    idea = "workers explore, tied to the center by springs, and exchange together"
    paper = "Zhang et al. 2015"
    exchange_first = True

    communication_period: int = 10
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    beta: float = 0.9
    """Elasticity β, the moving rate α times the workers."""

    def __post_init__(self):
        at_least(1, communication_period=self.communication_period)
        positive(learning_rate=self.learning_rate)
        not_negative(beta=self.beta)

    @property
    def gate(self) -> Barrier:
        """All wait for all."""
        return Barrier()

    def local_step(self, worker: Any, gradient: Any) -> None:
        """X ← x − η g."""
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker: Any) -> Any:
        """X."""
        return worker.params

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """θ ← (1 − β) θ + β x̄ with x̄ the mean message;  the reply is the old θ."""
        before = server.center.read_value()
        server.center.assign_add(self.beta * (message - before))
        return before

    def adopt(self, worker: Any, reply: Any) -> None:
        """X ← x − α (x − θ)."""
        moving_rate = self.beta / worker.num_workers
        worker.params.assign_sub(moving_rate * (worker.params - reply))
