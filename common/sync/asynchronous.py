"""Nobody waits: each message is folded when it arrives, with a lock or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..lazy import tf
from .gate import Gate
from .store import Store, Tensor, WorkerSlot


@dataclass(frozen=True)
class Async(Gate):
    """Nobody waits: each message is folded when it arrives, under the lock."""

    simulated = True

    def exchange(self, ps: Store, slot: WorkerSlot, message: Tensor) -> Tensor:
        """Lock; staleness; update; version + 1; read the reply; unlock."""
        parts = ps.receive(slot, message)
        with ps.event(slot, parts):
            # Laid down before the next update, which would have to copy a center that is still on its way.
            replies = ps.each_slice(lambda _, reply: ps.share(reply), ps.fold(slot, parts))
            ps.note_pull(slot)
        return ps.reply(replies)

    def push(self, ps: Store, slot: WorkerSlot, message: Tensor) -> None:
        """The same without the reply."""
        parts = ps.receive(slot, message)
        with ps.event(slot, parts):
            ps.fold(slot, parts, event="push")

    def gather(self, ps: Store, slot: WorkerSlot, indices: Tensor) -> Tensor:
        """Lock; read; unlock."""
        return ps.gather(slot, indices, locked=True)


@dataclass(frozen=True)
class Unlocked(Gate):
    """Hogwild: no lock at all. Reads may mix versions, and the recorded versions are approximate."""

    simulated = True

    def exchange(self, ps: Store, slot: WorkerSlot, message: Tensor) -> Tensor:
        """Update in place and read, with nothing to keep others out."""
        with self._received(ps, slot, message) as parts:
            replies = ps.fold(slot, parts, locked=False)
            ps.note_pull(slot)
        return ps.reply(replies)

    def push(self, ps: Store, slot: WorkerSlot, message: Tensor) -> None:
        """Update in place."""
        with self._received(ps, slot, message) as parts:
            ps.fold(slot, parts, event="push", locked=False)

    def gather(self, ps: Store, slot: WorkerSlot, indices: Tensor) -> Tensor:
        """Read, whatever others are writing."""
        return ps.gather(slot, indices, locked=False)

    @contextmanager
    def _received(self, ps: Store, slot: WorkerSlot, message: Tensor) -> Iterator[list[Any]]:
        """What is built inside happens once the whole message is there, and finite; the staleness is taken then."""
        parts = ps.receive(slot, message)
        with tf.control_dependencies([ps.check(parts)]):
            yield parts
