"""AEAMSGD: asynchronous elastic averaging with Nesterov's momentum on the workers.

    every period, before its first step     push x;   server   e = α (x − θ),  θ ← θ + e,  reply e
    first step                              v ← δ v − η g_k(x + δ v),  x ← x − e + v     g at x before the exchange
    other steps                             v ← δ v − η g_k(x + δ v),  x ← x + v

with α = β / W. Workers are never reset to the center, and neither are their velocities.

Reference: Zhang, Choromanska, LeCun, *Deep learning with Elastic Averaging SGD*, NIPS 2015, arXiv:1412.6651,
algorithm 2 (EAMSGD).
Departures: the exchange is one atomic event on the server. What a worker learns after its last exchange does not
reach the center. (dist-keras looks ahead against the motion; here the look-ahead x + δv is in its direction.)
Limits: δ = 0 is `aeasgd`. An exchange leaves Σ x_k + θ unchanged. One step moves η/(1 − δ) in the long run: lower η.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.contract.scheme import Rate, Scheme
from ..common.errors import at_least, fraction, not_negative, positive


@dataclass(frozen=True, kw_only=True)
class AEAMSGD(Scheme):
    """Elastic averaging with Nesterov's momentum."""

    name = "aeamsgd"
    idea = "elastic averaging with Nesterov's momentum on the workers"
    paper = "Zhang et al. 2015"
    exchange_first = True

    communication_period: int = 10
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.04
    """The worker's step size η."""
    momentum: float = 0.9
    """Momentum δ."""
    beta: float = 0.9
    """Elasticity β, the moving rate α times the workers."""

    def __post_init__(self):
        at_least(1, communication_period=self.communication_period)
        positive(learning_rate=self.learning_rate)
        fraction(momentum=self.momentum)
        not_negative(beta=self.beta)

    def local_variables(self, params: Any) -> Mapping[str, Any]:
        """V, the velocity."""
        return {"velocity": 0 * params}

    def gradient_point(self, worker: Any) -> Any:
        """X + δ v."""
        return worker.params + self.momentum * worker.velocity

    def local_step(self, worker: Any, gradient: Any) -> None:
        """V ← δ v − η g,  x ← x + v."""
        worker.velocity.assign(self.momentum * worker.velocity - self.learning_rate * gradient)
        worker.params.assign_add(worker.velocity)

    def message(self, worker: Any) -> Any:
        """X."""
        return worker.params

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """E = α (x − θ),  θ ← θ + e;  the reply is e."""
        moving_rate = self.beta / server.num_workers
        force = moving_rate * (message - server.center)
        server.center.assign_add(force)
        return force

    def adopt(self, worker: Any, reply: Any) -> None:
        """X ← x − e."""
        worker.params.assign_sub(reply)
