"""DOWNPOUR-Easy: DOWNPOUR with plain SGD on the server.

    worker, each step       x ← x − η g_k(x),  A ← A + g
    every period            push A,  A ← 0,  x ← reply
    server, each push       θ ← θ − η A,  reply θ                          one atomic event

Reference: Dean et al., *Large Scale Distributed Deep Networks*, NIPS 2012, without its Adagrad.
Departures: as `downpour` in its default phase.
Limits: one worker is serial SGD whatever the period; a period of one is `async_sgd`. Sums grow with the period,
so W workers with period H move θ by about W·H gradients at a time: it diverges when W·H·η is large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.contract.optimizers import sgd, take
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import at_least, positive


@dataclass(frozen=True, kw_only=True)
class DownpourEasy(Scheme):
    """Sums of gradients over a period, plain SGD on the server."""

    name = "downpour_easy"
    idea = "sums of gradients over a period, plain SGD on the server"
    paper = "Dean et al. 2012"

    communication_period: int = 5
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.1
    """Step size η, on the worker and on the server."""

    def __post_init__(self):
        at_least(1, communication_period=self.communication_period)
        positive(learning_rate=self.learning_rate)

    def local_variables(self, params: Any) -> Mapping[str, Any]:
        """A, the sum of gradients since the last push."""
        return {"accumulated": 0 * params}

    def local_step(self, worker: Any, gradient: Any) -> None:
        """X ← x − η g,  A ← A + g."""
        sgd(worker.params, gradient, self.learning_rate)
        worker.accumulated.assign_add(gradient)

    def message(self, worker: Any) -> Any:
        """A;  A ← 0."""
        return take(worker.accumulated)

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """θ ← θ − η A."""
        sgd(server.center, message, self.learning_rate)
        return server.center
