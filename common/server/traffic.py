"""The bytes of each event, by codec and synchronization rule, in pure Python, as virtual time uses them, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..contract.scheme import Scheme
from ..messages.codec import FLOAT_BYTES, Codec

LAYERS = 24  # of a model of which only the number of parameters is known


def square_layers(parameters: int, layers: int = LAYERS) -> list[tuple[int, ...]]:
    """Return the shapes of a model of so many square matrices, about equal, and a vector of the other parameters."""
    layers = min(layers, parameters)
    side = math.isqrt(parameters // layers)
    return [*[(side, side)] * layers, (parameters - layers * side**2,)]


@dataclass(frozen=True)
class Traffic:
    """Bytes of each kind of event of `trace.EVENTS`, to the center and back.

    Args:
        scheme: the algorithm.
        codec: codec of its messages.
        workers: number of workers, W.
        sizes: sizes of the slices of the center.
        state_size: S, floats of the model's non-trainable state, which are sent with each message.
        shapes: shapes of the model's variables; if they are not known, those of `square_layers`.
    """

    scheme: Scheme
    codec: Codec
    workers: int
    sizes: Sequence[int]
    state_size: int = 0
    shapes: Sequence[tuple[int, ...]] = ()

    @property
    def vectors(self) -> Sequence[float]:
        """Bytes of each vector that a worker sends in a round: without a ps, of each mean of `Scheme.message_sizes`."""
        scalars = len(self.scheme.scalars) * len(self.sizes) if self.scheme.sync.uses_ps else 0  # each slice gets all
        *means, last = self._message_sizes()
        message = self.codec.bytes(self._slices(last)) + FLOAT_BYTES * (scalars + self.state_size)
        return [*(FLOAT_BYTES * size for size in means), message]

    @property
    def message(self) -> float:
        """Bytes of one message as it leaves a worker, with the means that it needs."""
        return sum(self.vectors)

    @property
    def reply(self) -> float:
        """Bytes of one reply."""
        *means, last = self._message_sizes()
        codec = self.scheme.reply_codec.for_workers(self.workers)
        return FLOAT_BYTES * sum(means) + codec.bytes(self._slices(last))

    @property
    def floats(self) -> tuple[float, float]:
        """Bytes of a message and of its reply that are sent as floats, see `Scheme.sent_as_floats`."""
        plain = replace(self, codec=Codec())
        return plain.message, plain.center

    @property
    def center(self) -> float:
        """Bytes of a worker's first read of the center; 0 if it keeps no copy."""
        return 0 if self.codec.reads else FLOAT_BYTES * sum(self.sizes)

    @property
    def of_events(self) -> Mapping[str, tuple[float, float]]:
        """Bytes up and down by name of the event."""
        sync = self.scheme.sync
        up, down = sync.traffic(self.workers)
        asked, read = self.codec.reads or (0, 0)
        message, reply = self.message, self.reply
        if sync.is_collective and not sync.gossips:
            *means, last = self.vectors
            first, second = halves(last, reply - sum(means), self.workers)
            message, reply = sum(means) + first, sum(means) + second
        return {
            "exchange": (up * message, down * reply),
            "push": (up * self.message + asked, read),
            "pull": (0, self.center),
            "join": (0, self.center),
            **dict.fromkeys(("up", "down"), (0, 0)),  # no worker sends or receives them
        }

    def moved(self, number: Mapping[str, int], as_floats: int = 0) -> tuple[float, float]:
        """Return the bytes up and down of events, given the number of each kind.

        Args:
            number: events by name.
            as_floats: exchanges among them that were sent as floats.
        """
        of_events = self.of_events
        coded = [sum(number[event] * of_events[event][way] for event in number) for way in (0, 1)]
        up, down = (
            total + as_floats * (floats - one)
            for total, floats, one in zip(coded, self.floats, of_events["exchange"], strict=True)
        )
        return up, down

    def _message_sizes(self) -> Sequence[int]:
        return self.scheme.message_sizes(self.shapes or square_layers(sum(self.sizes)))

    def _slices(self, size: int) -> Sequence[int]:
        """Return the sizes of the slices of a message: those of the center if it has as many elements."""
        return self.sizes if size == sum(self.sizes) else [size]


def halves(message: float, reply: float, workers: int) -> tuple[float, float]:
    """Return the bytes of the vectors of which a reduction among workers moves (W - 1)/W in each of its halves.

    Messages are added up in slices, then the slices of the sum are gathered, in the size of a reply. If messages are so
    much smaller than their sum, all are gathered instead: that is one half, and a vector of the messages of all.
    """
    return (0.0, workers * message) if workers * message < message + reply else (message, reply)
