"""Asynchronous rules: no worker waits, and each message is applied when it arrives, with a lock or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from ..lazy import tf
from .store import Message, Store, Tensor, WorkerSlot
from .synchronization import Synchronization


@dataclass(frozen=True)
class Async(Synchronization):
    """Asynchronous: no worker waits, and each message is applied under the lock when it arrives.

    Attributes:
        locked: False for a rule without the lock.
    """

    simulated = True
    locked: ClassVar[bool] = True

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Lock, take the staleness, update, count the version, read the reply, unlock."""
        with self._received(ps, slot, message) as (slot, slices):
            replies = ps.apply(slot, slices, locked=self.locked)
            if self.locked:
                # Copy the reply into shared memory under the lock. Otherwise the next update would find a center that
                # is still being sent, and would have to copy it before it writes.
                replies = ps.center.each_slice(lambda _, reply: ps.share(reply), replies)
            ps.center.note_pull(slot)
        return ps.center.reply(replies)

    def push(self, ps: Store, slot: WorkerSlot, message: Message) -> None:
        """Lock, take the staleness, update, count the version, unlock."""
        with self._received(ps, slot, message) as (slot, slices):
            ps.apply(slot, slices, event="push", locked=self.locked)

    def gather(self, ps: Store, slot: WorkerSlot, indices: Tensor) -> Tensor:
        """Lock, read, unlock."""
        return ps.gather(slot, indices, locked=self.locked)

    @contextmanager
    def _received(self, ps: Store, slot: WorkerSlot, message: Message) -> Iterator[tuple[WorkerSlot, list[Message]]]:
        """Run what is built inside as one event of the worker, once the whole message has arrived."""
        slot, slices = ps.center.receive(slot, message)
        with ps.event(slot, slices):
            yield slot, slices


@dataclass(frozen=True)
class Unlocked(Async):
    """Hogwild: no lock at all. Reads may mix versions, and the recorded versions are approximate."""

    simulated = True
    locked = False

    @contextmanager
    def _received(self, ps: Store, slot: WorkerSlot, message: Message) -> Iterator[tuple[WorkerSlot, list[Message]]]:
        """Run what is built inside once the whole message has arrived and is finite."""
        slot, slices = ps.center.receive(slot, message)
        with tf.control_dependencies([ps.check(slices)]):
            yield slot, slices
