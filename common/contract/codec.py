"""Codecs: how a vector travels between a worker and the parameter server, and how many bytes that takes.

A codec works on the slice of one ps task. What it gives back is what rule, record and replay see. Those here give back
exactly what they are given, if it is of their kind: a message is made to be so by its scheme. A codec that rounds off
may keep the rest for the next message, in variables of its own (`tests/rounded.py` has one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..gates.store import Tensor
from ..lazy import tf
from .cut import Cut, cut_into

FLOAT_BYTES = INDEX_BYTES = 4


class Codec:
    """The base, and the default: a vector travels as it is."""

    def local_variables(self, vector: Tensor) -> Mapping[str, Tensor]:
        """Initial values of what a worker keeps from one message to the next, by name, for each slice on its own.

        They begin again when the worker joins again. A codec of replies keeps nothing: a reply has many readers.

        Args:
            vector: a slice of zeros, [n].
        """
        return {}

    @property
    def remembers(self) -> bool:
        """True if it has such variables."""
        return type(self).local_variables is not Codec.local_variables

    def cut(self, message: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        """A message [P] as slices of these sizes."""
        return cut_into(message, sizes)

    def encode(self, vector: Tensor, kept: Any) -> Sequence[Tensor]:
        """What travels instead of a vector [n], the slice of one ps task; built where the vector is.

        `kept` has the variables that `local_variables` names, as attributes.
        """
        return [vector]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """The vector [n] from what has travelled; built where it is needed. `size` is n.

        A vector with an element that is not finite must come out as such, or nobody would refuse it.
        """
        return wire[0]

    def bytes(self, sizes: Sequence[int]) -> float:
        """Of an encoded vector with slices of these sizes."""
        return FLOAT_BYTES * sum(sizes)

    def for_model(self, variables: int) -> Codec:
        """This codec, for a model of so many variables: `bytes` of one that sends something for each is asked so."""
        return self

    @property
    def reads(self) -> tuple[float, float] | None:
        """Bytes, up and down, of what a worker reads before each message; None if it has a copy of the center."""
        return None


@dataclass(frozen=True)
class Coordinates(Codec):
    """The elements that are not zero, each with its index: for vectors that are made of few.

    Args:
        share: how many that are, as a part of all.
    """

    share: float

    def encode(self, vector: Tensor, kept: Any) -> Sequence[Tensor]:
        """Indices [m, 1] and values [m] of what is not zero."""
        where = tf.where(tf.not_equal(vector, 0))
        return [tf.cast(where, tf.int32), tf.gather_nd(vector, where)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """The others are zero."""
        where, values = wire
        return tf.scatter_nd(where, values, [size])

    def bytes(self, sizes: Sequence[int]) -> float:
        """An index and a float for each element, one element at least; they may lie on any slice."""
        return (INDEX_BYTES + FLOAT_BYTES) * max(1, int(self.share * sum(sizes)))


@dataclass(frozen=True)
class BatchCoordinates(Codec):
    """A message that is a `tf.IndexedSlices`: the coordinates that a batch touches. It stays one, for the rule.

    On a sparse problem messages of a scheme with `sparse = True` travel so. Its workers have no copy of the center:
    before each message they ask for the values at the same coordinates.

    Args:
        entries: coordinates of a batch; one that several examples touch counts several times.
    """

    entries: int

    def cut(self, message: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """The pairs that lie on each slice, with indices from its beginning."""
        cut = Cut(message.indices, sizes)
        return [tf.IndexedSlices(*pairs) for pairs in zip(cut.cut(message.values), cut.indices, strict=True)]

    def encode(self, vector: Any, kept: Any) -> Sequence[Tensor]:
        """Values [m] and indices [m]."""
        return [vector.values, vector.indices]

    def decode(self, wire: Sequence[Tensor], size: int) -> Any:
        """The same pairs."""
        return tf.IndexedSlices(*wire)

    def bytes(self, sizes: Sequence[int]) -> float:
        """A float and an index for each."""
        return (FLOAT_BYTES + INDEX_BYTES) * self.entries

    @property
    def reads(self) -> tuple[float, float]:
        """An index up, a float down."""
        return INDEX_BYTES * self.entries, FLOAT_BYTES * self.entries


@dataclass(frozen=True)
class Signs(Codec):
    """Vectors of -1, 0 and 1: two bits an element, four elements in a byte. What is not finite comes out as NaN."""

    def encode(self, vector: Tensor, kept: Any) -> Sequence[Tensor]:
        """0, 1, 2 for -1, 0, 1, and 3 for what is not finite; [(n + 3) / 4] bytes."""
        finite = tf.math.is_finite(vector)
        digits = tf.where(finite, tf.sign(tf.where(finite, vector, 0.0)) + 1, 3.0)
        digits = tf.reshape(tf.pad(tf.cast(digits, tf.int32), [[0, -int(vector.shape[0]) % 4]]), [-1, 4])
        return [tf.cast(tf.reduce_sum(digits * [1, 4, 16, 64], 1), tf.uint8)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Digits of base four, as floats."""
        digits = tf.cast(wire[0], tf.int32)[:, None] // [1, 4, 16, 64] % 4
        return tf.gather([-1.0, 0.0, 1.0, float("nan")], tf.reshape(digits, [-1])[:size])

    def bytes(self, sizes: Sequence[int]) -> float:
        """A byte for four elements, and one for those that are left over on a slice."""
        return sum(-(-size // 4) for size in sizes)


@dataclass(frozen=True)
class ScaledSigns(Signs):
    """Vectors whose elements are of one size, or zero, within each variable of the model: `Signs`, and the sizes.

    Args:
        variables: of the model.
    """

    variables: int = 1

    def for_model(self, variables: int) -> Codec:
        """Each has a size of its own."""
        return replace(self, variables=variables)

    def encode(self, vector: Tensor, kept: Any) -> Sequence[Tensor]:
        """Signs, and where another size begins, [m], and that size, [m]."""
        where = tf.where(tf.not_equal(vector, 0))[:, 0]
        sizes = tf.abs(tf.gather(vector, where))
        begins = tf.concat([tf.ones_like(sizes[:1], tf.bool), tf.not_equal(sizes[1:], sizes[:-1])], 0)
        found = tf.boolean_mask(where, begins), tf.boolean_mask(sizes, begins)
        return [*super().encode(vector, kept), tf.cast(found[0], tf.int32), found[1]]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Zero before the first size; a sign that is not finite has none."""
        signs, begins, sizes = wire
        which = tf.searchsorted(begins, tf.range(size), side="right")
        scales = tf.gather(tf.concat([[0.0], sizes], 0), which)
        return tf.math.multiply_no_nan(scales, super().decode([signs], size))

    def bytes(self, sizes: Sequence[int]) -> float:
        """An index and a float for each variable, once more where a slice ends within one."""
        return super().bytes(sizes) + (INDEX_BYTES + FLOAT_BYTES) * (self.variables + len(sizes) - 1)
