"""Serial SGD: one process, no parameter server. The baseline of every comparison.

    each step      θ ← θ − η g(θ)

Reference: Robbins and Monro, *A Stochastic Approximation Method*, 1951.
Departures: none.
Limits: `async_sgd` with one worker is this; `sync_sgd` with W workers of batch b is this with batch W·b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..common.contract.optimizers import sgd
from ..common.contract.scheme import Rate, Scheme
from ..common.errors import positive
from ..common.gates.alone import Alone


@dataclass(frozen=True, kw_only=True)
class Serial(Scheme):
    """Plain SGD in one process."""

    name = "serial"
    idea = "one process, the baseline"
    paper = "Robbins & Monro 1951"

    learning_rate: Rate = 0.2
    """Step size η."""

    def __post_init__(self):
        positive(learning_rate=self.learning_rate)

    @property
    def gate(self) -> Alone:
        """One worker alone."""
        return Alone()

    def local_step(self, worker: Any, gradient: Any) -> None:
        """θ ← θ − η g."""
        sgd(worker.params, gradient, self.learning_rate)
