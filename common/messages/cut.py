"""The cut of a vector [P] into slices on the ps tasks, and the slice of each coordinate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ..lazy import tf
from ..sync.store import Tensor, parts_of

COPIES = "copies."  # in a checkpoint, prefix of the names of variables of which each slice has a copy


def even_sizes(size: int, parts: int) -> list[int]:
    """Return the sizes of `parts` contiguous slices of a vector of `size`, different by one at most."""
    return [size // parts + (i < size % parts) for i in range(parts)]


def cut_into(vector: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return the slices of a vector, which share its memory where they are aligned; `tf.split` copies.

    If the vector is a concatenation, each slice is concatenated from its share of the parts, so that the whole vector
    need not be built.
    """
    if len(sizes) == 1:
        return [vector]
    parts, ends = parts_of(vector), list(itertools.accumulate(sizes))
    if not parts or None in [part.shape[0] for part in parts]:
        return [vector[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return [joined([*_between(parts, end - size, end)]) for size, end in zip(sizes, ends, strict=True)]


def _between(parts: Sequence[Tensor], begin: int, end: int) -> Iterator[Tensor]:
    """Yield the pieces from `begin` to `end` of the concatenation of the parts."""
    first = 0
    for part in parts:
        last = first + part.shape[0]
        if first < end and begin < last:
            yield part[max(begin - first, 0) : min(end, last) - first]
        first = last


def place_of(vector: Tensor) -> tuple[Tensor, int, int]:
    """Return the vector of which this one, [n], is a slice, its begin and its end; itself if it is no slice."""
    size = vector.shape[0]
    if vector.op.type == "StridedSlice" and vector.shape.rank == vector.op.inputs[0].shape.rank == 1:
        begin, end = (tf.get_static_value(bound) for bound in vector.op.inputs[1:3])
        if begin is not None and end is not None and begin[0] >= 0 and end[0] - begin[0] == size:
            return vector.op.inputs[0], int(begin[0]), int(end[0])
    return vector, 0, size


TIMES = 4  # of a round, int64

TAIL = 2 * TIMES  # floats that `with_times` appends


def with_times(vector: Tensor, times: Tensor) -> Tensor:
    """Append the bits of `TIMES` int64 to a vector of any type. As a tensor of their own they would cost a transfer."""
    return tf.concat([vector, tf.reshape(tf.bitcast(times, vector.dtype), [-1])], 0)


def without_times(vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two arguments of `with_times`, given its result."""
    each = tf.int64.size // vector.dtype.size
    times = tf.bitcast(tf.reshape(vector[-TIMES * each :], [TIMES, each]), tf.int64)
    return vector[: -TIMES * each], times


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate vectors; a single one is returned as it is."""
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


class Cut:
    """A partition of coordinates of the whole vector by the slices on which they lie.

    Attributes:
        indices: for each slice, the coordinates on it, counted from its beginning.
    """

    def __init__(self, indices: Tensor, sizes: Sequence[int]):
        self.count = len(sizes)
        ends = list(itertools.accumulate(sizes))
        self.owner = tf.searchsorted(tf.constant(ends, indices.dtype), indices, side="right")
        self.indices = [part - start for part, start in zip(self.cut(indices), [0, *ends[:-1]], strict=True)]

    def cut(self, values: Tensor) -> list[Tensor]:
        """Partition one value for each coordinate by slice."""
        return tf.dynamic_partition(values, self.owner, self.count) if self.count > 1 else [values]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Merge the partitions into the original order."""
        if self.count == 1:
            return parts[0]
        return tf.dynamic_stitch(self.cut(tf.range(tf.shape(self.owner)[0])), parts)
