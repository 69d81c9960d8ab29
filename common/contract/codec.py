"""Codecs: how a vector travels between a worker and the parameter server, and how many bytes that takes.

What a codec gives back is what rule, record and replay see. The three here give back exactly what they are given, if it
is of their kind; a message is made to be so by its scheme, which also remembers what it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..gates.store import Tensor

FLOAT_BYTES = INDEX_BYTES = 4


class Codec:
    """The base, and the default: a vector travels as it is."""

    def encode(self, vector: Tensor) -> Sequence[Tensor]:
        """What travels instead of a vector [n]; built where the vector is. n is the slice of one ps task."""
        return [vector]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """The vector [n] from what has travelled; built where it is needed. `size` is n.

        A vector with an element that is not finite must come out as such, or nobody would refuse it.
        """
        del size
        return wire[0]

    def bytes(self, size: int) -> float:
        """Of an encoded vector [n]; `size` is n."""
        return FLOAT_BYTES * size


@dataclass(frozen=True)
class Coordinates(Codec):
    """The elements that are not zero, each with its index: for vectors that are made of few.

    Args:
        share: how many that are, as a part of all.
    """

    share: float

    def encode(self, vector: Tensor) -> Sequence[Tensor]:
        """Indices [m, 1] and values [m] of what is not zero."""
        import tensorflow as tf

        where = tf.where(tf.not_equal(vector, 0))
        return [tf.cast(where, tf.int32), tf.gather_nd(vector, where)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """The others are zero."""
        import tensorflow as tf

        where, values = wire
        return tf.scatter_nd(where, values, [size])

    def bytes(self, size: int) -> float:
        """An index and a float for each element, one element at least."""
        return (INDEX_BYTES + FLOAT_BYTES) * max(1, int(self.share * size))


@dataclass(frozen=True)
class Signs(Codec):
    """Vectors of -1, 0 and 1: two bits an element, four elements in a byte. What is not finite comes out as NaN."""

    def encode(self, vector: Tensor) -> Sequence[Tensor]:
        """0, 1, 2 for -1, 0, 1, and 3 for what is not finite; [(n + 3) / 4] bytes."""
        import tensorflow as tf

        finite = tf.math.is_finite(vector)
        digits = tf.where(finite, tf.sign(tf.where(finite, vector, 0.0)) + 1, 3.0)
        digits = tf.reshape(tf.pad(tf.cast(digits, tf.int32), [[0, -int(vector.shape[0]) % 4]]), [-1, 4])
        return [tf.cast(tf.reduce_sum(digits * [1, 4, 16, 64], 1), tf.uint8)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Digits of base four, as floats."""
        import tensorflow as tf

        digits = tf.cast(wire[0], tf.int32)[:, None] // [1, 4, 16, 64] % 4
        return tf.gather([-1.0, 0.0, 1.0, float("nan")], tf.reshape(digits, [-1])[:size])

    def bytes(self, size: int) -> float:
        """A byte for four elements."""
        return -(-size // 4)
