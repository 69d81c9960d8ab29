"""The buckets in which a worker that steps alone keeps its vectors [P]."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..messages.cut import cut_into, joined, parts_of
from .replica import Replica

LARGE_FLOATS = 1 << 16  # copying a smaller variable of the model costs less than separate operations on it


class Buckets:
    """A partition of the vector: each large variable of the model is a bucket, consecutive small ones share a bucket.

    So the gradient of a large variable is used in its own buffer, and not copied into a vector with its neighbours.

    Args:
        sizes: sizes of the variables of the model.
        apart: False if the vector is to be one bucket, whatever the variables are.

    Attributes:
        groups: sizes of the variables in each bucket.
        sizes: sizes of the buckets.
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
    def of(cls, scheme: Scheme, replica: Replica) -> Buckets:
        """Return the buckets of a worker of that scheme.

        There is one for rounds of one step, without a ps, and if the scheme's rules or the loss need the whole vector.
        """
        sizes = [math.prod(shape) for shape in replica.model.shapes]
        several = cls(sizes, apart=True)
        alone = not scheme.scalars and scheme.sync.uses_ps and scheme.period > 1 and not replica.needs_vector
        return several if len(several.sizes) > 1 and alone and scheme.in_coordinates else cls(sizes, apart=False)

    def cut(self, vector: Any) -> list[Any]:
        """Copy the buckets out of a vector [P], which may lie in shared memory.

        A worker updates these copies. TensorFlow updates a variable in place when its reference count is one, and does
        not know that a slice aliases memory that other processes read.
        """
        if len(self.sizes) == 1:
            return [vector]
        parts = cut_into(vector, self.sizes)  # a slice that is a concatenation has a buffer of its own
        return [part if parts_of(part) else tf.raw_ops.DeepCopy(x=part) for part in parts]

    def of_variables(self, buckets: Sequence[Any]) -> Any:
        """Return the argument of `Replica.gradient`: the vector if it is one bucket, or one for each variable."""
        if len(buckets) == 1:
            return buckets[0]
        return [part for bucket, group in zip(buckets, self.groups, strict=True) for part in cut_into(bucket, group)]

    def from_variables(self, gradient: Any) -> list[Any]:
        """Return the buckets of a gradient from `Replica.gradient`."""
        if not isinstance(gradient, list):
            return [gradient]
        parts = iter(gradient)
        return [joined([next(parts) for _ in group]) for group in self.groups]
