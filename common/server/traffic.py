"""The bytes of each event, by codec and synchronization rule, in pure Python, as virtual time uses them, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..contract.scheme import Scheme
from ..messages.codec import FLOAT_BYTES, Codec


@dataclass(frozen=True)
class Traffic:
    """Bytes of each kind of event of `trace.EVENTS`, to the center and back.

    Args:
        scheme: the algorithm.
        codec: codec of its messages.
        workers: number of workers, W.
        sizes: sizes of the slices of the center.
        state_size: S, floats of the model's non-trainable state, which are sent with each message.
    """

    scheme: Scheme
    codec: Codec
    workers: int
    sizes: Sequence[int]
    state_size: int = 0

    @property
    def message(self) -> float:
        """Bytes of one message as it leaves a worker."""
        scalars = len(self.scheme.scalars) * len(self.sizes)  # each slice gets all scalars
        return self.scheme.vectors * self.codec.bytes(self.sizes) + FLOAT_BYTES * (scalars + self.state_size)

    @property
    def reply(self) -> float:
        """Bytes of one reply."""
        return self.scheme.vectors * self.scheme.reply_codec.for_workers(self.workers).bytes(self.sizes)

    @property
    def center(self) -> float:
        """Bytes of a worker's first read of the center; 0 if it keeps no copy."""
        return 0 if self.codec.reads else FLOAT_BYTES * sum(self.sizes)

    @property
    def of_events(self) -> Mapping[str, tuple[float, float]]:
        """Bytes up and down by name of the event."""
        up, down = self.scheme.sync.traffic(self.workers)
        asked, read = self.codec.reads or (0, 0)
        return {
            "exchange": (up * self.message, down * self.reply),
            "push": (up * self.message + asked, read),
            "pull": (0, self.center),
            "join": (0, self.center),
        }
