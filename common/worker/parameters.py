"""The parameters of a script's own loop: they stand where a run of `train` has its model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Take = Callable[[np.ndarray, bool, int], tuple[np.ndarray, np.float32, bool, bool]]


def not_joined(point: np.ndarray, may_end: bool, call: int) -> Any:
    """Stand for the script in tasks that have no workers."""
    raise NotImplementedError


@dataclass(frozen=True)
class Parameters:
    """Shapes and initial values, with the interface of a `FlatModel` and of its recipe.

    Attributes:
        shapes: shapes of the script's arrays, in the order of the vector.
        initial: the first center, [P].
        take: returns gradient and loss at a point [P], False, and True; called by the graph of a worker. If the
            optimizer of the script has made the step, the point after the step stands for the gradient, and the first
            truth value is True. If the script has left its loop, it returns zeros, and False as the last value, or
            raises StopIteration unless the round may end there. Its other arguments are True if it may, and the number
            of the call.
    """

    shapes: Sequence[tuple[int, ...]]
    initial: np.ndarray
    take: Take = not_joined
    model = None  # no Keras model
    sparse = False
    state_size = 0
    initial_seeds = frozen = ()

    @property
    def size(self) -> int:
        """Number of parameters, P."""
        return sum(map(math.prod, self.shapes))

    def flat(self) -> Parameters:
        """Return this object, as a recipe returns its model."""
        return self

    def pack(self) -> np.ndarray:
        """Return the first center, [P]."""
        return self.initial

    def pack_state(self) -> np.ndarray:
        """Return an empty state: layers and their statistics belong to the script."""
        return np.zeros(0, np.float32)

    def frozen_values(self) -> list[np.ndarray]:
        """Return no arrays."""
        return []
