"""Tensors that workers send to each other, without a parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Mail:
    """What a worker sends to others, and has from them: a queue for each pair and way, on the task of the reader.

    Between two workers the order alone says which tensor is which. It is the order in which a function has them, for
    that runs operations on one queue one after the other, as they are written.

    Queues live as long as their server, and what a round that failed has left there would be taken by the next one. But
    without a ps no worker goes on after a call that failed, and none is started again (see `RestartRule`).

    Args:
        me: index of the worker.
        devices: of the queues of each worker, [W].
    """

    def __init__(self, me: int, devices: Sequence[str]):
        self.me, self.devices = me, devices
        self.queues: dict[tuple[int, int], Any] = {}

    def send(self, to: int, vector: Any) -> None:
        """The next thing that worker `to` has from this one. It is not waited for, but at the end of the call."""
        self._queue(self.me, to).enqueue([vector])

    def receive(self, of: int) -> Any:
        """The next thing that worker `of` has sent, a vector."""
        return self._queue(of, self.me).dequeue()

    def _queue(self, of: int, at: int) -> Any:
        """Made when it is first used, and outside of functions: each of them has the same one."""
        if (of, at) not in self.queues:
            with tf.init_scope(), tf.device(self.devices[at]):
                self.queues[of, at] = tf.queue.FIFOQueue(-1, [tf.float32], shared_name=f"mail_{of}_{at}")
        return self.queues[of, at]
