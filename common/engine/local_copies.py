"""Copies of the workers' local states on the first ps task: laid down between two rounds, for a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from .asked import NEVER, NONE
from .journal import Journal
from .membership import Membership
from .transaction import CLEAN, Transactions


class LocalCopies:
    """A copy of the local state of each worker, and how many of its rounds are in it.

    A copy counts for as long as just these rounds of its worker are on record: then it is what the worker would go on
    with, and one that joins takes it.

    Args:
        transactions: on the ps.
        journal: the rounds on record.
        membership: of the workers.

    Attributes:
        asked: what the chief asks for: a copy at that meeting of the workers; `NONE`; `NEVER`.
        rounds: of each worker in its copy, [W]; `NONE` where there is no copy.
        copies: as bytes, [W].
        stretch: rounds of the longest calls that each worker makes, [W]; in them it does not hear what is asked.
    """

    def __init__(self, transactions: Transactions, journal: Journal, membership: Membership):
        self.transactions, self.journal, self.membership = transactions, journal, membership
        self.device, number = transactions.device, transactions.num_workers
        with tf.device(self.device):
            self.asked = tf.Variable(tf.constant(NEVER, tf.int64), name="asked")
            self.rounds = tf.Variable(tf.fill([number], tf.constant(NONE, tf.int64)), name="copied_rounds")
            self.copies = tf.Variable(tf.fill([number], ""), name="copies")
            self.stretch = tf.Variable(tf.ones([number], tf.int64), name="stretch")

    # What the chief does.

    def ask(self, meeting: Any) -> tuple[Any, Any, Any]:
        """Ask for copies at that meeting, or for one of the others in `asked`.

        Returns:
            how far the workers are once all can hear of it: the version, rounds [W], and the `stretch` of each, [W].
        """
        version, folded = self.transactions.version, self.journal.folded
        with tf.device(self.device), tf.control_dependencies([self.asked.assign(meeting)]):
            return version.read_value(), folded.read_value(), self.stretch.read_value()

    def standing(self) -> tuple[Any, Any, Any]:
        """Where the workers are.

        Returns:
            True for each that has laid down a copy after its last round, has finished, or is not counted on, [W]; how
            many rounds of each are on record, [W]; True if the state is clean, and the run has not been stopped.
        """
        members, rounds = self.membership, self.journal.folded
        with self.transactions.lock([]), tf.device(self.device):
            stands = ~members.active | members.finished | tf.equal(self.rounds, rounds)
            clean = tf.equal(self.transactions.incarnations[-1], CLEAN)
            return stands, rounds.read_value(), clean & ~members.stopping

    def read(self, index: Any) -> tuple[Any, Any]:
        """The rounds in the copy of that worker, and the copy."""
        with self.transactions.lock([]), tf.device(self.device):
            return self.rounds.read_value()[index], self.copies.read_value()[index]

    def forget(self) -> Any:
        """The copies are saved, and not needed any more, but those of workers that will not lay down another."""
        with self.transactions.lock([]), tf.device(self.device):
            finished = self.membership.finished.read_value()
            self.rounds.assign(tf.where(finished, self.rounds, tf.constant(NONE, tf.int64)))
            self.copies.assign(tf.where(finished, self.copies, ""))
        return tf.constant(True)

    def put_back(self, rounds: Any, copies: Any) -> Any:
        """In a restoration: the copies of all are those of the checkpoint, [W] both, and nothing is asked for."""
        with self.transactions.lock([rounds, copies]), tf.device(self.device):
            self.rounds.assign(rounds)
            self.copies.assign(copies)
            self.stretch.assign(tf.ones_like(self.stretch))
            self.asked.assign(NONE)
        return tf.constant(True)

    # What a worker does.

    def lay_down(self, slot: Any, rounds: Any, copy: Any) -> Any:
        """The holder of a slot lays down what it has after that many `rounds`; refused, as its messages would be.

        Should it die in the middle, there is no copy.
        """
        is_holder = partial(self.transactions.admit, slot, lambda: [])
        with self.transactions.lock([copy], is_holder), tf.device(self.device):
            with tf.control_dependencies([self._write(self.rounds, slot, tf.constant(NONE, tf.int64))]):
                laid_down = self._write(self.copies, slot, copy)
            with tf.control_dependencies([laid_down]):
                self._write(self.rounds, slot, rounds)
        return tf.constant(True)

    def stretch_calls(self, slot: Any, rounds: Any) -> Any:
        """This worker makes calls of so many `rounds` from now on; returns what is asked for."""
        with tf.device(self.device), tf.control_dependencies([self._write(self.stretch, slot, rounds)]):
            return self.asked.read_value()

    def join(self, slot: Any, folded: Any) -> tuple[Any, Any]:
        """Under the lock: a worker takes its slot, and makes calls of one round at first.

        Returns:
            True if there is a copy of it after just these rounds; and what is asked for.
        """
        with tf.device(self.device):
            copied = tf.equal(self.rounds.read_value()[slot.index], folded)
            return copied, self.stretch_calls(slot, tf.constant(1, tf.int64))

    def _write(self, variable: Any, slot: Any, value: Any) -> Any:
        with tf.device(self.device):
            return self.membership.write(variable, slot, value)
