"""AGN: accumulated gradient normalization. Workers train alone for a while and push the mean of their gradients.

    worker, each step       x ← x − η g_k(x),  A ← A + g
    every period of H       push A/H,  A ← 0,  x ← reply
    server, each push       θ ← θ − γ A/H,  reply θ                        one atomic event

Reference: Hermans, Spanakis, Möckel, *Accumulated Gradient Normalization*, ACML 2017, arXiv:1710.02368. Called ADAG
in dist-keras and in the first reports; `adag` here is the rule to which Hermans' thesis gave that name later.
Departures: the paper pushes mean steps, η A/H, and the server adds them: γ = η. With plain SGD on both sides that is
the same; a rate of its own on the server is `tf.contrib`'s AGNOptimizer. A shorter last round is divided by its own H.
Limits: H = 1 is `async_sgd`. γ = H η is `downpour_easy`: the direction is the same, AGN takes a step of the size of
one gradient, so it is stable where sums diverge, and slow where they are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.contract.optimizers import sgd, take
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import at_least, positive


@dataclass(frozen=True, kw_only=True)
class AGN(Scheme):
    """Means of gradients over a period, plain SGD on the server."""

    name = "agn"
    idea = "means of gradients over a period, plain SGD on the server"
    paper = "Hermans et al. 2017"

    communication_period: int = 10
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.1
    """The worker's step size η."""
    server_learning_rate: Rate = 0.2
    """The server's step size γ."""

    def __post_init__(self):
        at_least(1, communication_period=self.communication_period)
        positive(learning_rate=self.learning_rate, server_learning_rate=self.server_learning_rate)

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
        """θ ← θ − γ A/H."""
        sgd(server.center, message, self.server_learning_rate)
        return server.center
