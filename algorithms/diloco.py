"""DiLoCo: many local AdamW steps, then one Nesterov step of the center along the mean of what workers moved.

    worker, each step       x ← AdamW(x, g_k(x)); its moments are kept over periods and never leave the worker
    every period            push x,  wait,  x ← θ
    server                  Δ = θ − (1/W) Σ x_k,  m ← μ m + Δ,  θ ← θ − ε (Δ + μ m),  then release everybody

Reference: Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023,
arXiv:2311.08105.
Departures: the inner rate is constant unless it is given a schedule; the period is short by default (the paper: 500).
Limits: outer rate one without momentum is `local_sgd` (with SGD inside). With SGD inside it is block-wise model
update filtering with Nesterov momentum (Chen and Huo 2016): ζ = ε and the block momentum μ. One worker is Lookahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..common.contract.optimizers import adamw, sgd
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import at_least, fraction, not_negative, one_of, positive
from ..common.gates.barrier import Barrier


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Scheme):
    """Inner AdamW, outer Nesterov momentum."""

    name = "diloco"
    idea = "many local AdamW steps, then a Nesterov step of the center"
    paper = "Douillard et al. 2023"

    communication_period: int = 20
    """Local steps between two outer steps."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: Literal["adamw", "sgd"] = "adamw"
    """What workers do alone."""
    weight_decay: float = 0.01
    """Of AdamW, decoupled."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: float = 0.9
    """Outer Nesterov momentum μ."""

    def __post_init__(self):
        at_least(1, communication_period=self.communication_period)
        positive(learning_rate=self.learning_rate, outer_learning_rate=self.outer_learning_rate)
        one_of(("adamw", "sgd"), inner_optimizer=self.inner_optimizer)
        not_negative(weight_decay=self.weight_decay)
        fraction(momentum=self.momentum)

    @property
    def gate(self) -> Barrier:
        """All wait for all."""
        return Barrier()

    def local_variables(self, params: Any) -> Mapping[str, Any]:
        """AdamW's moments and its count of steps."""
        if self.inner_optimizer == "sgd":
            return {}
        return {"first_moment": 0 * params, "second_moment": 0 * params, "adam_steps": 0 * params[0]}

    def global_variables(self, center: Any) -> Mapping[str, Any]:
        """M, the outer velocity."""
        return {"velocity": 0 * center}

    def local_step(self, worker: Any, gradient: Any) -> None:
        """One inner step."""
        if self.inner_optimizer == "sgd":
            sgd(worker.params, gradient, self.learning_rate)
        else:
            moments = worker.first_moment, worker.second_moment, worker.adam_steps
            adamw(worker.params, *moments, gradient, self.learning_rate, self.weight_decay)

    def message(self, worker: Any) -> Any:
        """X."""
        return worker.params

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """Δ = θ − x̄,  m ← μ m + Δ,  θ ← θ − ε (Δ + μ m)."""
        moved = server.center - message
        server.velocity.assign(self.momentum * server.velocity + moved)
        server.center.assign_sub(self.outer_learning_rate * (moved + self.momentum * server.velocity))
        return server.center
