"""Asynchronous rules: no worker waits, and each message is applied when it arrives, with a lock or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..lazy import tf
from .store import Message, Store, Tensor, WorkerSlot
from .synchronization import Synchronization


@dataclass(frozen=True)
class Async(Synchronization):
    """Asynchronous: no worker waits, and each message is applied under the lock when it arrives."""

    simulated = True

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Lock, take the staleness, update, count the version, read the reply, unlock."""
        slot, slices = ps.receive(slot, message)
        with ps.event(slot, slices):
            # Copy the reply into shared memory under the lock. Otherwise the next update would find a center that is
            # still being sent, and would have to copy it before it writes.
            replies = ps.each_slice(lambda _, reply: ps.share(reply), ps.apply(slot, slices))
            ps.note_pull(slot)
        return ps.reply(replies)

    def push(self, ps: Store, slot: WorkerSlot, message: Message) -> None:
        """Lock, take the staleness, update, count the version, unlock."""
        slot, slices = ps.receive(slot, message)
        with ps.event(slot, slices):
            ps.apply(slot, slices, event="push")

    def gather(self, ps: Store, slot: WorkerSlot, indices: Tensor) -> Tensor:
        """Lock, read, unlock."""
        return ps.gather(slot, indices, locked=True)


@dataclass(frozen=True)
class Unlocked(Synchronization):
    """Hogwild: no lock at all. Reads may mix versions, and the recorded versions are approximate."""

    simulated = True

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Update in place and read, without a lock."""
        with self._received(ps, slot, message) as (slot, slices):
            replies = ps.apply(slot, slices, locked=False)
            ps.note_pull(slot)
        return ps.reply(replies)

    def push(self, ps: Store, slot: WorkerSlot, message: Message) -> None:
        """Update in place."""
        with self._received(ps, slot, message) as (slot, slices):
            ps.apply(slot, slices, event="push", locked=False)

    def gather(self, ps: Store, slot: WorkerSlot, indices: Tensor) -> Tensor:
        """Read without a lock, while other workers may be writing."""
        return ps.gather(slot, indices, locked=False)

    @contextmanager
    def _received(self, ps: Store, slot: WorkerSlot, message: Message) -> Iterator[tuple[WorkerSlot, list[Message]]]:
        """Run what is built inside once the whole message has arrived and is finite; the staleness is taken then."""
        slot, slices = ps.receive(slot, message)
        with tf.control_dependencies([ps.check(slices)]):
            yield slot, slices
