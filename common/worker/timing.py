"""Timestamps of a round on the clock of its worker, taken in the graph.

One call executes several rounds, so only the graph can take the time of each. The timestamps are in order: each is
taken after the one before it, and a message leaves after the timestamp of its completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ..messages.cut import parts_of


def moment(after: Sequence[Any] = ()) -> Any:
    """Return the time at which every tensor in `after` is computed: seconds since 1970, float64."""
    with tf.control_dependencies(tf.nest.flatten(after, expand_composites=True)):
        now = tf.timestamp()
    # `tf.function` orders stateful ops automatically. Exempt the timestamp from that order: otherwise the worker would
    # wait for the ps to unlock, one extra RPC per round.
    if order := getattr(now.graph, "experimental_acd_manager", None):
        order.run_independently(now.op)
    return now


class RoundTimer:
    """The timestamps of one round, taken in the order in which the round is built.

    Args:
        begun: start of the round.

    Attributes:
        begun, ready, replied: scalars in seconds since 1970, float64.
    """

    def __init__(self, begun: Any):
        self.begun = self.ready = self.replied = begun

    def send(self, message: Any) -> Any:
        """Take the time at which the message (or another result of the computation) is ready; returns it afterwards.

        If the message is a concatenation, the timestamp precedes it: the transport may concatenate in shared memory.
        """
        if parts := parts_of(message):
            return tf.concat(self.send(parts), 0)
        # A control edge from a function's result does not wait for it; an edge from an identity of it does.
        there = tf.nest.map_structure(tf.identity, message, expand_composites=True)
        self.ready = moment([there, self.begun])
        with tf.control_dependencies([self.ready]):
            return tf.nest.map_structure(tf.identity, there, expand_composites=True)

    @contextmanager
    def reply(self) -> Iterator[None]:
        """Take the time of the reply when every operation built inside the context has run."""
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        yield
        # A group has one edge for each device, not for each operation.
        self.replied = moment([tf.group(*graph.get_operations()[first:]), self.ready])


def stack(taken: Sequence[RoundTimer]) -> Any:
    """Stack the timestamps of several rounds in one operation: an operation for each round would delay the next.

    Returns:
        `begun`, `ready`, `replied`, [rounds, 3].
    """
    moments = [moment for stamps in taken for moment in (stamps.begun, stamps.ready, stamps.replied)]
    return tf.reshape(tf.stack(moments), [len(taken), 3])
