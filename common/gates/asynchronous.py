"""Nobody waits: each message is folded when it arrives, with a lock or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .gate import Event, Gate, ParameterServer, Seat


@dataclass(frozen=True)
class Async(Gate):
    """Nobody waits: each message is folded when it arrives, under the lock."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Lock; staleness; update; version + 1; read the reply; unlock."""
        parts = ps.receive(message)
        with ps.event(seat, parts):
            replies = _fold(ps, seat, parts)
            ps.note_pull(seat)
        return ps.concat(replies)

    def push(self, ps: ParameterServer, seat: Seat, message: Any) -> None:
        """The same without the reply."""
        parts = ps.receive(message)
        with ps.event(seat, parts):
            _fold(ps, seat, parts, "push")

    def gather(self, ps: ParameterServer, seat: Seat, indices: Any) -> Any:
        """Lock; read; unlock."""
        return ps.gather(seat, indices, locked=True)


@dataclass(frozen=True)
class Unlocked(Gate):
    """Hogwild: no lock at all. Reads may mix versions, and the recorded versions are approximate."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Update in place and read, with nothing to keep others out."""
        with self._arrived(ps, message) as parts:
            replies = _fold(ps, seat, parts, locked=False)
            ps.note_pull(seat)
        return ps.concat(replies)

    def push(self, ps: ParameterServer, seat: Seat, message: Any) -> None:
        """Update in place."""
        with self._arrived(ps, message) as parts:
            _fold(ps, seat, parts, "push", locked=False)

    def gather(self, ps: ParameterServer, seat: Seat, indices: Any) -> Any:
        """Read, whatever others are writing."""
        return ps.gather(seat, indices, locked=False)

    @contextmanager
    def _arrived(self, ps: ParameterServer, message: Any) -> Iterator[list[Any]]:
        """What is built inside happens once the message is there: the staleness too is taken then, not earlier."""
        import tensorflow as tf

        parts = ps.receive(message)
        with tf.control_dependencies(tf.nest.flatten(parts, expand_composites=True)):
            yield parts


def _fold(
    ps: ParameterServer, seat: Seat, parts: list[Any], event: Event = "exchange", locked: bool = True
) -> list[Any]:
    """The event of an asynchronous scheme: recorded, every slice updated, the version counted."""
    import tensorflow as tf

    version = ps.read_version()
    staleness = ps.staleness(version, seat)
    with tf.control_dependencies([ps.record(version, seat, staleness, accepted=True, event=event, locked=locked)]):
        replies = ps.update(parts, staleness, version, seat)
        ps.count_updates(1)
    return replies
