"""Codecs: the encoding of vectors between a worker and the parameter server, and its size in bytes.

A codec sends a whole message, or a slice for each ps task. The server's rule, the event log and the replay see the
decoded vector. The codecs here are lossless, but most only for vectors of their kind: sparse ones, or signs. The
scheme's `message` has to return such a vector; the codec does not make one. Codecs that compress any message are in
`contract/rounding.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..lazy import tf
from ..sync.store import Tensor
from .cut import Cut, cut_into

FLOAT_BYTES = INDEX_BYTES = 4


def packed(digits: Tensor, bits: int) -> Tensor:
    """Return numbers from 0 to 2^bits - 1, [n], as bytes that hold 8 / bits of them each."""
    each = 8 // bits
    padded = tf.pad(tf.cast(digits, tf.int32), [[0, -int(digits.shape[0]) % each]])
    return tf.cast(tf.reduce_sum(tf.reshape(padded, [-1, each]) * _places(bits), 1), tf.uint8)


def unpacked(wire: Tensor, bits: int, size: int) -> Tensor:
    """Return the numbers, [size], from bytes of `packed`."""
    digits = tf.cast(wire, tf.int32)[:, None] // _places(bits) % (1 << bits)
    return tf.reshape(digits, [-1])[:size]


def _places(bits: int) -> list[int]:
    """Return the weights of the numbers in a byte."""
    return [1 << place for place in range(0, 8, bits)]


class Codec:
    """The base class and default: sends a vector as it is."""

    def local_variables(self, vector: Tensor) -> Mapping[str, Tensor]:
        """Return the initial values of the codec's variables on a worker, by name, for one slice.

        They are reset when the worker joins again. A codec of replies keeps no variables: a reply has many readers.

        Args:
            vector: a slice of zeros, [n].
        """
        return {}

    @property
    def spreads(self) -> bool:
        """True if decoded vectors have other elements than zero beside those of the encoded ones."""
        return False

    @property
    def remembers(self) -> bool:
        """True if the codec has local variables."""
        return type(self).local_variables is not Codec.local_variables

    def cut(self, message: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        """Cut a message [P] into slices of these sizes."""
        return cut_into(message, sizes)

    def send(self, message: Tensor, sizes: Sequence[int], variables: Sequence[Any], worker: Any) -> Sequence[Any]:
        """Return the tensors to send for each slice of a message [P]. Default: each slice is encoded by itself.

        A codec that needs the whole message, the shapes of the model's variables or random numbers overrides this.

        Args:
            message: the message, [P].
            sizes: sizes of its slices.
            variables: for each slice, those of `local_variables` as attributes.
            worker: the sender as its scheme sees it, with `shapes`, `uniform`, `index`, `round`; None if it is none.
        """
        return [self.encode(part, local) for part, local in zip(self.cut(message, sizes), variables, strict=True)]

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return the tensors to send for a vector [n], the slice of one ps task; built on the vector's device.

        `variables` has those of `local_variables` as attributes; None for a reply.
        """
        return [vector]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return the vector [n] from the received tensors; built on the receiver's device. `size` is n.

        The decoded vector must have an element that is not finite if the encoded one has: the server tests the decoded
        vector to refuse such messages.
        """
        return wire[0]

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the number of bytes of an encoded vector with slices of these sizes."""
        return FLOAT_BYTES * sum(sizes)

    def unpacked(self) -> Codec:
        """Return the codec whose `decode` returns the same, but whose tensors have shapes known in advance.

        XLA needs such shapes. A message to the same process is not sent, so that its bytes do not matter.
        """
        return self

    def for_model(self, variables: int) -> Codec:
        """Return this codec for a model of that many variables; for codecs whose `bytes` depend on the number."""
        return self

    def for_workers(self, workers: int) -> Codec:
        """Return this codec for replies to that many workers; for codecs whose `bytes` depend on the number."""
        return self

    @property
    def reads(self) -> tuple[float, float] | None:
        """Bytes up and down of a worker's read before each message; None if the worker has a copy of the center."""
        return None


def both(codec: Codec | tuple[Codec, Codec]) -> tuple[Codec, Codec]:
    """Return the codecs of messages and of replies; where there is one, replies are sent as they are."""
    return codec if isinstance(codec, tuple) else (codec, Codec())


