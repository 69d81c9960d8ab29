"""The journal: the log of all events of a run in order, read by the evaluator without gaps and repetitions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..messages.ops import queue
from ..sync.store import WorkerSlot
from .answers import Drained
from .trace import EVENTS, RECORD
from .transaction import DIRTY, Transactions


class Journal:
    """The log of the events on the ps, with counters that are updated in the same event.

    Attributes:
        rounds_applied: number of logged rounds of each worker, [W].
        joins: number of logged joins.
        refused: number of messages of each worker that were not finite, [W].
        records: a queue of the events that the evaluator has not read yet, rows of `RECORD`.
        unacknowledged: events that the evaluator has read; it may have died before it had written them.
        acknowledged: number of events that the evaluator has written.
        restored: number of this start or restoration, and number of events logged by then, [2].
        restoration: placeholder of `restored`.
    """

    def __init__(self, transactions: Transactions):
        self.transactions, self.device = transactions, transactions.device
        with tf.device(self.device):
            zeros = tf.zeros([transactions.num_workers], tf.int64)
            self.rounds_applied = tf.Variable(zeros, name="rounds_applied")
            self.joins = tf.Variable(tf.constant(0, tf.int64), name="joins")
            self.refused = tf.Variable(zeros, name="refused")
            self.restoration = tf.compat.v1.placeholder(tf.int64, [2], name="restoration")
            self.restored = tf.Variable(self.restoration, name="restored")
            self.acknowledged = tf.Variable(self.restoration[1], name="acknowledged")
            none = tf.zeros([0, len(RECORD)], tf.int64)
            self.unacknowledged = tf.Variable(none, shape=[None, len(RECORD)], name="unacknowledged")
            self.records = queue("records", shape=[len(RECORD)], dtype=tf.int64)

    @property
    def saved(self) -> dict[str, Any]:
        """Variables for a checkpoint, by name."""
        return {"rounds_applied": self.rounds_applied, "joins": self.joins, "refused": self.refused}

    def record(
        self,
        version: Any,
        worker: Any,
        staleness: Any,
        accepted: Any,
        event: Any = "exchange",
        locked: bool = True,
    ) -> Any:
        """Append one event of `worker` (its index) to the log of the run, and count it.

        Under the lock the state is dirty from here to the end of the event: log, counts and center agree afterwards, or
        are restored. If the sender dies, the append is the first operation that is cancelled.
        """
        with tf.device(self.device):
            now = tf.cast(tf.timestamp() * 1e6, tf.int64)
            values = [version, worker, staleness, accepted, now, EVENTS.index(event)]
            with tf.control_dependencies([self.transactions.mark(DIRTY)] if locked else []):
                noted = self.records.enqueue(tf.stack([tf.cast(value, tf.int64) for value in values]))
            with tf.control_dependencies([noted]):
                one = tf.constant(1, tf.int64)
                if event == "join":
                    return self.joins.assign_add(one)
                counts = self.rounds_applied.handle
                return tf.raw_ops.ResourceScatterAdd(resource=counts, indices=worker, updates=one)

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
            return Drained(events, self.acknowledged.read_value(), restored[0], restored[1])

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
            self.unacknowledged.assign(tf.zeros([0, len(RECORD)], tf.int64))
            self.records.dequeue_many(self.records.size())
