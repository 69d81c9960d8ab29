"""Quantising codecs: `--codec` sends the messages of any scheme in fewer bits, with error feedback.

The residual of a quantised message is added to the next one (error feedback): with Q the rounding, u a message and e
the worker's residual,

    send Q(u + e),  e ← u + e − Q(u + e)

so the sum of the sent messages and the residual is the sum of all messages, of whatever kind: gradients, sums of
gradients, differences, or parameters.

A reply has no error feedback, because the center has many readers. It is rounded only in schemes whose workers push a
gradient and replace their parameters by the center, which use the reply for nothing but the next gradient. There small
updates add up in the float32 center on the ps, as in the master weights of mixed-precision training. A worker that
continues from the reply by itself and sends its parameters would bring the rounding error into the center, so such a
scheme has replies in float32. So has int8, because a byte is too coarse for parameters.

References: Seide, Fu, Droppo, Li, Yu, *1-Bit Stochastic Gradient Descent*, Interspeech 2014 (the memory); Karimireddy,
Rebjock, Stich, Jaggi, *Error Feedback Fixes SignSGD and other Gradient Compression Schemes*, ICML 2019,
arXiv:1901.09847; Micikevicius et al., *Mixed Precision Training*, ICLR 2018, arXiv:1710.03740 (master weights);
Dettmers, Lewis, Shleifer, Zettlemoyer, *8-bit Optimizers via Block-wise Quantization*, ICLR 2022, arXiv:2110.02861 (a
scale for each block).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..arguments import one_of
from ..errors import UserError
from ..lazy import tf
from ..messages.codec import FLOAT_BYTES, Codec
from ..sync.store import Tensor
from .scheme import Scheme

BLOCK = 256  # consecutive elements of a vector that share a scale

LARGEST = 127  # largest int8 whose negative is an int8, too


@dataclass(frozen=True)
class BFloat16(Codec):
    """The upper half of each float32, rounded to the nearest, to even in the middle: eight bits of precision."""

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return the vector as bfloat16, [n]."""
        return [tf.cast(vector, tf.bfloat16)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return the numbers as float32; elements that were not finite still are not."""
        return tf.cast(wire[0], tf.float32)

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return two bytes for each element."""
        return 2 * sum(sizes)


@dataclass(frozen=True)
class Int8(Codec):
    """Whole numbers from -127 to 127, and a scale for each `BLOCK`: its largest element by size is 127.

    Rounded to the nearest, to even in the middle. A block with an element that is not finite is not finite as a whole.
    """

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Return numbers [n] and scales [(n + BLOCK - 1) / BLOCK]."""
        size = int(vector.shape[0])
        blocks = _blocks(vector)
        scales = tf.reduce_max(tf.abs(blocks), 1) / LARGEST
        steps = tf.where(tf.equal(scales, 0), 1.0, scales)
        numbers = tf.cast(tf.round(blocks / steps[:, None]), tf.int8)
        return [tf.reshape(numbers, [-1])[:size], scales]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return numbers times scales; a block whose scale is not finite has no finite element."""
        numbers, scales = wire
        return tf.reshape(_blocks(tf.cast(numbers, tf.float32)) * scales[:, None], [-1])[:size]

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes: one for each element, and a float for each block; each slice begins a new block."""
        return sum(sizes) + FLOAT_BYTES * sum(-(-size // BLOCK) for size in sizes)


def _blocks(vector: Tensor) -> Tensor:
    """Return a vector [n] as blocks, [m, BLOCK], padded with zeros."""
    missing = -int(vector.shape[0]) % BLOCK
    return tf.reshape(tf.pad(vector, [[0, missing]]) if missing else vector, [-1, BLOCK])


@dataclass(frozen=True)
class WithMemory(Codec):
    """A quantising codec with error feedback.

    Args:
        rounding: the codec that quantises.
    """

    rounding: Codec

    def local_variables(self, vector: Tensor) -> Mapping[str, Tensor]:
        """Return the initial residual, zero."""
        return {"memory": 0 * vector}

    def encode(self, vector: Tensor, variables: Any) -> Sequence[Tensor]:
        """Encode the sum of the vector and the residual; the rounding error is the new residual."""
        variables.memory.assign_add(vector)  # in place: a message may be large
        wire = self.rounding.encode(variables.memory.read_value(), None)
        variables.memory.assign_sub(self.rounding.decode(wire, int(vector.shape[0])))
        return wire

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Decode with the inner codec."""
        return self.rounding.decode(wire, size)

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of the inner codec."""
        return self.rounding.bytes(sizes)


Rounding = Literal["float32", "bf16", "int8"]

# By name: the codec of messages, and that of replies in schemes whose replies may be rounded.
CODECS: Mapping[str, tuple[Codec, Codec]] = {
    "bf16": (WithMemory(BFloat16()), BFloat16()),
    "int8": (WithMemory(Int8()), Codec()),
}


def rounded(scheme: Scheme, codec: Rounding) -> Scheme:
    """Return the scheme with a quantising codec for its messages, and for its replies if they may be rounded.

    Raises:
        UserError: the scheme has a codec of its own, or no parameter server.
    """
    one_of(("float32", *CODECS), codec=codec)
    if codec == "float32":
        return scheme
    kind, name = type(scheme), scheme.name
    if not scheme.sync.uses_ps:
        raise UserError(f"{name} has no parameter server to round for: leave codec out. Received: codec={codec}")
    if (kind.codec, kind.reply_codec) != (Scheme.codec, Scheme.reply_codec):
        raise UserError(f"{name} has a codec of its own: leave codec out. Received: codec={codec}")
    messages, replies = CODECS[codec]
    if only_takes_gradients(kind):
        return scheme.but(codec=messages, reply_codec=replies)
    return scheme.but(codec=messages)


def only_takes_gradients(kind: type[Scheme]) -> bool:
    """Return True if workers use a reply only as the point of the next gradient, and send only that gradient."""
    questions = ("gradient_point", "local_step", "message", "on_reply", "local_variables")
    return all(getattr(kind, name) is getattr(Scheme, name) for name in questions)