class Lossless(Codec):
    """A codec whose `decode` returns the encoded vector, if that is of its kind; the number of bytes depends on it."""

    def unpacked(self) -> Codec:
        """Return the codec that sends the vector as it is."""
        return Codec()


@dataclass(frozen=True)
class Coordinates(Lossless):
    """Nonzero elements, each with its index: for sparse vectors.

    Args:
        share: fraction of the elements that are not zero.
    """

    share: float

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return indices [m, 1] and values [m] of the nonzero elements."""
        where = tf.where(tf.not_equal(vector, 0))
        return [tf.cast(where, tf.int32), tf.gather_nd(vector, where)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return a vector [n] with the received elements, and zeros elsewhere."""
        where, values = wire
        return tf.scatter_nd(where, values, [size])

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of an index and a float for each nonzero element, of one element at least."""
        return (INDEX_BYTES + FLOAT_BYTES) * max(1, int(self.share * sum(sizes)))


@dataclass(frozen=True)
class SummedCoordinates(Coordinates):
    """`Coordinates` for a reply that is the sum or mean of a sparse vector of each worker.

    Args:
        share: fraction of the elements of one of the vectors that are not zero.
    """

    def for_workers(self, workers: int) -> Codec:
        """Return this codec for a sum of so many vectors, none of which have a nonzero element in common."""
        return replace(self, share=min(1.0, workers * self.share))


@dataclass(frozen=True)
class Span(Lossless):
    """The elements from the first to the last that is not zero: for vectors of which a consecutive part is sent.

    Args:
        share: fraction of the elements that the part has.
    """

    share: float

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return the index of the first element, [1], and the elements, [m]; m is 0 if all are zero."""
        size, places = int(vector.shape[0]), tf.range(vector.shape[0])
        nonzero = tf.not_equal(vector, 0)
        begin = tf.reduce_min(tf.where(nonzero, places, size))
        return [begin[None], vector[begin : tf.reduce_max(tf.where(nonzero, places, -1)) + 1]]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return a vector [n] with the received elements, and zeros elsewhere."""
        begin, part = wire
        return tf.ensure_shape(tf.pad(part, [[begin[0], size - begin[0] - tf.size(part)]]), [size])

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of the elements, and of an index for each slice."""
        return FLOAT_BYTES * math.ceil(self.share * sum(sizes)) + INDEX_BYTES * len(sizes)


