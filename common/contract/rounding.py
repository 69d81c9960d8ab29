"""Codecs for `--codec NAME:key=value[,...]`: messages of any scheme in fewer bytes.

A codec C compresses a message u. With error feedback (`memory=yes`), where e is the worker's residual,

    send C(u + e),  e ← u + e − C(u + e)

so the sum of the sent messages and the residual is the sum of all messages: gradients, sums of gradients, differences,
or parameters. Without it (`memory=no`) the residual is lost. That only adds noise with `qsgd` and `randomk`, which are
unbiased; with the others a run may diverge.

    bf16      the upper half of each float32
    int8      whole numbers from -127 to 127, and a scale for each block
    int4      whole numbers from -7 to 7, and a scale for each block
    fp4       floats of two exponent bits and one of mantissa (E2M1), and a scale for each block
    qsgd      ‖u‖₂ sign(u) l/s for each bucket, l one of the two whole numbers beside s |u|/‖u‖₂, at random and unbiased
    topk      the elements of largest magnitude of the whole message
    randomk   elements at random; without memory multiplied by P/k, so that they are unbiased
    sign      (‖u‖₁/d) sign(u) for each variable of the model, of d elements
    dct       the largest coefficients of the discrete cosine transform of each chunk

A reply has no error feedback, because the center has many readers. It is compressed with `bf16` alone, and only in
schemes whose workers push a gradient and replace their parameters by the center, which use the reply for nothing but
the next gradient. There small updates add up in the float32 center on the ps, as in the master weights of
mixed-precision training. A worker that continues from the reply by itself and sends its parameters would bring the
rounding error into the center, so such a scheme has replies in float32.

References: Seide, Fu, Droppo, Li, Yu, *1-Bit Stochastic Gradient Descent*, Interspeech 2014 (the memory); Karimireddy,
Rebjock, Stich, Jaggi, *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*, ICML 2019,
arXiv:1901.09847 (`sign`); Stich, Cordonnier, Jaggi, *Sparsified SGD with Memory*, NeurIPS 2018, arXiv:1809.07599
(`topk`, `randomk`); Alistarh, Grubic, Li, Tomioka, Vojnovic, *QSGD*, NIPS 2017, arXiv:1610.02132; Micikevicius et al.,
*Mixed Precision Training*, ICLR 2018, arXiv:1710.03740 (master weights); Dettmers, Lewis, Shleifer, Zettlemoyer, *8-bit
Optimizers via Block-wise Quantization*, ICLR 2022, arXiv:2110.02861 (a scale for each block); Rouhani et al.,
*Microscaling Data Formats for Deep Learning*, 2023, arXiv:2310.10537 (E2M1); Peng et al., *DeMo: Decoupled
Momentum Optimization*, ICLR 2026, arXiv:2411.19870 (`dct`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from ..arguments import at_least, fraction, one_of
from ..errors import UserError
from ..lazy import tf
from ..messages.codec import FLOAT_BYTES, INDEX_BYTES, Codec, Coordinates, ScaledSigns, largest_number, packed, unpacked
from ..messages.cut import cut_into
from ..spec import parse
from ..sync.store import Tensor
from .feedback import WithMemory
from .optimizers import scaled_signs, top_k
from .scheme import Scheme
from .seeded import OF_CODEC
from .views import Worker

LARGEST = largest_number(8)  # of an int8 whose negative is an int8, too


@dataclass(frozen=True, kw_only=True)
class Compressor(Codec):
    """A codec for `--codec`; its fields are its options."""

    rounds_replies: ClassVar[bool] = False  # also encodes replies, of schemes that may have rounded ones
    fits_parameters: ClassVar[bool] = (
        False  # error feedback makes up for its error in parameters, not only in gradients
    )

    memory: str = "yes"
    """Error feedback: yes, or no."""

    def __post_init__(self) -> None:
        one_of(("yes", "no"), memory=self.memory)


@dataclass(frozen=True, kw_only=True)
class BFloat16(Compressor):
    """The upper half of each float32, rounded to the nearest, to even in the middle: eight bits of precision."""

    rounds_replies = True
    fits_parameters = True

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return the vector as bfloat16, [n]."""
        return [tf.cast(vector, tf.bfloat16)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return the numbers as float32; elements that were not finite still are not."""
        return tf.cast(wire[0], tf.float32)

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return two bytes for each element."""
        return 2 * sum(sizes)


@dataclass(frozen=True, kw_only=True)
class InBlocks(Compressor):
    """A codec with a float for each block of elements. A block with an element that is not finite is so as a whole.

    Each slice of a message begins a new block.
    """

    block: int = 256
    """Elements of a block."""
    bits: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, block=self.block)

    def in_blocks(self, vector: Tensor) -> Tensor:
        """Return a vector [n] as blocks, [m, block], padded with zeros; a block is at most n long."""
        size = int(vector.shape[0])
        block = min(self.block, max(size, 1))  # a slice may be shorter than a block
        return tf.reshape(tf.pad(vector, [[0, -size % block]]) if size % block else vector, [-1, block])

    def scaled(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """Return numbers [n] times the scale of their block, [m]."""
        return tf.reshape(self.in_blocks(numbers) * scales[:, None], [-1])[: int(numbers.shape[0])]

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes: `bits` for each element, rounded up on each slice, and a float for each block."""
        return sum(-(-size * self.bits // 8) + FLOAT_BYTES * -(-size // self.block) for size in sizes)


@dataclass(frozen=True, kw_only=True)
class Int8(InBlocks):
    """Whole numbers from -127 to 127, and a scale for each block: its largest element by size is 127.

    Rounded to the nearest, to even in the middle.
    """

    fits_parameters = True

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return numbers [n] and scales [m]."""
        blocks = self.in_blocks(vector)
        scales = tf.reduce_max(tf.abs(blocks), 1) / LARGEST
        numbers = tf.cast(tf.round(blocks / _steps(scales)), tf.int8)
        return [tf.reshape(numbers, [-1])[: int(vector.shape[0])], scales]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return numbers times scales; a block whose scale is not finite has no finite element."""
        return self.scaled(tf.cast(wire[0], tf.float32), wire[1])


def _steps(scales: Tensor) -> Tensor:
    """Return the steps of blocks with these scales, [m, 1]; where all elements are zero, any will do."""
    return tf.where(tf.equal(scales, 0), 1.0, scales)[:, None]


@dataclass(frozen=True, kw_only=True)
class Int4(InBlocks):
    """Whole numbers from -7 to 7 in four bits, and a scale for each block; rounded to the nearest level."""

    block: int = 64
    bits = 4
    levels: ClassVar[Sequence[float]] = tuple(range(-7, 8))

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return numbers of levels, two in a byte, and scales [m]."""
        blocks, levels = self.in_blocks(vector), tf.constant(self.levels, tf.float32)
        scales = tf.reduce_max(tf.abs(blocks), 1) / self.levels[-1]
        numbers = tf.searchsorted((levels[1:] + levels[:-1]) / 2, tf.reshape(blocks / _steps(scales), [-1]))
        return [packed(numbers[: int(vector.shape[0])], 4), scales]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return levels times scales; a block whose scale is not finite has no finite element."""
        return self.scaled(tf.gather(tf.constant(self.levels, tf.float32), unpacked(wire[0], 4, size)), wire[1])


@dataclass(frozen=True, kw_only=True)
class FP4(Int4):
    """Floats of four bits, E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, and a scale for each block."""

    levels = (-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6)


@dataclass(frozen=True, kw_only=True)
class QSGD(InBlocks):
    """Whole numbers from -s to s in two, four or eight bits, rounded at random, and the norm of each block.

    With n elements in a block, E‖C(u) − u‖² is at most ω ‖u‖² with ω = min(n/s², √n/s). Error feedback needs an error
    smaller than u, so with memory the decoded message is divided by 1 + ω.
    """

    memory: str = "no"
    block: int = 512
    bits: int = 4  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in (2, 4, 8):
            raise UserError(f"bits of the codec qsgd must be 2, 4 or 8. Received: {self.bits}")

    @property
    def most(self) -> int:
        """The largest number, s."""
        return largest_number(self.bits)

    @property
    def factor(self) -> float:
        """Factor of a decoded message."""
        omega = min(self.block / self.most**2, math.sqrt(self.block) / self.most)
        return 1 / (1 + omega) if self.memory == "yes" else 1.0

    def send(self, message: Tensor, sizes: Sequence[int], variables: Sequence[Any], worker: Any) -> Sequence[Any]:
        """Encode each slice with its part of the worker's random numbers of the round."""
        return [*map(self._rounded, cut_into(message, sizes), cut_into(_random(worker), sizes))]

    def _rounded(self, vector: Tensor, uniform: Tensor) -> Sequence[Tensor]:
        """Return the numbers, packed, and the norms, [m]."""
        blocks = self.in_blocks(vector)
        norms = tf.norm(blocks, axis=1)
        numbers = tf.floor(tf.abs(blocks) / _steps(norms / self.most) + self.in_blocks(uniform))
        numbers = tf.sign(blocks) * tf.minimum(numbers, float(self.most))
        numbers = tf.where(tf.math.is_finite(norms)[:, None], numbers, 0.0) + self.most
        return [packed(tf.reshape(numbers, [-1])[: int(vector.shape[0])], self.bits), norms]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return numbers times norms; a block whose norm is not finite has no finite element."""
        numbers = tf.cast(unpacked(wire[0], self.bits, size) - self.most, tf.float32)
        return self.scaled(numbers, wire[1] * (self.factor / self.most))


@dataclass(frozen=True, kw_only=True)
class DCT(Compressor):
    """The largest coefficients of the cosine transform of each block (type 2, orthonormal), with their indices.

    Each slice of a message begins a new block; the last block of a slice may be shorter. A variable does not begin one,
    so the end of a variable and the begin of the next have coefficients in common.
    """

    block: int = 64
    """Elements of a block."""
    kept: int = 4
    """Coefficients of a block that are sent."""
    spreads: ClassVar[bool] = True  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, block=self.block, kept=self.kept)

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return the indices of the largest coefficients in the transform [n], and their values, [m] each."""
        indices, values = [], []
        for begin, blocks in self._blocks(vector):
            number, size = blocks.shape
            coefficients = tf.matmul(blocks, _cosines(size), transpose_b=True)
            _, largest = tf.math.top_k(tf.abs(coefficients), min(self.kept, size))
            indices.append(tf.reshape(begin + size * tf.range(number)[:, None] + largest, [-1]))
            values.append(tf.reshape(tf.gather(coefficients, largest, batch_dims=1), [-1]))
        return [tf.concat(indices, 0), tf.concat(values, 0)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return the inverse transform of the coefficients, zero where none was sent."""
        return self.inverse(self.coefficients(wire, size))

    def coefficients(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return the transform of a slice, [n], with zeros where no coefficient was sent."""
        indices, values = wire
        return tf.scatter_nd(indices[:, None], values, [size])

    def inverse(self, coefficients: Tensor) -> Tensor:
        """Return the slice with that transform, [n]."""
        parts = [
            tf.reshape(tf.matmul(blocks, _cosines(blocks.shape[1])), [-1]) for _, blocks in self._blocks(coefficients)
        ]
        return tf.concat(parts, 0)

    def _blocks(self, vector: Tensor) -> list[tuple[int, Tensor]]:
        """Return the whole blocks of a vector, [m, block], and the rest, [1, n]; each with the index of its first."""
        whole = vector.shape[0] // self.block * self.block
        parts = (0, vector[:whole], self.block), (whole, vector[whole:], vector.shape[0] - whole)
        return [(begin, tf.reshape(part, [-1, size])) for begin, part, size in parts if part.shape[0]]

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of an index and a float for each coefficient."""
        count = sum(
            size // self.block * min(self.kept, self.block) + min(self.kept, size % self.block) for size in sizes
        )
        return (INDEX_BYTES + FLOAT_BYTES) * count


def _cosines(size: int) -> Tensor:
    """Return the matrix of the transform, [size, size]: row i has the wave of frequency i."""
    i, j = np.arange(size)[:, None], np.arange(size)
    waves = np.sqrt(2 / size) * np.cos(np.pi * (j + 0.5) * i / size)
    waves[0] /= np.sqrt(2)
    return tf.constant(waves, tf.float32)


def _random(worker: Any) -> Tensor:
    """Return the random numbers [P] of a worker for the codec of the message of its round."""
    return worker.uniform(OF_CODEC, worker.index, worker.round)


@dataclass(frozen=True, kw_only=True)
class OfWholeMessage(Compressor):
    """A codec that compresses the whole message [P]; the result is cut into slices, and sent without loss."""

    @property
    def wire(self) -> Codec:
        """The lossless codec of a compressed slice."""
        raise NotImplementedError

    def compressed(self, message: Tensor, worker: Worker) -> Tensor:
        """Return the compressed message, [P]."""
        raise NotImplementedError

    def send(self, message: Tensor, sizes: Sequence[int], variables: Sequence[Any], worker: Any) -> Sequence[Any]:
        """Encode the slices of the compressed message."""
        return self.wire.send(self.compressed(message, worker), sizes, variables, worker)

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Decode a slice of the compressed message."""
        return self.wire.decode(wire, size)

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of a compressed message."""
        return self.wire.bytes(sizes)

    def unpacked(self) -> Codec:
        """Return the codec that sends the compressed message as it is."""
        return Unpacked(memory=self.memory, of=self)


@dataclass(frozen=True, kw_only=True)
class Unpacked(OfWholeMessage):
    """A codec of whole messages whose slices are sent as they are.

    Args:
        of: the codec that compresses.
    """

    of: OfWholeMessage

    @property
    def wire(self) -> Codec:
        """The codec of vectors as they are."""
        return Codec()

    def compressed(self, message: Tensor, worker: Worker) -> Tensor:
        """Return the compressed message, [P]."""
        return self.of.compressed(message, worker)


@dataclass(frozen=True, kw_only=True)
class TopK(OfWholeMessage):
    """The elements of largest magnitude of the whole message, each with its index."""

    fraction: float = 0.01
    """Fraction of the elements that are sent, one at least."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction(fraction=self.fraction)

    @property
    def wire(self) -> Codec:
        """The codec of a sparse vector."""
        return Coordinates(self.fraction)

    def compressed(self, message: Tensor, worker: Worker) -> Tensor:
        """Set all but the largest elements to zero."""
        return top_k(message, self.fraction)


@dataclass(frozen=True, kw_only=True)
class RandomK(TopK):
    """Elements at random, each with its index; without memory multiplied by P/k, so that they are unbiased."""

    def compressed(self, message: Tensor, worker: Worker) -> Tensor:
        """Set all elements but those that were drawn to zero; elements that are not finite are sent as well."""
        size = int(message.shape[0])
        drawn = (top_k(1 - _random(worker), self.fraction) > 0) | ~tf.math.is_finite(message)  # 1 - u is above zero
        factor = size / max(1, int(self.fraction * size)) if self.memory == "no" else 1.0
        return tf.where(drawn, factor * message, 0.0)


@dataclass(frozen=True, kw_only=True)
class Sign(OfWholeMessage):
    """The sign of each element, times the mean magnitude of its variable of the model."""

    @property
    def wire(self) -> Codec:
        """The codec of scaled signs."""
        return ScaledSigns()

    def for_model(self, variables: int) -> Codec:
        """Return the codec of scaled signs for that model, which has the same bytes."""
        return self.wire.for_model(variables)

    def compressed(self, message: Tensor, worker: Worker) -> Tensor:
        """Return scaled signs."""
        return scaled_signs(message, worker.shapes)


CODECS = {
    **{"bf16": BFloat16, "int8": Int8, "int4": Int4, "fp4": FP4, "qsgd": QSGD},
    **{"topk": TopK, "randomk": RandomK, "sign": Sign, "dct": DCT},
}


def codec_of(text: str) -> Compressor | None:
    """Return the codec that `NAME:key=value[,...]` names, None for `float32`; raises `UserError` if it names none."""
    if not isinstance(text, str):
        raise UserError(f"codec must be a text in quotes, as in 'topk:fraction=0.1'. Received: codec={text!r}")
    kinds = {"float32": lambda: None, **CODECS}
    name, options = parse("codec", text, kinds)
    return kinds[name](**options)


def with_memory(text: str) -> Codec:
    """Return the codec that a text names, with error feedback; `float32` is none."""
    compressor = codec_of(text)
    return Codec() if compressor is None else WithMemory(replace(compressor, memory="yes"))


def _refuse(**given: Any) -> None:
    ((name, text),) = given.items()
    if not isinstance(text, str):
        raise UserError(f"{name} must be a text: topk, or with options, 'topk:fraction=0.1'. Received: {text!r}")
    codec_of(text)


Compression = Annotated[str, _refuse]
"""The name of a codec, with options: `topk:fraction=0.1`."""


def rounded(scheme: Scheme, codec: str) -> Scheme:
    """Return the scheme with a codec for its messages, and for its replies if they may be rounded.

    Raises:
        UserError: the scheme has a codec of its own, or messages that the codec does not fit.
    """
    if (compressor := codec_of(codec)) is None:
        return scheme
    kind, name = type(scheme), scheme.name
    if not can_encode(scheme):
        raise UserError(
            f"{name} has no parameter server, and no neighbours to which a worker sends one message: leave codec out. "
            f"Received: codec={codec}"
        )
    if kind.codec is not Scheme.codec or type(scheme.codec) is not Codec:
        raise UserError(f"{name} has a codec of its own: leave codec out. Received: codec={codec}")
    if scheme.sends_in_turn:
        raise UserError(f"{name} sends several vectors in turn: leave codec out. Received: codec={codec}")
    if kind.sends == "params" and not compressor.fits_parameters:
        fitting = ", ".join(name for name, other in CODECS.items() if other.fits_parameters)
        raise UserError(f"{name} sends parameters, for which a codec is one of {fitting}. Received: codec={codec}")
    forgets = scheme.sync.outliers > 0
    messages = WithMemory(compressor, forgets=forgets) if compressor.memory == "yes" else compressor
    if compressor.rounds_replies and only_takes_gradients(scheme):
        return scheme.but(codec=(messages, compressor))
    return scheme.but(codec=messages)


def can_encode(scheme: Scheme) -> bool:
    """Return True if a codec can encode messages: to a ps, or one of all parameters to neighbours that wait for it."""
    sync = scheme.sync
    return sync.uses_ps or (sync.gossips and not sync.in_pairs and not scheme.declares_sizes)


def only_takes_gradients(scheme: Scheme) -> bool:
    """Return True if workers use a reply only as the point of the next gradient, and send only that gradient."""
    questions = ("gradient_point", "local_step", "message", "on_reply", "local_variables")
    overridden = [name for name in questions if getattr(type(scheme), name) is not getattr(Scheme, name)]
    return not overridden and scheme.sends == "gradient" and scheme.inner is None
