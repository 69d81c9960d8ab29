"""The parameters of a script's own loop: they stand where a run of `train` has its model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
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
        without_decay: positions of the arrays that weight decay leaves as they are.
        keeps_state: checkpoints have the state of an object of the script.
        take: the function by which the graph of a worker passes a point to the script. Arguments: the point [P], True
            if the round may end before this step, the number of the call. Results: a vector [P], the loss, `is_point`,
            `more`. The vector is the gradient at the point; if `is_point`, it is the point after the step instead,
            because the script's own optimizer has made the step. `more` is False if the script has left its loop; the
            vector is then zeros. Raises StopIteration if the script has left its loop where the round may not end.
    """

    shapes: Sequence[tuple[int, ...]]
    initial: np.ndarray
    take: Take = not_joined
    without_decay: Sequence[int] = ()
    keeps_state: bool = False
    model = None  # no Keras model
    settings = MappingProxyType({})  # of Keras: a script has its own
    sparse = bfloat16 = False
    without_xla = "its script computes the gradients"
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
