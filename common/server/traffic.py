"""The bytes of each event, by codec and synchronization rule, in pure Python, as virtual time uses them, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..contract.rounds import USUAL
from ..contract.scheme import Scheme
from ..messages.codec import FLOAT_BYTES, Codec
from ..sync.store import Event

LAYERS = 24  # of a model of which only the number of parameters is known


def square_layers(parameters: int, layers: int = LAYERS) -> list[tuple[int, ...]]:
    """Return the shapes of a model of so many square matrices, about equal, and a vector of the other parameters."""
    layers = min(layers, parameters)
    side = math.isqrt(parameters // layers)
    return [*[(side, side)] * layers, (parameters - layers * side**2,)]


@dataclass(frozen=True)
class Traffic:
    """Bytes of the rounds of each kind, and of the events that end none, to the center and back.

    Args:
        scheme: the algorithm.
        codec: codec of its messages, but of those in kinds of rounds that have one of their own.
        workers: number of workers, W.
        sizes: sizes of the slices of the center.
        state_size: S, floats of the model's non-trainable state, which are sent with each message.
        shapes: shapes of the model's variables; if they are not known, those of `square_layers`.
        kind: name of a kind of rounds with codecs of its own; empty for the others.
    """

    scheme: Scheme
    codec: Codec
    workers: int
    sizes: Sequence[int]
    state_size: int = 0
    shapes: Sequence[tuple[int, ...]] = ()
    kind: str = ""

    @property
    def vectors(self) -> Sequence[float]:
        """Bytes of each vector that a worker sends in a round: without a ps, of each mean of `Scheme.message_sizes`.

        These, `message` and `reply` are those of kinds of rounds without codecs of their own.
        """
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
        gossips = self.scheme.sync.gossips  # a worker then receives messages of others
        codec = self.codec if gossips else self.scheme.codecs(self.kind)[1].for_workers(self.workers)
        return FLOAT_BYTES * sum(means) + codec.bytes(self._slices(last))

    @property
    def apart(self) -> Mapping[str, tuple[float, float]]:
        """Bytes of message and reply of each kind of rounds that has codecs of its own."""
        found = {name: self._of(name) for name, kind in self.scheme.kinds.items() if kind.codec}
        return {name: (of_kind.message, of_kind.reply) for name, of_kind in found.items()}

    def _of(self, kind: str) -> Traffic:
        """Return the traffic with the codecs of a kind of rounds."""
        return replace(self, kind=kind, codec=self.scheme.codecs(kind)[0].for_model(len(self.shapes)))

    @property
    def center(self) -> float:
        """Bytes of a worker's first read of the center; 0 if it keeps no copy."""
        return 0 if self.codec.reads else FLOAT_BYTES * sum(self.sizes)

    @property
    def of_kinds(self) -> Mapping[str, tuple[float, float]]:
        """Bytes up and down of a round by the name of its kind, and of each event that ends no round, by its name."""
        apart, kinds = self.apart, {**USUAL, **self.scheme.kinds}
        of_rounds = {
            name: self._of_event(kind.event, *apart.get(name, (self.message, self.reply)))
            for name, kind in kinds.items()
        }
        # No worker sends or receives what travels up or down between servers.
        return {**of_rounds, "join": (0, self.center), **dict.fromkeys(("up", "down"), (0, 0))}

    def _of_event(self, event: Event, message: float, reply: float) -> tuple[float, float]:
        """Return the bytes up and down of an event with a message and a reply of these bytes."""
        sync = self.scheme.sync
        up, down = sync.traffic(self.workers)
        asked, read = self.codec.reads or (0, 0)
        if sync.is_collective and not sync.gossips:
            *means, last = self.vectors
            first, second = halves(last, reply - sum(means), self.workers)
            message, reply = sum(means) + first, sum(means) + second
        of_events = {"exchange": (up * message, down * reply), "push": (up * message + asked, read)}
        return of_events.get(event, (0, self.center))

    def moved(self, number: Mapping[str, int]) -> tuple[float, float]:
        """Return the bytes up and down of rounds and other events, given their numbers as in `of_kinds`."""
        of_kinds = self.of_kinds
        up, down = (sum(number[name] * of_kinds[name][way] for name in number) for way in (0, 1))
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
