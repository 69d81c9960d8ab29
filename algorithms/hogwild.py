"""Hogwild!: SGD on one shared vector without any lock.

    worker      read x (it may mix old and new coordinates),  g = g_k(x)
    shared      x ← x − η g                                     in place, nobody is kept out

Reference: Niu, Recht, Ré, Wright, *HOGWILD!: A Lock-Free Approach to Parallelizing SGD*, NIPS 2011,
arXiv:1106.5730.
Departures: the gradient is dense, so collisions are everywhere and the paper's guarantee, which rests on sparse
gradients, does not apply. TensorFlow's update kernel holds the lock of the one variable that it writes, so no
addition is lost, but nothing spans read, update and version: recorded versions are approximate.
Limits: one worker is serial SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..common.errors import positive
from ..common.gates import Unlocked
from ..common.optimizers import sgd
from ..common.scheme import Rate, Scheme


@dataclass(frozen=True, kw_only=True)
class Hogwild(Scheme):
    """Updates in place, with no lock."""

    name = "hogwild"
    idea = "updates in place, with no lock at all"
    paper = "Niu et al. 2011"
    sparse = True

    learning_rate: Rate = 0.1
    """Step size η."""

    def __post_init__(self):
        positive(learning_rate=self.learning_rate)

    @property
    def gate(self) -> Unlocked:
        """Nobody waits, not even for a lock."""
        return Unlocked()

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        """X ← x − η g."""
        sgd(server.center, message, self.learning_rate)
        return server.center
