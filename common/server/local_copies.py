"""Copies of the workers' local states on the first ps task, written between two rounds for a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from .answers import NEVER, NONE, PausedWorkers, Positions
from .journal import Journal
from .slots import Slots
from .transaction import CLEAN, Transactions


class LocalCopies:
    """A copy of the local state of each worker, and the number of its rounds that it includes.

    A copy is valid as long as just these rounds of its worker are logged: then it equals the state of the worker, and
    a process that joins as this worker loads it.

    Args:
        transactions: lock and admission on the ps.
        journal: the event log.
        slots: the workers as known to the ps.

    Attributes:
        asked: the chief's request: the meeting of the workers at which to write copies; `NONE`; `NEVER`.
        rounds: rounds of each worker that its copy includes, [W]; `NONE` without a copy.
        copies: the copies as bytes, [W].
        longest_call: rounds of the longest calls of each worker, [W]; it reads `asked` only between calls.
    """

    def __init__(self, transactions: Transactions, journal: Journal, slots: Slots):
        self.transactions, self.journal, self.slots = transactions, journal, slots
        self.device, number = transactions.device, transactions.num_workers
        with tf.device(self.device):
            self.asked = tf.Variable(tf.constant(NEVER, tf.int64), name="asked")
            self.rounds = tf.Variable(tf.fill([number], tf.constant(NONE, tf.int64)), name="copied_rounds")
            self.copies = tf.Variable(tf.fill([number], ""), name="copies")
            self.longest_call = tf.Variable(tf.ones([number], tf.int64), name="longest_call")

    # Calls of the chief.

    def ask(self, meeting: Any) -> Positions:
        """Request copies at that meeting, or set one of the other values of `asked`; returns the position after that.

        The position is read after the request is written. So a worker that has not read the request passes this
        position by the rest of its call and one more call at most, which the chief adds, see `tasks.standstill`.
        """
        version, rounds = self.transactions.version, self.journal.rounds_applied
        with tf.device(self.device), tf.control_dependencies([self.asked.assign(meeting)]):
            return Positions(version.read_value(), rounds.read_value(), self.longest_call.read_value())

    def paused_workers(self) -> PausedWorkers:
        """Read which workers stand still."""
        slots, rounds = self.slots, self.journal.rounds_applied
        with self.transactions.lock([]), tf.device(self.device):
            paused = ~slots.active | slots.finished | tf.equal(self.rounds, rounds)
            clean = tf.equal(self.transactions.incarnations[-1], CLEAN)
            return PausedWorkers(paused, rounds.read_value(), clean & ~slots.stopping)

    def read(self, index: Any) -> tuple[Any, Any]:
        """Read the rounds in the copy of that worker, and the copy."""
        with self.transactions.lock([]), tf.device(self.device):
            return self.rounds.read_value()[index], self.copies.read_value()[index]

    def forget(self) -> Any:
        """Delete the copies after they were saved, except those of finished workers, which write no other."""
        with self.transactions.lock([]), tf.device(self.device):
            finished = self.slots.finished.read_value()
            self.rounds.assign(tf.where(finished, self.rounds, tf.constant(NONE, tf.int64)))
            self.copies.assign(tf.where(finished, self.copies, ""))
        return tf.constant(True)

    def put_back(self, rounds: Any, copies: Any) -> Any:
        """Restore the copies of all workers from a checkpoint, [W] both, and reset the request."""
        with self.transactions.lock([rounds, copies]), tf.device(self.device):
            self.rounds.assign(rounds)
            self.copies.assign(copies)
            self.longest_call.assign(tf.ones_like(self.longest_call))
            self.asked.assign(NONE)
        return tf.constant(True)

    # Calls of a worker.

    def write_copy(self, slot: Any, rounds: Any, copy: Any) -> Any:
        """Write the copy of a worker after that many `rounds`; refused if its messages would be refused.

        If the worker dies during the write, it has no copy: `rounds` is `NONE` until the copy is complete.
        """
        is_holder = partial(self.transactions.admit, slot, lambda: [])
        with self.transactions.lock([], is_holder), tf.device(self.device):
            with tf.control_dependencies([self.slots.write(self.rounds, slot, tf.constant(NONE, tf.int64))]):
                written = self.slots.write(self.copies, slot, copy)
            with tf.control_dependencies([written]):
                self.slots.write(self.rounds, slot, rounds)
        return tf.constant(True)

    def announce_rounds(self, slot: Any, rounds: Any) -> Any:
        """Note that this worker makes calls of so many `rounds` from now on; returns the chief's request."""
        with tf.device(self.device), tf.control_dependencies([self.slots.write(self.longest_call, slot, rounds)]):
            return self.asked.read_value()

    def join(self, slot: Any, rounds: Any) -> tuple[Any, Any]:
        """Note, under the lock, that a worker takes its slot, and makes calls of one round at first.

        Returns:
            True if its copy includes just these rounds; the chief's request.
        """
        with tf.device(self.device):
            copied = tf.equal(self.rounds.read_value()[slot.index], rounds)
            return copied, self.announce_rounds(slot, tf.constant(1, tf.int64))
