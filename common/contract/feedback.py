"""Error feedback: what a codec leaves out of a message stays with the worker, for the next one; see `rounding`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..lazy import tf
from ..messages.codec import Codec
from ..messages.cut import cut_into, joined
from ..sync.store import Tensor


@dataclass(frozen=True)
class WithMemory(Codec):
    """A codec with error feedback.

    Args:
        rounding: the codec that compresses.
        decay: factor of the residual in each message.
        subtraction: fraction of what was sent that leaves the residual.
        forgets: True if elements of the residual become zero that are not finite, after a message that was not; the
            server leaves such a message out, and the next one may be right again.
    """

    rounding: Codec
    decay: float = 1.0
    subtraction: float = 1.0
    forgets: bool = False

    def local_variables(self, vector: Tensor) -> Mapping[str, Tensor]:
        """Return the initial residual, zero."""
        return {"memory": 0 * vector}

    @property
    def spreads(self) -> bool:
        """True if the inner codec spreads elements."""
        return self.rounding.spreads

    def send(self, message: Tensor, sizes: Sequence[int], variables: Sequence[Any], worker: Any) -> Sequence[Any]:
        """Encode the sum of the message and the residual; the error of that is the new residual."""
        for local, part in zip(variables, cut_into(message, sizes), strict=True):
            if self.decay != 1:
                local.memory.assign(self.decay * local.memory)
            local.memory.assign_add(part)  # in place: a message may be large
        total = joined([local.memory.read_value() for local in variables])
        wires = self.rounding.send(total, sizes, variables, worker)
        for local, wire, size in zip(variables, wires, sizes, strict=True):
            arrives = self.rounding.decode(wire, size)
            local.memory.assign_sub(arrives if self.subtraction == 1 else self.subtraction * arrives)
            if self.forgets:
                left = local.memory.read_value()
                local.memory.assign(tf.where(tf.math.is_finite(left), left, 0.0))
        return wires

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Decode with the inner codec."""
        return self.rounding.decode(wire, size)

    def bytes(self, sizes: Sequence[int]) -> float:
        """Return the bytes of the inner codec."""
        return self.rounding.bytes(sizes)

    def unpacked(self) -> Codec:
        """Return the inner codec with shapes known in advance, with error feedback."""
        return replace(self, rounding=self.rounding.unpacked())

    def for_model(self, variables: int) -> Codec:
        """Return the inner codec for that model, with error feedback."""
        return replace(self, rounding=self.rounding.for_model(variables))


@dataclass(frozen=True)
class OfCoefficients(WithMemory):
    """A `DCT` with error feedback whose decoded messages are transforms, [n]: a server inverts their mean alone."""

    rounding: Any  # a `DCT`

    def decode(self, wire: Sequence[Tensor], size: int) -> Tensor:
        """Return the coefficients, zero where none was sent."""
        return self.rounding.coefficients(wire, size)
