"""Copies of the workers' local states on the first ps task: laid down between two rounds, for a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from .asked import NEVER, NONE
from .transaction import Transactions


class LocalCopies:
    """A copy of the local state of each worker, and how many of its rounds are in it.

    A copy counts for as long as just these rounds of its worker are on record: then it is what the worker would go on
    with, and one that joins takes it.

    Args:
        transactions: on the ps.

    Attributes:
        asked: what the chief asks for: a copy at that meeting of the workers; `NONE`; `NEVER`.
        rounds: of each worker in its copy, [W]; `NONE` where there is no copy.
        copies: as bytes, [W].
    """

    def __init__(self, transactions: Transactions):
        self.transactions, self.device = transactions, transactions.device
        self.number = transactions.num_workers
        with tf.device(self.device):
            self.asked = tf.Variable(tf.constant(NEVER, tf.int64), name="asked")
            self.rounds = tf.Variable(tf.fill([self.number], tf.constant(NONE, tf.int64)), name="copied_rounds")
            self.copies = tf.Variable(tf.fill([self.number], ""), name="copies")

    def lay_down(self, slot: Any, rounds: Any, copy: Any) -> Any:
        """The holder of a slot lays down what it has after that many `rounds`; refused, as its messages would be."""
        is_holder = partial(self.transactions.admit, slot, lambda: [])
        with self.transactions.lock([copy], is_holder), tf.device(self.device):
            for variable, value in ((self.rounds, rounds), (self.copies, copy)):
                tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=slot.index, updates=value)
        return tf.constant(True)

    def put_back(self, rounds: Any, copies: Any) -> Any:
        """In a restoration: the copies of all are those of the checkpoint, [W] both."""
        with self.transactions.lock([rounds, copies]), tf.device(self.device):
            self.rounds.assign(rounds)
            self.copies.assign(copies)
        return tf.constant(True)

    def read(self, index: Any) -> tuple[Any, Any]:
        """The rounds in the copy of that worker, and the copy."""
        with self.transactions.lock([]), tf.device(self.device):
            return self.rounds.read_value()[index], self.copies.read_value()[index]

    def forget(self, flags: Any) -> Any:
        """The copies of the workers in `flags` [W] are not needed any more."""
        with self.transactions.lock([]), tf.device(self.device):
            self.rounds.assign(tf.where(flags, tf.constant(NONE, tf.int64), self.rounds))
            self.copies.assign(tf.where(flags, "", self.copies))
        return tf.constant(True)

    def is_of(self, index: Any, folded: Any) -> Any:
        """True if there is a copy of that worker after just these rounds; under the lock."""
        with tf.device(self.device):
            return tf.equal(self.rounds.read_value()[index], folded)
