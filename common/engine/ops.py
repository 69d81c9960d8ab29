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


def is_finite(message: Any) -> Any:
    """True if no element is NaN or infinite (nor their sum): twice as fast as looking at each."""
    values = message.values if isinstance(message, tf.IndexedSlices) else message
    return tf.math.is_finite(tf.reduce_sum(values))


def parts_of(vector: Any) -> list[Any]:
    """The vectors that one, [n], is put together of, one after the other; none if it is not."""
    is_joined = isinstance(vector, tf.Tensor) and vector.shape.rank == 1 and vector.op.type == "ConcatV2"
    return list(vector.op.inputs)[:-1] if is_joined else []


def joined(parts: Sequence[Any]) -> Any:
    """One vector of several, or the only one."""
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


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
