"""DOWNPOUR SGD: workers train alone for a while and push sums of gradients; Adagrad on the server.

    worker, each step       x ← x − η g_k(x),  A ← A + g
    every period            push A,  x ← reply,  A ← 0
    server, each push       S ← S + A²,  θ ← θ − γ A / √S,  reply θ        one atomic event, elementwise

Reference: Dean et al., *Large Scale Distributed Deep Networks*, NIPS 2012.
Departures: push and pull share one period and happen together at its end (the paper's periods are independent,
and its loop fetches before it pushes); the worker waits for the reply. S starts at `initial_accumulator`, as in
TensorFlow, where the paper starts at zero.
Limits: a period of one is `async_sgd` with Adagrad on the server; `downpour_easy` has plain SGD there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.errors import at_least, positive
from ..common.optimizers import adagrad, sgd
from ..common.scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class Downpour(Scheme):
    """Sums of gradients over a period, Adagrad on the server."""

    name = "downpour"
    idea = "sums of gradients over a period, Adagrad on the server"
    paper = "Dean et al. 2012"

    communication_period: int = 5
    """Local steps between two exchanges."""
    learning_rate: float = 0.1
    """The worker's step size η."""
    server_learning_rate: float = 0.1
    """The server's step size γ (Adagrad)."""
    initial_accumulator: float = 0.1
    """Where Adagrad's sum of squares starts."""

    def __post_init__(self):
        at_least(1, communication_period=self.communication_period)
        positive(
            learning_rate=self.learning_rate,
            server_learning_rate=self.server_learning_rate,
            initial_accumulator=self.initial_accumulator,
        )

    def local_variables(self, params: Any) -> Mapping[str, Any]:
        """A, the sum of gradients since the last push."""
        return {"accumulated": 0 * params}

    def global_variables(self, center: Any) -> Mapping[str, Any]:
        """S, Adagrad's sum of squares."""
        return {"squares": 0 * center + self.initial_accumulator}

    def local_step(self, worker: Any, gradient: Any) -> None:
        """X ← x − η g,  A ← A + g."""
        sgd(worker.params, gradient, self.learning_rate)
        worker.accumulated.assign_add(gradient)

    def message(self, worker: Any) -> Any:
        """A."""
        return worker.accumulated

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """S ← S + A²,  θ ← θ − γ A / √S."""
        adagrad(server.center, server.squares, message, self.server_learning_rate)
        return server.center

    def adopt(self, worker: Any, reply: Any) -> None:
        """X ← θ,  A ← 0."""
        worker.params.assign(reply)
        worker.accumulated.assign(0 * reply)
