"""The slot of one worker on the ps, as its own graph sees it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Slot:
    """The slot of one worker on the ps: whoever joins as this worker holds it. See `gates.store.WorkerSlot`.

    Attributes:
        index: number of the worker, an integer or a scalar on the first ps task.
        device: of the first ps task.
        tokens: the queue of its tokens there.
        incarnation: of whoever holds it, [2]: its number, and a 1 (the state must be clean).
        collectives: numbers of the reductions among workers, the same ones in every worker's graph.
    """

    index: Any
    device: str
    tokens: Any
    incarnation: Any
    collectives: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def sleep(self, after: Sequence[Any] = ()) -> Any:
        """Wait for a token; returns it."""
        with tf.control_dependencies(after), tf.device(self.device):
            return self.tokens.dequeue()

    def wake(self, condition: Any) -> None:
        """A token for this worker, if the condition holds."""
        with tf.device(self.device):
            self.tokens.enqueue_many([tf.ones([tf.cast(condition, tf.int32)], tf.bool)])

    def forget_tokens(self) -> Any:
        """Tokens that nobody has taken are void."""
        with tf.device(self.device):
            return self.tokens.dequeue_many(self.tokens.size())