@dataclass(frozen=True)
class BatchCoordinates(Codec):
    """A message that is a `tf.IndexedSlices` of the coordinates that a batch touches, also after decoding.

    On a sparse problem, schemes with `sparse = True` use this codec. Their workers have no copy of the center: before
    each message they read its values at the same coordinates.

    Args:
        entries: number of coordinates of a batch; one that several examples touch counts several times.
    """

    entries: int

    def cut(self, message: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Return the index-value pairs of each slice, with indices counted from its beginning."""
        cut = Cut(message.indices, sizes)
        return [tf.IndexedSlices(*pairs) for pairs in zip(cut.cut(message.values), cut.indices, strict=True)]

    def encode(self, vector: Any, variables: Any) -> Sequence[Tensor]:
        """Return values [m] and indices [m]."""
        return [vector.values, vector.indices]

    def decode(self, wire: Sequence[Tensor], size: int) -> Any:
        """Return the pairs as `tf.IndexedSlices`."""
        return tf.IndexedSlices(*wire)

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of a float and an index for each entry."""
        return (FLOAT_BYTES + INDEX_BYTES) * self.entries

    @property
    def reads(self) -> tuple[float, float]:
        """Bytes of an index up and a float down for each entry."""
        return INDEX_BYTES * self.entries, FLOAT_BYTES * self.entries


@dataclass(frozen=True)
class Signs(Lossless):
    """Vectors of -1, 0 and 1: two bits an element, four elements in a byte. Elements that are not finite become NaN."""

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return [(n + 3) / 4] bytes of digits: 0, 1, 2 for -1, 0, 1, and 3 for an element that is not finite."""
        finite = tf.math.is_finite(vector)
        return [packed(tf.where(finite, tf.sign(tf.where(finite, vector, 0.0)) + 1, 3.0), 2)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return the base-4 digits as floats."""
        return tf.gather([-1.0, 0.0, 1.0, float("nan")], unpacked(wire[0], 2, size))

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return a byte for each four elements, rounded up on each slice."""
        return sum(-(-size // 4) for size in sizes)


@dataclass(frozen=True)
class WholeNumbers(Lossless):
    """Vectors of whole numbers, such as sums of signs: 2, 4 or 8 bits an element as the largest needs, or else 32.

    Elements that are not finite become NaN.

    Args:
        most: the largest number by magnitude that is expected, for `bytes`.
    """

    most: int = 1

    def for_workers(self, workers: int) -> Codec:
        """Return this codec for sums over so many workers."""
        return replace(self, most=self.most * workers)

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return the bytes of the numbers, [m], and the place of their width in `WIDTHS`, [1]."""
        finite = tf.math.is_finite(vector)
        numbers = tf.where(finite, vector, 0.0)
        largest = tf.reduce_max(tf.abs(numbers))
        place = tf.add_n([tf.cast(largest > largest_number(bits), tf.int32) for bits in WIDTHS])

        def narrow(bits: int) -> Any:
            return lambda: packed(tf.where(finite, numbers + largest_number(bits), float((1 << bits) - 1)), bits)

        def whole() -> Tensor:
            return tf.reshape(tf.bitcast(tf.where(finite, vector, float("nan")), tf.uint8), [-1])

        return [tf.switch_case(place, [*map(narrow, WIDTHS), whole]), tf.cast(place[None], tf.uint8)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return the numbers as floats."""
        octets, place = wire

        def narrow(bits: int) -> Any:
            def decoded() -> Tensor:
                found = tf.cast(unpacked(octets, bits, size), tf.float32)
                return tf.where(found == (1 << bits) - 1, float("nan"), found - largest_number(bits))

            return decoded

        def whole() -> Tensor:
            return tf.bitcast(tf.reshape(octets, [-1, FLOAT_BYTES]), tf.float32)

        return tf.ensure_shape(tf.switch_case(tf.cast(place[0], tf.int32), [*map(narrow, WIDTHS), whole]), [size])

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of the width that the largest expected number needs, and one for it, on each slice."""
        bits = next((bits for bits in WIDTHS if self.most <= largest_number(bits)), 8 * FLOAT_BYTES)
        return sum(-(-size * bits // 8) + 1 for size in sizes)


WIDTHS = 2, 4, 8  # bits of an element of `WholeNumbers`


def largest_number(bits: int) -> int:
    """Return the largest number of so many bits whose negative is one, too; one code is left for NaN."""
    return (1 << bits - 1) - 1


@dataclass(frozen=True)
class ScaledSigns(Signs):
    """Vectors whose nonzero elements have one magnitude within each variable of the model: `Signs` and magnitudes.

    Args:
        variables: number of variables of the model.
    """

    variables: int = 1

    def for_model(self, variables: int) -> Codec:
        """Return this codec with one magnitude for each of so many variables."""
        return replace(self, variables=variables)

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return the signs, the indices where the magnitude changes, [m], and the new magnitudes, [m]."""
        where = tf.where(tf.not_equal(vector, 0))[:, 0]
        sizes = tf.abs(tf.gather(vector, where))
        begins = tf.concat([tf.ones_like(sizes[:1], tf.bool), tf.not_equal(sizes[1:], sizes[:-1])], 0)
        found = tf.boolean_mask(where, begins), tf.boolean_mask(sizes, begins)
        return [*super().encode(vector, variables), tf.cast(found[0], tf.int32), found[1]]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return signs times magnitudes: zero before the first magnitude, NaN where the sign is not finite."""
        signs, begins, sizes = wire
        which = tf.searchsorted(begins, tf.range(size), side="right")
        scales = tf.gather(tf.concat([[0.0], sizes], 0), which)
        return tf.math.multiply_no_nan(scales, super().decode([signs], size))

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of `Signs`, and of an index and a float for each variable and each cut between slices."""
        return super().bytes(sizes) + (INDEX_BYTES + FLOAT_BYTES) * (self.variables + len(sizes) - 1)
