"""Codecs that round off: `--codec` sends the messages of any scheme in fewer bits, and loses nothing for good.

What a message loses by rounding goes with the next one (error feedback): with Q the rounding, u a message and e what
the worker remembers,

    send Q(u + e),  e ← u + e − Q(u + e)

so the sum of what was sent and what is remembered is the sum of all messages, whatever they are: gradients, sums of
them, differences, or parameters.

A reply has no memory, for the center has many readers. It is rounded only where it is nothing but the place of the next
gradient: a scheme whose workers push their gradient and take over the center. There small updates add up in the float32
of the ps, as the master weights of training in mixed precision do. A worker that goes on from the reply by itself, and
sends where it has come to, would bring the rounding into the center: such a scheme has its replies in float32. So has
int8: a byte is too coarse for parameters.

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

from ..errors import UserError, one_of
from ..gates.store import Tensor
from ..lazy import tf
from .codec import FLOAT_BYTES, Codec
from .scheme import Scheme

BLOCK = 256  # elements of a vector that have a scale in common

LARGEST = 127  # number that an int8 holds on both sides of zero


@dataclass(frozen=True)
class BFloat16(Codec):
    """The upper half of each float32, rounded to the nearest, to even in the middle: eight bits of precision."""

    def encode(self, vector: Tensor, kept: Any) -> Sequence[Tensor]:
        """[n], two bytes each."""
        return [tf.cast(vector, tf.bfloat16)]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """The same numbers; what was not finite has stayed so."""
        return tf.cast(wire[0], tf.float32)

    def bytes(self, sizes: Sequence[int]) -> float:
        """Two for each."""
        return 2 * sum(sizes)


@dataclass(frozen=True)
class Int8(Codec):
    """Whole numbers from -127 to 127, and a scale for each `BLOCK`: its largest element by size is 127.

    Rounded to the nearest, to even in the middle. A block with an element that is not finite is not finite as a whole.
    """

    def encode(self, vector: Tensor, kept: Any) -> Sequence[Tensor]:
        """Numbers [n], and scales [(n + BLOCK - 1) / BLOCK]."""
        size = int(vector.shape[0])
        blocks = _blocks(vector)
        scales = tf.reduce_max(tf.abs(blocks), 1) / LARGEST
        steps = tf.where(tf.equal(scales, 0), 1.0, scales)
        numbers = tf.cast(tf.round(blocks / steps[:, None]), tf.int8)
        return [tf.reshape(numbers, [-1])[:size], scales]

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Number times scale. Where the scale is not finite, that is not."""
        numbers, scales = wire
        return tf.reshape(_blocks(tf.cast(numbers, tf.float32)) * scales[:, None], [-1])[:size]

    def bytes(self, sizes: Sequence[int]) -> float:
        """One for each element, and a float for each block; a slice begins a new one."""
        return sum(sizes) + FLOAT_BYTES * sum(-(-size // BLOCK) for size in sizes)


def _blocks(vector: Tensor) -> Tensor:
    """A vector [n] as blocks, [m, BLOCK], with zeros at the end of the last."""
    missing = -int(vector.shape[0]) % BLOCK
    return tf.reshape(tf.pad(vector, [[0, missing]]) if missing else vector, [-1, BLOCK])


@dataclass(frozen=True)
class WithMemory(Codec):
    """Another codec, with error feedback.

    Args:
        rounding: the codec that rounds off.
    """

    rounding: Codec

    def local_variables(self, vector: Tensor) -> Mapping[str, Tensor]:
        """What has been rounded off so far."""
        return {"memory": 0 * vector}

    def encode(self, vector: Tensor, kept: Any) -> Sequence[Tensor]:
        """The vector and what is remembered, rounded off; what that loses is remembered."""
        kept.memory.assign_add(vector)  # in place: a message may be large
        wire = self.rounding.encode(kept.memory.read_value(), None)
        kept.memory.assign_sub(self.rounding.decode(wire, int(vector.shape[0])))
        return wire

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """As without a memory."""
        return self.rounding.decode(wire, size)

    def bytes(self, sizes: Sequence[int]) -> float:
        """As without a memory."""
        return self.rounding.bytes(sizes)


Rounding = Literal["float32", "bf16", "int8"]

# Of messages, and of replies where they may be rounded.
CODECS: Mapping[str, tuple[Codec, Codec]] = {
    "bf16": (WithMemory(BFloat16()), BFloat16()),
    "int8": (WithMemory(Int8()), Codec()),
}


def rounded(scheme: Scheme, codec: Rounding) -> Scheme:
    """The scheme with its messages rounded off, and its replies if it can do with such.

    Raises:
        UserError: its messages have a codec of their own, or do not go to a ps.
    """
    one_of(("float32", *CODECS), codec=codec)
    if codec == "float32":
        return scheme
    kind, name = type(scheme), scheme.name
    if not scheme.gate.uses_ps:
        raise UserError(f"{name} has no parameter server to round for: leave codec out. Received: codec={codec}")
    if (kind.codec, kind.reply_codec) != (Scheme.codec, Scheme.reply_codec):
        raise UserError(f"{name} has a codec of its own: leave codec out. Received: codec={codec}")
    messages, replies = CODECS[codec]
    if only_takes_gradients(kind):
        return scheme.but(codec=messages, reply_codec=replies)
    return scheme.but(codec=messages)


def only_takes_gradients(kind: type[Scheme]) -> bool:
    """True if a reply to a worker is nothing but the place of its next gradient, which is all that it sends."""
    questions = ("gradient_point", "local_step", "message", "adopt", "local_variables")
    return all(getattr(kind, name) is getattr(Scheme, name) for name in questions)
