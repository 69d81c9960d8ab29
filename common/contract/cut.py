"""A vector [P] and its slices on the ps tasks: where they are cut, and which coordinates lie on which."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ..gates.store import Tensor
from ..lazy import tf

COPIES = "copies."  # begins the names, in a checkpoint, of what each slice has a copy of


def even_sizes(size: int, parts: int) -> list[int]:
    """Sizes of `parts` contiguous slices of a vector of `size`, different by one at most."""
    return [size // parts + (i < size % parts) for i in range(parts)]


def cut_into(vector: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The slices of a vector, which share its memory where they are aligned; `tf.split` copies.

    One that is put together of parts need not be: each slice is put together of what it needs of them.
    """
    if len(sizes) == 1:
        return [vector]
    parts, ends = parts_of(vector), list(itertools.accumulate(sizes))
    if not parts or None in [part.shape[0] for part in parts]:
        return [vector[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return [joined([*_between(parts, end - size, end)]) for size, end in zip(sizes, ends, strict=True)]


def _between(parts: Sequence[Tensor], begin: int, end: int) -> Iterator[Tensor]:
    """What lies there of a vector that the parts are, one after the other."""
    first = 0
    for part in parts:
        last = first + part.shape[0]
        if first < end and begin < last:
            yield part[max(begin - first, 0) : min(end, last) - first]
        first = last


def parts_of(vector: Tensor) -> list[Tensor]:
    """The vectors that one, [n], is put together of, one after the other; none if it is not."""
    is_joined = tf.is_symbolic_tensor(vector) and vector.shape.rank == 1 and vector.op.type == "ConcatV2"
    return list(vector.op.inputs)[:-1] if is_joined else []


def place_of(vector: Tensor) -> tuple[Tensor, int, int]:
    """The vector of which this one, [n], is a slice, and from where to where: itself, if it is none."""
    size = vector.shape[0]
    if vector.op.type == "StridedSlice" and vector.shape.rank == vector.op.inputs[0].shape.rank == 1:
        begin, end = (tf.get_static_value(bound) for bound in vector.op.inputs[1:3])
        if begin is not None and end is not None and begin[0] >= 0 and end[0] - begin[0] == size:
            return vector.op.inputs[0], int(begin[0]), int(end[0])
    return vector, 0, size


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One vector of several, or the only one."""
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


class Cut:
    """Cuts coordinates of the whole vector into the parts that lie on each slice.

    Attributes:
        indices: for each slice, the coordinates on it, counted from its beginning.
    """

    def __init__(self, indices: Tensor, sizes: Sequence[int]):
        self.count = len(sizes)
        ends = list(itertools.accumulate(sizes))
        self.owner = tf.searchsorted(tf.constant(ends, indices.dtype), indices, side="right")
        self.indices = [part - start for part, start in zip(self.cut(indices), [0, *ends[:-1]], strict=True)]

    def cut(self, values: Tensor) -> list[Tensor]:
        """What belongs to each slice."""
        return tf.dynamic_partition(values, self.owner, self.count) if self.count > 1 else [values]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The parts in the order in which they were before."""
        if self.count == 1:
            return parts[0]
        return tf.dynamic_stitch(self.cut(tf.range(tf.shape(self.owner)[0])), parts)
