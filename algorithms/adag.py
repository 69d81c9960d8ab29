"""ADAG: asynchronous distributed adaptive gradients. A late message counts less where the center has moved.

    worker, each step       x ← x − η g_k(x),  A ← A + g
    every period of H       push u = η A/H,  A ← 0,  x ← reply
    server, each push       θ ← θ − u / ((θ − a_k)²/γ + 1),  reply θ,  a_k ← θ        one atomic event, elementwise

where the anchor a_k is the center that worker k pulled last.

Reference: Hermans, *On Scalable Deep Learning and Parallelizing Gradient Descent*, master thesis, Maastricht 2017,
chapter 5, the form in which the server keeps the anchors. dist-keras and the first reports call another rule by this
name: that one is `agn` here, as in its paper.
Departures: none. (The thesis writes a norm, and uses it for each weight.)
Limits: γ → ∞ is `agn` with η on both sides. One worker is that too, since θ is its anchor. The ps holds W more centers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.contract.optimizers import sgd, take
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import at_least, positive


@dataclass(frozen=True, kw_only=True)
class ADAG(Scheme):
    """Means of gradients, damped by how far each weight has moved since the pull."""

    name = "adag"
    idea = "means of gradients, damped by how far the center has moved meanwhile"
    paper = "Hermans 2017 (thesis)"
    keeps_anchors = True

    communication_period: int = 10
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.2
    """Step size η, on the worker and in the message."""
    distance_scale: float = 0.01
    """γ: a weight that has moved by √γ takes half a step."""

    def __post_init__(self):
        at_least(1, communication_period=self.communication_period)
        positive(learning_rate=self.learning_rate, distance_scale=self.distance_scale)

    def local_variables(self, params: Any) -> Mapping[str, Any]:
        """A, the sum of gradients since the last push."""
        return {"accumulated": 0 * params}

    def local_step(self, worker: Any, gradient: Any) -> None:
        """X ← x − η g,  A ← A + g."""
        sgd(worker.params, gradient, self.learning_rate)
        worker.accumulated.assign_add(gradient)

    def message(self, worker: Any) -> Any:
        """U = η A/H;  A ← 0."""
        return self.learning_rate * take(worker.accumulated) / worker.steps

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """θ ← θ − u / ((θ − a)²/γ + 1)."""
        moved = server.center - server.anchor
        server.center.assign_sub(message / (moved * moved / self.distance_scale + 1))
        return server.center
