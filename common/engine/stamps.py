"""The moments of a round on the clock of its worker, taken in the graph.

Rounds follow one another in one call, so only the graph knows when each of them is where. The moments are in order:
each is taken after the one before it, and a message leaves after the moment at which it is ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ..contract.cut import parts_of


def moment(after: Sequence[Any] = ()) -> Any:
    """The time when everything in `after` is there: seconds since 1970, float64."""
    with tf.control_dependencies(tf.nest.flatten(after, expand_composites=True)):
        now = tf.timestamp()
    # A function orders its stateful operations, that of the ps to release the lock among them: to wait for that would
    # be a message more in each round.
    if order := getattr(now.graph, "experimental_acd_manager", None):
        order.run_independently(now.op)
    return now


class Stamps:
    """The moments of one round, in the order in which the round is built.

    Args:
        begun: when it began.

    Attributes:
        begun, ready, replied: scalars in seconds since 1970, float64.
    """

    def __init__(self, begun: Any):
        self.begun = self.ready = self.replied = begun

    def send(self, message: Any) -> Any:
        """The message (or what else is there when the worker has computed enough), once its moment has been taken.

        One that is put together of several parts is put together after that moment, perhaps where it lies in memory.
        """
        if parts := parts_of(message):
            return tf.concat(self.send(parts), 0)
        # A control edge from a function's result does not wait for it, one from a tensor made of it does.
        there = tf.nest.map_structure(tf.identity, message, expand_composites=True)
        self.ready = moment([there, self.begun])
        with tf.control_dependencies([self.ready]):
            return tf.nest.map_structure(tf.identity, there, expand_composites=True)

    @contextmanager
    def reply(self) -> Iterator[None]:
        """The reply is there when all that is built inside has been done."""
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        yield
        # A group has one edge for each device, not for each operation.
        self.replied = moment([tf.group(*graph.get_operations()[first:]), self.ready])


def stack(taken: Sequence[Stamps]) -> Any:
    """The moments of several rounds, in one operation: one for each round would be in the way of the next.

    Returns:
        `begun`, `ready`, `replied`, [rounds, 3].
    """
    moments = [moment for stamps in taken for moment in (stamps.begun, stamps.ready, stamps.replied)]
    return tf.reshape(tf.stack(moments), [len(taken), 3])
