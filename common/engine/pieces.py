"""The pieces in which a worker that steps alone keeps its vectors [P]."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..contract.cut import cut_into, joined, parts_of
from ..contract.scheme import Scheme
from .replica import Replica

LARGE_FLOATS = 1 << 16  # to copy a smaller variable of the model costs less than operations of its own


class Pieces:
    """A large variable of the model is a piece, small ones that lie one after the other are one together.

    So the gradient of a large variable is used where it was made, and need not be copied to where its neighbours are.

    Args:
        sizes: of the variables of the model.
        apart: False if the vector is to be one piece, whatever the variables are.

    Attributes:
        sizes: of the pieces.
    """

    def __init__(self, sizes: Sequence[int], apart: bool):
        self.groups = [list(sizes)]
        if apart:
            self.groups = []
            for large, group in itertools.groupby(sizes, lambda size: size >= LARGE_FLOATS):
                run = list(group)
                self.groups += [[size] for size in run] if large else [run]
        self.sizes = [sum(group) for group in self.groups]

    @classmethod
    def of(cls, scheme: Scheme, replica: Replica) -> Pieces:
        """Those of a worker of that scheme: several only if its local steps, and the loss, think of none but them."""
        sizes = [math.prod(shape) for shape in replica.model.shapes]
        several = cls(sizes, apart=True)
        alone = not scheme.scalars and scheme.gate.uses_ps and scheme.period > 1 and not replica.needs_vector
        return several if len(several.sizes) > 1 and alone and scheme.elementwise else cls(sizes, apart=False)

    def cut(self, vector: Any) -> list[Any]:
        """The pieces of a vector that has come from elsewhere, apart from it.

        It may be memory that others read, too. TensorFlow writes into a variable in place if nobody else has its
        tensor; it does not see that a view, the last one that is left, is of memory that is not its own.
        """
        if len(self.sizes) == 1:
            return [vector]
        parts = cut_into(vector, self.sizes)
        return [part if parts_of(part) else tf.raw_ops.DeepCopy(x=part) for part in parts]

    def of_variables(self, pieces: Sequence[Any]) -> Any:
        """What `Replica.gradient` takes: the vector, if it is in one piece, or a flat vector for each variable."""
        if len(pieces) == 1:
            return pieces[0]
        return [part for piece, group in zip(pieces, self.groups, strict=True) for part in cut_into(piece, group)]

    def from_variables(self, gradient: Any) -> list[Any]:
        """The pieces of a gradient as `Replica.gradient` returns it."""
        if not isinstance(gradient, list):
            return [gradient]
        parts = iter(gradient)
        return [joined([next(parts) for _ in group]) for group in self.groups]
