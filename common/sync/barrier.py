"""A barrier: all wait for all, or for all but a few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, at_least
from ..lazy import tf
from .gate import Gate
from .store import Store, Tensor, WorkerSlot


@dataclass(frozen=True)
class Barrier(Gate):
    """A strict barrier: the mean of one message of each of `workers - backup_workers` workers, then all go on.

    The message that completes the set applies the update and wakes every worker that waits. A message computed on an
    older version is dropped, and its worker goes on at once.

    A run makes as many updates as the worker with the most rounds has, and ends with the last. Whoever is behind then,
    because messages were dropped or because it was away, leaves: what it could still send would be dropped, or be
    all of an update.
    """

    backup_workers: int = 0
    waits = True
    simulated = True
    label = "synchronous"

    def updates_per_round(self, workers: int) -> float:
        """One, of all messages together."""
        del workers
        return 1

    def set_size(self, active: int) -> int:
        """All that are counted on but the backup workers; one at least, for messages may be there of who has left."""
        return max(active - self.backup_workers, 1)

    def check(self, workers: int) -> None:
        """At least one worker must be needed."""
        at_least(0, backup_workers=self.backup_workers)
        if self.backup_workers >= workers:
            raise UserError(
                f"backup_workers must be fewer than the workers. Received: "
                f"backup_workers={self.backup_workers}, workers={workers}"
            )

    def slice_variables(self, ps: Store, part: Any) -> Mapping[str, Tensor]:
        """The sum of messages, and the last reply."""
        return {"inbox": part.no_message, "reply": part.initial}

    def complete(self, ps: Store) -> Tensor:
        """The last version has been reached."""
        return Gate.complete(self, ps) if ps.last_version is None else ps.read_version() >= ps.last_version

    def exchange(self, ps: Store, slot: WorkerSlot, message: Tensor) -> Tensor:
        """Arrive; the last one folds; wait for the token; read the reply."""
        parts = ps.receive(slot, message)
        with ps.event(slot, parts) as arrival:
            answers = self._arrive(ps, slot, parts)
        token = slot.sleep(after=[arrival.released])
        # With backup workers the others may fold again while this one reads, so it reads under the lock.
        with ps.lock(after=[token]) if self.backup_workers else tf.control_dependencies([token]):
            ps.note_pull(slot)
            replies = ps.each_slice(lambda _, answer: tf.identity(answer), answers)
        return ps.reply(replies)

    def _arrive(self, ps: Store, slot: WorkerSlot, parts: list[Any]) -> list[Any]:
        """Under the lock: add a fresh message to the sums; if it is the last one needed, fold. As `_close_set`."""
        with tf.device(ps.devices[0]):
            version = ps.read_version()
            staleness = ps.staleness(version, slot)
            fresh = tf.equal(staleness, 0)
            first = ~tf.reduce_any(ps.kept.arrived.read_value())
            with tf.control_dependencies([ps.record(version, slot.index, staleness, accepted=fresh), first]):
                arrived = ps.write(ps.kept.arrived, slot, fresh)

        def arrive_at(part: Any, u: Any) -> Any:
            u = ps.weigh(part, u, staleness, slot)
            if self.backup_workers:
                u = tf.where(fresh, u, tf.zeros_like(u))
            # What was there is of the set before. To put a message or a sum there takes no pass over the vector; to add
            # in place would copy the first message, which is where its worker has written it.
            return ps.when(first, lambda: part.inbox.assign(u), lambda: part.inbox.assign(part.inbox + u))

        with tf.control_dependencies([arrived]):
            inboxes = ps.each_slice(arrive_at, parts)
        with tf.control_dependencies(inboxes):
            answers = self._close_set(ps, fresh, version)
        if self.backup_workers:
            with tf.device(ps.devices[0]):
                slot.wake(~fresh)
        return answers

    def _close_set(self, ps: Store, possible: Any, version: Any) -> list[Any]:
        """Under the lock: if all that are needed have arrived, fold the mean of their messages and let all go.

        Returns the variable of each slice in which the reply will be.
        """
        with tf.device(ps.devices[0]):
            arrived, active = ps.kept.arrived.read_value(), ps.active.read_value()
            needed = tf.gather([self.set_size(number) for number in range(ps.num_workers + 1)], ps.count(active))
            complete = possible & (ps.count(arrived & active) >= needed)
            messages = tf.cast(ps.count(arrived), tf.float32)

        answers = [part.reply for part in ps.slices]

        def fold(part: Any) -> None:
            reply = ps.share(ps.merge(part, part.inbox / messages, tf.constant(0.0), version))
            if reply is part.center and not self.backup_workers:
                answers[part.index] = part.center  # nobody can change it before everybody has read it: no copy needed
            else:
                part.reply.assign(reply)

        folded = ps.each_slice(lambda part, _: ps.when(complete, lambda: fold(part)))

        def let_go() -> None:
            with tf.control_dependencies([ps.count_updates(1)]):
                if self.backup_workers:  # at the end nobody waits for those who are late
                    ps.active.assign(active & (arrived | ~self.complete(ps)))
                cleared = ps.kept.arrived.assign(tf.zeros([ps.num_workers], tf.bool))
            with tf.control_dependencies([cleared]):  # a released worker must see the new version
                ps.wake(arrived)

        # No token before every slice has its update: to wake a worker shares no resource with the center, so
        # nothing else orders the two.
        with tf.control_dependencies(folded), tf.device(ps.devices[0]):
            ps.when(complete, let_go)
        return answers

    def release(self, ps: Store) -> None:
        """Without those who are gone, the set may be complete."""
        self._close_set(ps, tf.constant(True), ps.read_version())
