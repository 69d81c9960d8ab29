"""Small pieces of graphs that workers and parameter server are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def turnstile(shared: Any) -> Any:
    """Wait for a token and put it back for the next."""
    token = shared.dequeue()
    with tf.control_dependencies([token]):
        return shared.enqueue(token)


def end_queue(index: int) -> Any:
    """Where a ps task waits for the end of the run."""
    return queue(f"end_{index}")


def zeros(size: int) -> Any:
    """A vector of zeros, [size]. Of `tf.zeros` TensorFlow would first make a constant, to see if it is a small one."""
    return tf.raw_ops.Empty(shape=[size], dtype=tf.float32, init=True)


def is_finite(message: Any) -> Any:
    """True if no element is NaN or infinite (nor their sum): twice as fast as looking at each."""
    values = message.values if isinstance(message, tf.IndexedSlices) else message
    return tf.math.is_finite(tf.reduce_sum(values))


def queue(name: str, shared_name: str | None = None, shape: Sequence[int] = (), dtype: Any = "bool") -> Any:
    """An unbounded queue on the present device, shared by name among the tasks."""
    return tf.queue.FIFOQueue(-1, [tf.as_dtype(dtype)], [list(shape)], shared_name=shared_name or name, name=name)


def when(condition: Any, action: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> Any:
    """Build `action` to run only if `condition` holds, and `otherwise` if not; the returned tensor is there after it.

    A control edge from a `tf.cond` does not wait for what its branches do to variables; an edge from a tensor
    made of its output does.
    """

    def done(build: Callable[[], Any], result: bool) -> Callable[[], Any]:
        def act() -> Any:
            build()
            return tf.constant(result)  # inside a function, a result waits for everything that was built before it

        return act

    return tf.identity(tf.cond(condition, done(action, True), done(otherwise, False)))
