"""Timestamps of a round on the clock of its worker, taken in the graph.

One call executes several rounds, so only the graph can take the time of each. The timestamps are in order: each is
taken after the one before it, and a message leaves after the timestamp of its completion. They travel beside the
message; the reply to a message is later, and so are the steps made meanwhile: their timestamps travel with the next
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ..messages.cut import parts_of
from ..messages.ops import clock
from ..sync.store import Message

CPU = "/device:CPU:0"  # of the worker's task, also if the worker computes on a GPU


def moment(after: Sequence[Any] = ()) -> Any:
    """Return the time at which every tensor in `after` is computed: microseconds since 1970, int64."""
    with tf.control_dependencies(tf.nest.flatten(after, expand_composites=True)), tf.device(CPU):
        return clock()


class RoundTimer:
    """The timestamps of one round, taken in the order in which the round is built.

    Args:
        begun: start of the round.
        before: the `end` of the round before.

    Attributes:
        begun, ready, computed, replied: scalars in microseconds since 1970, int64; see `server.trace`.
    """

    def __init__(self, begun: Any, before: Any):
        self.begun = self.ready = self.computed = self.replied = begun
        self.before = before

    @property
    def times(self) -> Any:
        """The timestamps that travel beside the message, [4]: `begun`, `ready`, and the `end` of the round before."""
        with tf.device(CPU):
            return tf.concat([[self.begun, self.ready], self.before], 0)

    @property
    def end(self) -> Any:
        """The timestamps that travel with the next message, [2]: `computed` and `replied`."""
        with tf.device(CPU):
            return tf.stack([self.computed, self.replied])

    def send(self, message: Any, in_parts: bool = False, after: Sequence[Any] = ()) -> Any:
        """Take the time at which the message (or another result of the computation) is ready.

        If the vector is a concatenation, its parts are ready, and are concatenated after the timestamp: the transport
        may do that in shared memory.

        Args:
            message: the message, or a structure of tensors.
            in_parts: True if each part leaves as soon as it is computed. Then only the first, which leaves last, waits
                for the timestamp.
            after: other results of the computation, for which the timestamp waits, too.

        Returns:
            the message, which is available only after the timestamp.
        """
        if isinstance(message, Message) and (parts := parts_of(message.vector)):
            timed, scalars = self.send((parts, message.scalars), after=after)
            return Message(tf.concat([timed[0], *parts[1:]] if in_parts else timed, 0), scalars)
        # A control edge from a function's result does not wait for it; an edge from an identity of it does.
        computed, others = tf.nest.map_structure(tf.identity, (message, list(after)), expand_composites=True)
        self.ready = self.computed = moment([computed, others, self.begun])
        with tf.control_dependencies([self.ready]):
            return tf.nest.map_structure(tf.identity, computed, expand_composites=True)

    def overlap(self, result: Any) -> Any:
        """Take the time at which the steps after the message are done; returns `result`, a tensor that they compute."""
        output = tf.identity(result)
        self.computed = moment([output, self.ready])
        return output

    @contextmanager
    def reply(self) -> Iterator[None]:
        """Take the time of the reply when every operation built inside the context has run."""
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        yield
        # Wait for all these operations through a group, which needs one control edge for each device.
        self.replied = moment([tf.group(*graph.get_operations()[first:]), self.computed])
