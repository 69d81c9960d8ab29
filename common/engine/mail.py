"""Tensors that workers send to each other, without a parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .transport import Parcel, Transport


class Mail:
    """What a worker sends to others, and has from them: a queue for each pair and way, on the task of the reader.

    Between two workers the order alone says which tensor is which. It is the order in which a function has them, for
    that runs operations on one queue one after the other, as they are written. Vectors that go through shared memory
    have queues of their own, for what says where they lie.

    Queues live as long as their server or session, and what a round that failed has left there would be taken by the
    next one. But without a ps no worker goes on after a call that failed (see `WorkerRecovery`), and none is started
    again (see `RestartRule`).

    Args:
        me: index of the worker.
        devices: of the queues of each worker, [W].
        transport: between the workers.
    """

    def __init__(self, me: int, devices: Sequence[str], transport: Transport):
        self.me, self.devices, self.transport = me, devices, transport
        self.queues: dict[tuple[int, int, Any], Any] = {}

    def send(self, to: int, vector: Any) -> None:
        """The next thing that worker `to` has from this one. It is not waited for, but at the end of the call."""
        parcel = self.transport.depart(vector)
        content = parcel.ticket if isinstance(parcel, Parcel) else parcel
        self._queue(self.me, to, content.dtype).enqueue([content])

    def receive(self, of: int, size: int | None) -> Any:
        """The next thing that worker `of` has sent, a vector [size]."""
        shape = tf.TensorShape([size])
        if self.transport.shares(tf.float32, shape):
            return self.transport.arrive(Parcel(self._queue(of, self.me, tf.int64).dequeue(), tf.float32, shape))
        return tf.ensure_shape(self._queue(of, self.me, tf.float32).dequeue(), shape)

    def _queue(self, of: int, at: int, dtype: Any) -> Any:
        """Made when it is first used, and outside of functions: each of them has the same one."""
        if (of, at, dtype) not in self.queues:
            with tf.init_scope(), tf.device(self.devices[at]):
                queue = tf.queue.FIFOQueue(-1, [dtype], shared_name=f"mail_{dtype.name}_{of}_{at}")
            self.queues[of, at, dtype] = queue
        return self.queues[of, at, dtype]
