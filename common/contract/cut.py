"""A vector [P] and its slices on the ps tasks: where they are cut, and which coordinates lie on which."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..gates.store import Tensor


def even_sizes(size: int, parts: int) -> list[int]:
    """Sizes of `parts` contiguous slices of a vector of `size`, different by one at most."""
    return [size // parts + (i < size % parts) for i in range(parts)]


def cut_into(vector: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The slices of a vector, which share its memory where they are aligned; `tf.split` copies."""
    if len(sizes) == 1:
        return [vector]
    return [vector[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


class Cut:
    """Cuts coordinates of the whole vector into the parts that lie on each slice.

    Attributes:
        indices: for each slice, the coordinates on it, counted from its beginning.
    """

    def __init__(self, indices: Tensor, sizes: Sequence[int]):
        import tensorflow as tf

        self.count = len(sizes)
        ends = list(itertools.accumulate(sizes))
        self.owner = tf.searchsorted(tf.constant(ends, indices.dtype), indices, side="right")
        self.indices = [part - start for part, start in zip(self.cut(indices), [0, *ends[:-1]], strict=True)]

    def cut(self, values: Tensor) -> list[Tensor]:
        """What belongs to each slice."""
        import tensorflow as tf

        return tf.dynamic_partition(values, self.owner, self.count) if self.count > 1 else [values]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The parts in the order in which they were before."""
        import tensorflow as tf

        if self.count == 1:
            return parts[0]
        return tf.dynamic_stitch(self.cut(tf.range(tf.shape(self.owner)[0])), parts)
