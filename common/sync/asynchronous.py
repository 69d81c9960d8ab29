"""Asynchronous rules: no worker waits, and each message is applied when it arrives, with a lock or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from ..arguments import at_least
from ..lazy import tf
from .store import Message, Store, Tensor, WorkerSlot
from .synchronization import Synchronization


@dataclass(frozen=True)
class Async(Synchronization):
    """Asynchronous: no worker waits, and each message is applied under the lock when it arrives.

    Args:
        messages_per_update: number K of messages that make one update. `server_update` is called for each of them, and
            `server.completes` is True for the last one alone. The version, and with it staleness, `evaluate_every` and
            `stop_at_version`, counts updates, not messages. A dropped message does not count.
        drop_after: largest staleness of a message that is merged. An older one is dropped: the version does not change,
            and the worker gets the center. Default: none is dropped.
        warm_start: number of updates that worker 0 makes alone before the others start.
        cancel_late: True if workers stop a computation whose message would be dropped, see `Synchronization`.

    Attributes:
        locked: False for a rule without the lock.
    """

    messages_per_update: int = 1
    drop_after: int | None = None
    warm_start: int = 0
    cancel_late: bool = False
    simulated = True
    locked: ClassVar[bool] = True

    def updates_per_round(self, workers: int) -> float:
        """Return the number of workers, divided by the messages that make an update."""
        return workers / self.messages_per_update

    @property
    def overlaps(self) -> bool:
        """True if no worker waits, each starts from the first center, and messages have the lock and one server."""
        if self.waits:  # a rule that is derived from this one
            return super().overlaps
        return self.kind == "server" and self.locked and not (self.warm_start or self.cancel_late)

    def check(self, workers: int) -> None:
        """Raise `UserError` for an argument that is not of its kind."""
        at_least(1, messages_per_update=self.messages_per_update)
        at_least(0, warm_start=self.warm_start)
        if self.drop_after is not None:
            at_least(0, drop_after=self.drop_after)

    def accepts(self, staleness: Any) -> Any:
        """Return False if the staleness is above `drop_after`."""
        return self.drop_after is None or staleness <= self.drop_after

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Lock, take the staleness, update, count the version, read the reply, unlock."""
        with self._received(ps, slot, message) as (slot, slices):
            replies = ps.apply(slot, slices, locked=self.locked)
            if self.locked:
                # Copy the reply into shared memory under the lock. Otherwise the next update would find a center that
                # is still being sent, and would have to copy it before it writes.
                replies = ps.center.each_slice(lambda _, reply: ps.share(reply), replies)
            ps.center.note_pull(slot)
        return ps.center.reply(replies, slot)

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
