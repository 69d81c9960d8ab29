"""Algorithms whose workers sleep in each round: a run that lasts until a test ends it leaves the cores to others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distsgd.algorithms import AsyncSGD, DecoupledDiLoCo, SyncSGD


def rested(message: Any, milliseconds: Any = 100) -> Any:
    """Return the same message some time later."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops.testing import sleep

    rest = tf.data.Dataset.from_tensors(0).apply(sleep(1000 * milliseconds)).get_single_element()
    with tf.control_dependencies([rest]):
        return tf.identity(message)


@dataclass(frozen=True, kw_only=True)
class Sleeping(AsyncSGD):
    """Asynchronous SGD, at 100 ms a round."""

    name = "sleeping"

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker))


@dataclass(frozen=True, kw_only=True)
class SleepingBarrier(SyncSGD):
    """Synchronous SGD, at 100 ms a round."""

    name = "sleeping_barrier"

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker))


@dataclass(frozen=True, kw_only=True)
class LateWorker(DecoupledDiLoCo):
    """Decoupled DiLoCo on three workers, the last of which needs 150 ms more for each round."""

    name = "decoupled_diloco"

    def message(self, worker: Any) -> Any:
        import tensorflow as tf

        vector, scalars = super().message(worker)
        return rested(vector, tf.where(tf.equal(worker.index, 2), tf.constant(150, tf.int64), 0)), scalars
