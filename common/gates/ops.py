"""Small pieces of graphs that gates are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def queue(name: str, shared_name: str | None = None, shape: Sequence[int] = (), dtype: Any = "bool") -> Any:
    """An unbounded queue on the present device, shared by name among the tasks."""
    import tensorflow as tf

    return tf.queue.FIFOQueue(-1, [tf.as_dtype(dtype)], [list(shape)], shared_name=shared_name or name, name=name)


def when(condition: Any, action: Callable[[], None]) -> Any:
    """Build `action` to run only if `condition` holds; the returned tensor is there when it has run.

    A control edge from a `tf.cond` does not wait for what its branches do to variables; an edge from a tensor
    made of its output does.
    """
    import tensorflow as tf

    def act() -> Any:
        action()
        return tf.constant(True)  # inside a function, a result waits for everything that was built before it

    return tf.identity(tf.cond(condition, act, lambda: tf.constant(False)))
