"""The journal: the log of all events of a run in order, read by the evaluator without gaps and repetitions.

An event that ends a round is the one row of that round. Its release, the steps after its message and its reply are
later than the event, so their times are in the worker's next row, or in `ends`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..messages.cut import TIMES
from ..messages.ops import clock, queue
from ..messages.stand_in import Row
from ..record_format import EVENTS
from ..sync.store import WorkerSlot
from .answers import Drained
from .trace import ROW, UNKNOWN
from .transaction import DIRTY, Transactions


class Journal:
    """The log of the events on the ps, with counters that are updated in the same event.

    Attributes:
        rounds_applied: number of logged rounds of each worker, [W].
        joins: number of logged joins, less the rounds that count as applied and are not logged, see `skip_rounds`.
        refused: number of messages of each worker that were not finite, [W].
        released: times at which the synchronization rule has released the last message of each worker, [W]; unused if
            none waits.
        ended: `computed` and `replied` of the last rounds of the workers that have finished, [W, 2].
        records: a queue of the events that the evaluator has not read yet, rows of `ROW`.
        unacknowledged: events that the evaluator has read; it may have died before it had written them.
        acknowledged: number of events that the evaluator has written.
        restored: number of this start or restoration, and number of events logged by then, [2].
        restoration: placeholder of `restored`.
    """

    def __init__(self, transactions: Transactions, waits: bool):
        self.transactions, self.device, self.waits = transactions, transactions.device, waits
        with tf.device(self.device):
            zeros = tf.zeros([transactions.num_workers], tf.int64)
            self.rounds_applied = tf.Variable(zeros, name="rounds_applied")
            self.joins = tf.Variable(tf.constant(0, tf.int64), name="joins")
            self.refused = tf.Variable(zeros, name="refused")
            self.restoration = tf.compat.v1.placeholder(tf.int64, [2], name="restoration")
            self.restored = tf.Variable(self.restoration, name="restored")
            self.acknowledged = tf.Variable(self.restoration[1], name="acknowledged")
            self.unknown = tf.fill([transactions.num_workers], tf.constant(UNKNOWN, tf.int64))
            self.released = tf.Variable(self.unknown, name="released")
            self.ended = tf.Variable(tf.stack([self.unknown, self.unknown], 1), name="ended")
            none = tf.zeros([0, len(ROW)], tf.int64)
            self.unacknowledged = tf.Variable(none, shape=[None, len(ROW)], name="unacknowledged")
            self.records = queue("records", shape=[len(ROW)], dtype=tf.int64)

    @property
    def saved(self) -> dict[str, Any]:
        """Variables for a checkpoint, by name."""
        counts = {"rounds_applied": self.rounds_applied, "joins": self.joins, "refused": self.refused}
        return counts | {"released": self.released}

    def record(
        self,
        version: Any,
        slot: WorkerSlot,
        staleness: Any,
        accepted: Any,
        event: Any = "exchange",
        locked: bool = True,
    ) -> Any:
        """Append one event of the worker in `slot` to the log of the run, and count it.

        Under the lock the state is dirty from here to the end of the event: log, counts and center agree afterwards, or
        are restored. TensorFlow cancels an append to a queue with its caller's step: if the sender has died, the event
        ends there, before counts and center change.

        Args:
            version: version of the center before the event.
            slot: slot of the worker, with the times of its round, if it ends one.
            staleness: staleness of its message, in updates.
            accepted: False if its message is dropped, or if there is none.
            event: one of `EVENTS`.
            locked: False for a rule without the lock, whose state is never dirty.

        Returns:
            the last operation.
        """
        with tf.device(self.device):
            now = clock() if self.transactions.now is None else self.transactions.now
            before = UNKNOWN if event == "join" else self._released_before(slot, accepted, now)
            values = [version, slot.index, staleness, accepted, now, EVENTS.index(event), before]
            times = tf.fill([TIMES], tf.constant(UNKNOWN, tf.int64)) if slot.times is None else slot.times
            with tf.control_dependencies([self.transactions.mark(DIRTY)] if locked else []):
                row = tf.concat([tf.stack([tf.cast(value, tf.int64) for value in values]), times], 0)
                noted = self.records.enqueue(row)
            with tf.control_dependencies([noted]):
                one = tf.constant(1, tf.int64)
                if event == "join":
                    return self.joins.assign_add(one)
                counts = self.rounds_applied.handle
                return tf.raw_ops.ResourceScatterAdd(resource=counts, indices=slot.index, updates=one)

    def record_rounds(self, version: Any, times: Any, present: Any) -> None:
        """Append rounds of all workers, none or more from the update after `version` on, in their order; without a ps.

        Args:
            version: updates of the center before the first of these rounds.
            times: `begun`, `ready`, `computed`, `replied` and the release of each, [W, rounds, TIMES + 1].
            present: flags [W] of the workers whose rounds these are; those of the others are left out.
        """
        with tf.device(self.device):
            number, workers = tf.shape(times)[1], self.transactions.num_workers
            released = tf.concat([self.released[:, None], times[:, :, TIMES]], 1)  # before the first, and of each
            versions = version + tf.range(tf.cast(number, tf.int64))
            now = clock() if self.transactions.now is None else self.transactions.now
            fixed = tf.stack([0, 1, now, EVENTS.index("exchange")])  # staleness, accepted, time, event
            rows = tf.concat(
                [
                    tf.tile(versions[:, None, None], [1, workers, 1]),
                    tf.tile(tf.range(workers, dtype=tf.int64)[None, :, None], [number, 1, 1]),
                    tf.tile(fixed[None, None], [number, workers, 1]),
                    tf.transpose(released[:, :-1])[:, :, None],
                    tf.transpose(times[:, :, :TIMES], [1, 0, 2]),
                ],
                2,
            )
            self.records.enqueue_many(tf.reshape(tf.boolean_mask(rows, present, axis=1), [-1, len(ROW)]))
            self.released.assign(tf.where(present, released[:, -1], self.released))
            self.rounds_applied.assign_add(tf.cast(present, tf.int64) * tf.cast(number, tf.int64))

    def record_of_region(self, rows: Any, version: Any) -> Any:
        """Append what a region has recorded, [n, len(ROW)], without versions; return its number of messages.

        Args:
            rows: the events in the region's order.
            version: updates of the center before them; each message of a worker is one more.
        """
        with tf.device(self.device):
            accepted = rows[:, ROW.index("accepted")]
            versions = version + tf.cumsum(accepted, exclusive=True)
            noted = self.records.enqueue_many(tf.concat([versions[:, None], rows[:, 1:]], 1))
            workers = tf.boolean_mask(rows[:, ROW.index("worker")], accepted > 0)
            with tf.control_dependencies([noted]):
                counts, ones = self.rounds_applied.handle, tf.ones_like(workers)
                tf.raw_ops.ResourceScatterAdd(resource=counts, indices=workers, updates=ones)
            return tf.reduce_sum(accepted)

    def skip_rounds(self, number: Any) -> None:
        """Count so many rounds of each worker, [W], that were made without it: they are not logged; under the lock."""
        self.rounds_applied.assign_add(number)
        self.joins.assign_sub(tf.reduce_sum(number))

    def _released_before(self, slot: WorkerSlot, accepted: Any, now: Any) -> Any:
        """Return when the worker's message before this one was released; a dropped message is released at once."""
        if not self.waits:
            return UNKNOWN
        before = tf.gather(self.released, slot.index)
        with tf.control_dependencies([before]):
            next_ = tf.where(accepted, tf.constant(UNKNOWN, tf.int64), now)
            Row(self.released, slot.index).write(next_)
        return before

    def note_release(self, flags: Any) -> list[Any]:
        """Note that the event that is being built releases the workers in `flags` [W]; returns the operations.

        After a restoration workers are woken outside of an event, and nothing is noted.
        """
        if self.transactions.now is None:
            return []
        with tf.device(self.device):
            return [self.released.assign(tf.where(flags, self.transactions.now, self.released))]

    def finish(self, slot: WorkerSlot, ended: Any, condition: Any) -> Any:
        """Note `computed` and `replied` [2] of the last round of a worker that has finished, if the condition holds."""
        with tf.device(self.device):
            row = Row(self.ended, slot.index)
            return row.write(tf.where(condition, ended, row.read_value()))

    def ends(self) -> Any:
        """Return `released`, `computed` and `replied` of the last round of each worker, [W, 3]."""
        with tf.device(self.device):
            return tf.concat([self.released[:, None], self.ended], 1)

    def count_refused(self, slot: WorkerSlot, number: Any) -> None:
        """Count `number` more messages of this worker that were not finite."""
        with tf.device(self.device):
            tf.raw_ops.ResourceScatterAdd(resource=self.refused.handle, indices=slot.index, updates=number)

    def drain(self) -> Drained:
        """Read the events that the evaluator has not acknowledged.

        The evaluator drains events 5 to 9 and dies; its successor drains again, and gets 5 to 12.
        """
        with self.transactions.lock([]), tf.device(self.device):
            events = tf.concat([self.unacknowledged, self.records.dequeue_many(self.records.size())], 0)
            self.unacknowledged.assign(events)
            restored = self.restored.read_value()
            return Drained(events, self.acknowledged.read_value(), restored[0], restored[1], clock())

    def acknowledge(self, restoration: Any, number: Any) -> Any:
        """Acknowledge `number` events that the evaluator has written, unless the state has been restored meanwhile."""
        with self.transactions.lock([]), tf.device(self.device):
            same = tf.equal(self.restored[0], restoration)
            safe = tf.where(same, tf.maximum(number - self.acknowledged, 0), 0)
            self.unacknowledged.assign(self.unacknowledged[safe:])
            self.acknowledged.assign_add(safe)
        return tf.constant(True)

    def begin_again(self) -> None:
        """Continue the log from the restored state, under the lock, and drop all later events."""
        with tf.device(self.device):
            self.restored.assign(self.restoration)
            self.acknowledged.assign(self.restoration[1])
            self.unacknowledged.assign(tf.zeros([0, len(ROW)], tf.int64))
            self.ended.assign(tf.fill(self.ended.shape, tf.constant(UNKNOWN, tf.int64)))
            self.records.dequeue_many(self.records.size())
