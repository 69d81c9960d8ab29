"""DynSGD: dynamic SGD. A late message is divided by its lateness.

    worker, each step       x ← x − η g_k(x),  A ← A + g
    every period            push A,  A ← 0,  x ← reply
    server, each push       θ ← θ − η A / (τ + 1),  reply θ                one atomic event

where the staleness τ is the number of updates since worker k's last pull, read inside the lock.

Reference: Jiang, Cui, Zhang, Yu, *Heterogeneity-aware Distributed Parameter Servers*, SIGMOD 2017, in the form of
Hermans' thesis (2017), section 3.3.
Departures: the SIGMOD paper keeps a running mean of the updates for each version; that form is not here. dist-keras
reads τ outside its lock, which is a race.
Limits: one worker is serial SGD. τ = 0 throughout is `downpour_easy`. With W equal workers 1/(τ+1) is about 1/W: then
it is little more than a lower rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.contract.optimizers import sgd, take
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import at_least, positive


@dataclass(frozen=True, kw_only=True)
class DynSGD(Scheme):
    """Sums of gradients over a period, divided by their staleness plus one."""

    name = "dynsgd"
    idea = "sums of gradients over a period, divided by their lateness"
    paper = "Jiang et al. 2017"

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
        """θ ← θ − η A / (τ + 1)."""
        sgd(server.center, message, self.learning_rate / (staleness + 1))
        return server.center
