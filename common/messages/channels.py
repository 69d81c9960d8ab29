"""Point-to-point queues between workers, without a parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .cut import TAIL, TIMES, with_times, without_times
from .transport import SharedTensor, Transport


class Channels:
    """The queues of one worker: two for each pair of workers and direction, on the task of the receiver.

    Between two workers, tensors are identified by their order alone. It is the order of the Python code, because a
    function runs the operations on one queue in that order. Replies have a queue of their own, so that no tensor waits
    for the reply to the one before. Handles of vectors in shared memory have separate queues.

    Queues live as long as their server or session, so a failed round leaves tensors that the next round would receive.
    But without a ps no worker continues after a failed call (see `WorkerRecovery`), and none is restarted (see
    `RestartRule`).

    Args:
        me: index of the worker.
        devices: devices of the queues of each worker, [W].
        transport: transport between the workers.
    """

    def __init__(self, me: int, devices: Sequence[str], transport: Transport):
        self.me, self.devices, self.transport = me, devices, transport
        self.queues: dict[str, Any] = {}

    def at(self, number: Any) -> Channels:
        """Return the channels in the round of this number."""
        return self

    def send(self, to: int, vector: Any, times: Any = None, is_reply: bool = False) -> None:
        """Send a tensor to worker `to`, with `times` [TIMES] if given; both sides say whether it `is_reply`.

        Only the end of the call waits for the operation.
        """
        shared_tensor = self.transport.send(vector if times is None else with_times(vector, times))
        content = shared_tensor.handle if isinstance(shared_tensor, SharedTensor) else shared_tensor
        self._queue(self.me, to, content.dtype, is_reply).enqueue([content])

    def receive(
        self, of: int, size: int | None, times: list[Any] | None = None, is_reply: bool = False, instead: Any = None
    ) -> Any:
        """Receive the next tensor from worker `of`, a vector [size]; append the times sent with it.

        `instead`: vector and times in place of those of a lost worker, see `carried`.
        """
        if times is not None:
            vector, stamps = without_times(self.receive(of, None if size is None else size + TAIL))
            times.append(stamps)
            return vector
        shape = tf.TensorShape([size])
        if self.transport.shares(tf.float32, shape):
            handle = self._queue(of, self.me, tf.int64, is_reply).dequeue()
            return self.transport.receive(SharedTensor(handle, tf.float32, shape))
        return tf.ensure_shape(self._queue(of, self.me, tf.float32, is_reply).dequeue(), shape)

    def with_times(self, vector: Any, times: Any) -> Any:
        """Return a vector to `send` to several workers, which receive the times with it."""
        return with_times(vector, times)

    # Times of rounds. Each worker notes its own in a queue on its own task, and sends them to another one later.

    def note(self, row: Any) -> None:
        """Note a row of times, [TIMES + 1]."""
        self._notes(self.me, self.me).enqueue(row)

    def hand_over(self, to: int, vector: Any) -> None:
        """Send a vector to worker `to`, and all rows of this worker; not in the queue of messages, as for replies."""
        self.send(to, vector, is_reply=True)
        self._notes(self.me, to).enqueue_many(self._own_notes())

    def collected(self, of: int, size: int, number: Any) -> tuple[Any, Any, Any]:
        """Receive what worker `of` has handed over: vector [size], [number] rows; True unless the worker is lost."""
        return self.receive(of, size, is_reply=True), self.notes(of, number), tf.constant(True)

    def _own_notes(self) -> Any:
        notes = self._notes(self.me, self.me)
        return notes.dequeue_many(notes.size())

    def notes(self, of: int, number: Any) -> Any:
        """Return the next rows that worker `of` has noted, [number, TIMES + 1]."""
        return self._notes(of, self.me).dequeue_many(tf.cast(number, tf.int32))

    def _notes(self, of: int, at: int) -> Any:
        """Return the queue on the task of worker `at` with the times of worker `of`."""
        return self._made(f"notes_{of}_{at}", at, [tf.int64], [[TIMES + 1]])

    def _queue(self, of: int, at: int, dtype: Any, is_reply: bool) -> Any:
        """Return the queue on the task of worker `at` with tensors of worker `of`, of this type."""
        return self._made(f"{'replies' if is_reply else 'mail'}_{dtype.name}_{of}_{at}", at, [dtype])

    def _made(self, name: str, at: int, kinds: Sequence[Any], shapes: Any = None) -> Any:
        """Return the queue of this name on the task of worker `at`.

        It is made at its first use, outside of functions, so that all functions share it.
        """
        if name not in self.queues:
            with tf.init_scope(), tf.device(self.devices[at]):
                self.queues[name] = tf.queue.FIFOQueue(-1, kinds, shapes, shared_name=name)
        return self.queues[name]
