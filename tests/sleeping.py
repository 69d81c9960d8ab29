"""Algorithms whose workers sleep in each round: a run that lasts until a test ends it leaves the cores to others."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from distsgd.algorithms import AsyncSGD, SyncSGD


def rested(message: Any, milliseconds: Any = 100) -> Any:
    """Return the same message some time later."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops.testing import sleep

    rest = tf.data.Dataset.from_tensors(0).apply(sleep(1000 * milliseconds)).get_single_element()
    with tf.control_dependencies([rest]):
        return tf.identity(message)


def in_task() -> bool:
    """True in a task, which receives its job pickled; a test may copy an algorithm, too."""
    return str(getattr(sys.modules["__main__"].__spec__, "name", "")).startswith("distsgd.")


@dataclass(frozen=True, kw_only=True)
class Sleeping(AsyncSGD):
    """Asynchronous SGD, at 100 ms a round."""

    name = "sleeping"

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker))


@dataclass(frozen=True, kw_only=True)
class SleepingBarrier(SyncSGD):
    """Synchronous SGD, at so many milliseconds a round."""

    name = "sleeping_barrier"
    rest: int = 100

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker), self.rest)
