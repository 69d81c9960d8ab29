"""The synchronization rules by which messages of several workers make one update: a barrier, or a quorum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ..arguments import at_least, fraction, not_negative
from ..errors import UserError
from ..lazy import tf
from .store import Message, Store, Tensor, WorkerSlot
from .synchronization import Synchronization


class InSets(Synchronization):
    """The base of `Barrier` and `Quorum`: an update is the mean of messages of `set_size` workers, which wait for it.

    The message that completes the set applies the update and wakes every worker that waits. With `late = "drop"` a
    message computed on an older version is dropped, and its worker continues at once.

    With `grace`, a set of that size stays open for the messages of the other workers. That of the last active worker
    closes it, or else the clock of the evaluator, see `tasks.grace_clock`.
    """

    waits = True
    label = "synchronous"

    def _has_late(self, ps: Store) -> bool:
        """Return True if a set may be complete without a message of each worker."""
        return self.set_size(ps.num_workers) != ps.num_workers

    def updates_per_round(self, workers: int) -> float:
        """Return 1 if all messages of a round make one update; if late ones count, the number of sets of a round."""
        return 1 if self.late == "drop" else workers / (self.set_size(workers) or 1)

    def accepts(self, staleness: Any) -> Any:
        """Return False for a message whose set is complete without it, unless late ones count."""
        return self.late == "count" or staleness <= 0

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Return the flags of the workers that have arrived, and with a grace when the set was large enough (us), or 0.

        If the scheme leaves out messages that are not finite, there are flags of the workers whose last one was not.
        """
        variables = {"quorum_at": tf.constant(0, tf.int64)} if self.grace else {}
        if self._tolerates(ps):
            variables["not_finite"] = tf.zeros([ps.num_workers], tf.bool)
        return {**super().variables(ps), **variables}

    def slice_variables(self, ps: Store, part: Any) -> Mapping[str, Tensor | Message]:
        """Return the initial sum of messages and the initial reply of a slice."""
        return {"inbox": part.no_message, "reply": part.initial}

    def complete(self, ps: Store) -> Tensor:
        """Return True once the last version has been reached; where late messages count, all of them are awaited."""
        if self.late == "count" or ps.last_version is None:
            return super().complete(ps)
        return ps.center.read_version() >= ps.last_version

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Add the message to the set, apply the set if it is complete, wait for the token, read the reply."""
        slot, slices = ps.center.receive(slot, message)
        with ps.event(slot, slices, (lambda: self._has_room(ps)) if self._tolerates(ps) else None) as arrival:
            reply_variables = self._arrive(ps, slot, slices, arrival.finite)
        token = slot.sleep(after=[arrival.released])
        # If a set may be complete without this worker, the others may apply the next one while it reads. So it reads
        # under the lock; otherwise its reply could mix two versions.
        with ps.transactions.lock(after=[token]) if self._has_late(ps) else tf.control_dependencies([token]):
            ps.center.note_pull(slot)
            replies = ps.center.each_slice(lambda _, variable: tf.identity(variable), reply_variables)
        return ps.center.reply(replies, slot)

    def _tolerates(self, ps: Store) -> bool:
        """Return True if the scheme leaves out messages that are not finite."""
        return any(self._most_left_out(ps))

    def _most_left_out(self, ps: Store) -> list[int]:
        """Return how many messages of a set may not be finite, for each number of active workers."""
        return [self.most_left_out(self.set_size(number) or 0) for number in range(ps.num_workers + 1)]

    def _has_room(self, ps: Store) -> Tensor:
        """Return True if one more message of the open set may not be finite; under the lock."""
        with tf.device(ps.devices[0]):
            not_finite = ps.slots.count(ps.variables.arrived & ps.variables.not_finite)
            return not_finite < tf.gather(self._most_left_out(ps), ps.slots.count(ps.slots.active))

    def _arrive(self, ps: Store, slot: WorkerSlot, slices: list[Message], finite: Tensor | None) -> list[Any]:
        """Add a message to the sums unless it is left out, and apply them if it completes the set; under the lock.

        Args:
            ps: the parameter server.
            slot: slot of the sender.
            slices: the slices of its message.
            finite: False if the message is left out for that; None if the scheme tolerates no such message.

        Returns:
            the same as `_close_set`.
        """
        with tf.device(ps.devices[0]):
            version = ps.center.read_version()
            staleness = ps.center.staleness(version, slot)
            fresh = self.accepts(staleness)
            first = ~tf.reduce_any(ps.variables.arrived.read_value())
            # Read `first` before this worker's flag is set. Otherwise no message would ever be the first of its set.
            with tf.control_dependencies([ps.journal.record(version, slot, staleness, accepted=fresh), first]):
                arrived = ps.slots.write(ps.variables.arrived, slot, fresh)
            counts = fresh
            if finite is not None:
                counts &= finite
                ps.journal.count_refused(slot, tf.cast(~finite, tf.int64))
                with tf.control_dependencies([arrived]):
                    arrived = ps.slots.write(ps.variables.not_finite, slot, ~finite)

        drops = self.late == "drop" and self._has_late(ps)

        def arrive_at(part: Any, message: Message) -> Any:
            if drops:  # a message that is dropped writes no row of its worker
                weigh = partial(ps.center.weighted, part, message, staleness, slot)
                message = tf.cond(fresh, weigh, lambda: tf.nest.map_structure(tf.zeros_like, message))
            else:
                message = ps.center.weighted(part, message, staleness, slot)
            if drops or finite is not None:
                message = tf.nest.map_structure(lambda u: tf.where(counts, u, tf.zeros_like(u)), message)

            def put(combine: Any) -> None:
                tf.nest.map_structure(lambda inbox, u: inbox.assign(combine(inbox, u)), part.inbox, message)

            # The inbox still holds the sum of the previous set, so the first message replaces it. Assign the sums, too:
            # `assign` shares the buffer of its value and takes no pass over the vector, while `assign_add` would first
            # copy the buffer of the first message, which its worker has written.
            return ps.when(first, lambda: put(lambda _, u: u), lambda: put(lambda inbox, u: inbox + u))

        with tf.control_dependencies([arrived]):
            inboxes = ps.center.each_slice(arrive_at, slices)
        with tf.control_dependencies(inboxes):
            reply_variables = self._close_set(ps, fresh, version)
        if drops:
            # Wake the sender of a dropped message after the event has its time, which precedes `arrived`. Otherwise the
            # worker could have its reply before that time.
            with tf.device(ps.devices[0]), tf.control_dependencies([arrived]):
                slot.wake(~fresh)
        return reply_variables

    def _close_set(self, ps: Store, possible: Any, version: Any, grace_is_over: bool = False) -> list[Any]:
        """Apply the mean of the set and release its workers if all needed messages have arrived; under the lock.

        Args:
            ps: the parameter server.
            possible: False if the event brought no message to the set, so that it cannot complete it; a bool scalar.
            version: version of the center, a scalar.
            grace_is_over: True if no more messages are awaited than the set needs.

        Returns:
            the variable of each slice that will hold the reply.
        """
        with tf.device(ps.devices[0]):
            arrived, active = ps.variables.arrived.read_value(), ps.slots.active.read_value()
            needed = tf.gather([self.set_size(number) for number in range(ps.num_workers + 1)], ps.slots.count(active))
            complete = possible & (ps.slots.count(arrived & active) >= needed)
            if self.grace and not grace_is_over:
                complete = self._unless_in_grace(
                    ps, complete, ps.slots.count(arrived & active) >= ps.slots.count(active)
                )
            merged = arrived & ~ps.variables.not_finite if self._tolerates(ps) else arrived
            messages = tf.cast(tf.maximum(ps.slots.count(merged), 1), tf.float32)

        reply_variables = [part.reply for part in ps.center.slices]

        def apply(part: Any) -> None:
            mean = tf.nest.map_structure(lambda inbox: inbox / messages, part.inbox)
            if part.index == 0:
                self.note_set(ps, mean, version)
            reply = ps.share(ps.center.merge(part, mean, tf.constant(0.0), version))
            if reply is part.center and not self._has_late(ps):
                # Read the reply from the center, without a copy: the next update needs a message of each reader.
                reply_variables[part.index] = part.center
            else:
                part.reply.assign(reply)

        applied = ps.center.each_slice(lambda part, _: ps.when(complete, lambda: apply(part)))

        def release() -> None:
            with tf.control_dependencies([ps.center.count_updates(1)]):
                if self._has_late(ps):  # after the last update no worker waits for those that are late
                    ps.slots.active.assign(active & (arrived | ~self.complete(ps)))
                cleared = ps.variables.arrived.assign(tf.zeros([ps.num_workers], tf.bool))
                if self.grace:
                    ps.variables.quorum_at.assign(tf.constant(0, tf.int64))
            # Send the tokens after the version is counted. Without late workers a released worker reads it without the
            # lock, and could otherwise note the old version as pulled.
            with tf.control_dependencies([cleared]):
                ps.wake(arrived)

        # Send no token before every slice has its update. Waking a worker shares no resource with the center, so
        # TensorFlow does not order the two: a worker could read the old center.
        with tf.control_dependencies(applied), tf.device(ps.devices[0]):
            ps.when(complete, release)
        return reply_variables

    def note_set(self, ps: Store, mean: Message, version: Tensor) -> None:
        """Take what the rule needs of a set, its mean slice on the first ps task; under the lock. Default: nothing."""

    def release(self, ps: Store) -> None:
        """Apply the set if it is complete without the workers that have left."""
        self._close_set(ps, tf.constant(True), ps.center.read_version())

    def _unless_in_grace(self, ps: Store, enough: Tensor, has_all: Tensor) -> Tensor:
        """Return True if a set with enough messages has those of all workers; else its time of grace begins."""
        quorum_at = ps.variables.quorum_at

        def begin() -> None:
            with tf.control_dependencies([quorum_at.assign(ps.clock())]):
                ps.quorums.enqueue(True)

        ps.when(enough & ~has_all & tf.equal(quorum_at.read_value(), 0), begin)
        return enough & has_all

    def grace_left(self, ps: Store) -> tuple[Tensor, Tensor]:
        """Return when the open set had enough messages (us, 0 if it has not), and the seconds of grace left."""
        with tf.device(ps.devices[0]):
            began = ps.variables.quorum_at.read_value()
            passed = tf.cast(ps.clock() - began, tf.float64) / 1e6
            return began, tf.clip_by_value(self.grace - passed, 0, self.grace)

    def end_grace(self, ps: Store, began: Tensor) -> Tensor:
        """Close the set whose time of grace has begun at `began`, unless it is closed."""
        with ps.transactions.exclusive(), tf.device(ps.devices[0]):
            is_open = tf.equal(ps.variables.quorum_at.read_value(), began) & (began > 0)
            self._close_set(ps, is_open, ps.center.read_version(), grace_is_over=True)
        return tf.constant(True)


@dataclass(frozen=True)
class Barrier(InSets):
    """A strict barrier: each update is the mean of one message of each of `workers - backup_workers` workers.

    A run makes as many updates as the worker with the most rounds has, and ends with the last. Workers that are behind
    then, because their messages were dropped or because they were down, leave: their messages would be too old, or the
    only ones of a set.

    Attributes:
        backup_workers: number of workers whose messages a set may go without.
        outliers: share of the messages of a set that the rule of the server leaves out, see `Synchronization`.
    """

    backup_workers: int = 0
    outliers: float = 0.0

    def set_size(self, active: int) -> int:
        """Return the number of active workers minus backups; at least 1, as a worker may leave after its message."""
        return max(active - self.backup_workers, 1)

    def check(self, workers: int) -> None:
        """Raise `UserError` unless a set needs at least one worker."""
        at_least(0, backup_workers=self.backup_workers)
        fraction(outliers=self.outliers)
        if self.backup_workers >= workers:
            raise UserError(
                f"backup_workers must be fewer than the workers. Received: "
                f"backup_workers={self.backup_workers}, workers={workers}"
            )


@dataclass(frozen=True)
class Quorum(InSets):
    """Each update is the mean of the messages of the first `count` workers; of all workers, if there are fewer.

    With a time of grace it is that of the workers whose messages arrive until then.

    Attributes:
        count: number of workers whose messages make an update.
        late: `drop`: messages computed on an older version are dropped, as by a barrier with backup workers, and a run
            ends as there. `count`: they count like others, and a run ends when all workers have done their rounds.
        grace: seconds for which a set of `count` messages waits for those of the other workers.
        cancel_late: True if workers stop a computation whose message would be dropped, see `Synchronization`.
    """

    count: int
    late: Literal["drop", "count"] = "drop"
    grace: float = 0.0
    cancel_late: bool = False

    def set_size(self, active: int) -> int:
        """Return the count, or the number of active workers if there are fewer, but at least 1."""
        return max(min(self.count, active), 1)

    def check(self, workers: int) -> None:
        """Raise `UserError` unless a set needs at least one worker."""
        at_least(1, count=self.count)
        not_negative(grace=self.grace)
