"""Queues between workers of which some may be lost: no operation of a round is on the task of another worker.

TensorFlow aborts a step if a task of one of its operations is lost, and its variables are then between two rounds. So a
worker sends into an outbox on its own task, and receives from an inbox on its own task. The receiver carries messages
from one to the other, each in a step of its own, which alone fails with the sender:

    task of the sender      message -> outbox
                                         |          carry: a thread of the receiver (`tasks.carriers`)
    task of the receiver               inbox -> reply

A sender that is cut off leaves a carry that waits, perhaps for ever. So a carry takes a token before it puts a message
into the inbox, and puts it back with the number of the next round. To leave the sender out, the receiver takes the
token for good, which tells it the first round whose message is missing. Then it puts a mark into the inbox, an empty
vector. It stays there, behind all that was carried: each later message of the sender counts as missing, also one that
was on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import tensorflow as tf

from .channels import Channels
from .cut import TAIL, TIMES, without_times
from .ops import when
from .transport import SharedMemory, SharedTensor, Transport

NO_HANDLE = [0, 0, 0, 0]


class CarriedChannels(Channels):
    """The outboxes and inboxes of one worker.

    Args:
        me: index of the worker.
        devices: devices of the queues of each worker, [W].
        transport: transport between the workers.
        links: initial weights of the links of this worker, [2, rounds, W].

    Attributes:
        links: these weights, a variable.
        number: number of the present round.
    """

    def __init__(self, me: int, devices: Sequence[str], transport: Transport, links: Any):
        super().__init__(me, devices, transport)
        self.number: Any = None
        with tf.device(devices[me]):
            self.links = tf.Variable(links, name=f"links_{me}")

    def at(self, number: Any) -> CarriedChannels:
        """Return the channels in the round of this number, which travels with each message."""
        now = copy(self)
        now.number = number
        return now

    def send(self, to: int, vector: Any, times: Any = None, is_reply: bool = False) -> None:
        """Leave a vector for worker `to`."""
        self._post(to, vector, tf.zeros([0, TIMES + 1], tf.int64))

    def receive(
        self, of: int, size: int | None, times: list[Any] | None = None, is_reply: bool = False, instead: Any = None
    ) -> Any:
        """Receive the next vector [size] of worker `of`; of a lost one, `instead`."""
        vector, _ = self._next(of)
        found = tf.cond(tf.size(vector) > 0, lambda: vector, lambda: instead)
        vector, stamps = without_times(tf.ensure_shape(found, [None if size is None else size + TAIL]))
        if times is not None:
            times.append(stamps)
        return vector

    def hand_over(self, to: int, vector: Any) -> None:
        """Leave a vector for worker `to`, and all rows of this worker."""
        self._post(to, vector, self._own_notes())

    def collected(self, of: int, size: int, number: Any) -> tuple[Any, Any, Any]:
        """Receive what worker `of` has handed over: vector [size], [number] rows; True unless the worker is lost."""
        vector, rows = self._next(of)
        present = tf.size(vector) > 0
        unknown = tf.fill([tf.cast(number, tf.int32), TIMES + 1], tf.constant(-1, tf.int64))
        vector = tf.cond(present, lambda: vector, lambda: tf.zeros([size]))
        return tf.ensure_shape(vector, [size]), tf.cond(present, lambda: rows, lambda: unknown), present

    def _post(self, to: int, vector: Any, rows: Any) -> None:
        sent, handle = self.transport.send(vector), tf.constant(NO_HANDLE, tf.int64)
        if isinstance(sent, SharedTensor):
            sent, handle = tf.zeros([0]), sent.handle
        self._outbox(self.me, to).enqueue([self.number, handle, sent, rows])

    def _next(self, of: int) -> tuple[Any, Any]:
        """Take the next vector and its rows out of an inbox; the mark stays."""
        inbox = self._inbox(of)
        vector, rows = inbox.dequeue()
        when(tf.equal(tf.size(vector), 0), lambda: inbox.enqueue([vector, rows]))
        return vector, rows

    # Steps of their own, outside of rounds.

    def open(self, of: int, number: Any) -> Any:
        """Make the token of worker `of`, whose next message is that of the round of this number."""
        return self._token(of).enqueue(number)

    def carry(self, of: int) -> Any:
        """Move the next message of worker `of` into the inbox."""
        number, handle, vector, rows = self._outbox(of, self.me).dequeue()
        with tf.device(self.devices[self.me]):
            number, handle, rows = tf.identity(number), tf.identity(handle), tf.identity(rows)
            vector = tf.cond(tf.size(vector) > 0, lambda: tf.identity(vector), lambda: self._opened(handle))
            with tf.control_dependencies([number, vector, rows]):  # all is here: what follows cannot fail
                token = self._token(of).dequeue()
            with tf.control_dependencies([token]), tf.control_dependencies([self._inbox(of).enqueue([vector, rows])]):
                return self._token(of).enqueue(number + 1)

    def leave_out(self, of: int) -> Any:
        """Carry nothing of worker `of` from now on; returns the number of the first round whose message is missing."""
        return self._token(of).dequeue()

    def mark_lost(self, of: int) -> Any:
        """Put the mark behind all that worker `of` has sent."""
        return self._inbox(of).enqueue([tf.zeros([0]), tf.zeros([0, TIMES + 1], tf.int64)])

    def close(self, of: int) -> Any:
        """Let the round fail that waits for a message of worker `of`: no more are carried."""
        return self._inbox(of).close()

    def _opened(self, handle: Any) -> Any:
        if not isinstance(self.transport, SharedMemory):
            return tf.zeros([0])
        return self.transport.receive(SharedTensor(handle, tf.float32, tf.TensorShape([None])))

    def _outbox(self, of: int, to: int) -> Any:
        return self._made(f"outbox_{of}_{to}", of, [tf.int64, tf.int64, tf.float32, tf.int64])

    def _inbox(self, of: int) -> Any:
        return self._made(f"inbox_{of}_{self.me}", self.me, [tf.float32, tf.int64])

    def _token(self, of: int) -> Any:
        return self._made(f"token_{of}_{self.me}", self.me, [tf.int64])
