"""Weight decay, and the variables of a model that it leaves as they are.

These are the variables on which the loss does not depend, as in Keras' optimizers, and those that the user excludes,
such as biases and the scales of normalisations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from ..errors import UserError
from ..lazy import tf
from .hyperparameters import declared

Decayed = Callable[[Any], Any]  # see `Worker.decayed`


def weight_decay_of(scheme: Any) -> float:
    """Return the coefficient of the decoupled weight decay of a scheme, or of its inner optimizer; 0 for none."""
    return declared(scheme.inner or scheme, "weight_decay", 0.0)


def decayed_of(
    shapes: Sequence[tuple[int, ...]], without_decay: Collection[int], sizes: Sequence[int]
) -> list[Decayed]:
    """Return the function `decayed` of the views for each slice of the vector.

    Args:
        shapes: shapes of the model's variables.
        without_decay: positions of the variables that weight decay leaves as they are.
        sizes: sizes of the slices, P together.
    """
    if not without_decay:
        return [_all for _ in sizes]
    ends = [*itertools.accumulate(math.prod(shape) for shape in shapes)]
    found, begin = [], 0
    for size in sizes:
        cuts = [begin, *(end for end in ends if begin < end < begin + size), begin + size]
        owners = [sum(end <= first for end in ends) for first in cuts[:-1]]
        lengths = [last - first for first, last in itertools.pairwise(cuts)]
        found.append(partial(_some, [(i not in without_decay, n) for i, n in zip(owners, lengths, strict=True)]))
        begin += size
    return found


def check_positions(without_decay: Any, count: int) -> None:
    """Raise `UserError` unless these are positions of `count` arrays."""
    are_positions = isinstance(without_decay, Collection) and all(i in range(count) for i in without_decay)
    if not are_positions:
        raise UserError(
            f"without_decay must list positions of the arrays, from 0 to {count - 1}. Received: {without_decay!r}"
        )


def _all(vector: Any) -> Any:
    return vector


def _some(parts: Sequence[tuple[bool, int]], vector: Any) -> Any:
    """Return a vector with zeros in the parts that are False; a mask that is a constant would enlarge the graph."""
    return tf.where(tf.concat([tf.fill([n], kept) for kept, n in parts], 0), vector, 0.0)
