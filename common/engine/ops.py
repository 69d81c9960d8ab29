"""Small pieces of graphs that workers and parameter server are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


class _Building(threading.local):
    """What a thread does now."""

    here = False  # it builds a graph


_BUILDING = _Building()


@contextmanager
def building(graph: Any) -> Iterator[None]:
    """Build into this graph, in whose functions `==` and `!=` compare the values of tensors and variables.

    Everywhere else in TensorFlow 2 they do. In the functions of a graph that a session runs they would compare objects,
    as in TensorFlow 1: `worker.round == 0` in a scheme, or `y == 0` in a loss, would be False, whatever the values are.
    """
    before, _BUILDING.here = _BUILDING.here, True
    try:
        with graph.as_default():
            yield
    finally:
        _BUILDING.here = before


def _compare_values(kind: Any, name: str, compare: Callable[..., Any]) -> None:
    """Let that operator of a kind of tensors `compare` values, in functions of a graph that is built."""
    objects = getattr(kind, name)

    def operator(self: Any, other: Any) -> Any:
        if other is None or not _BUILDING.here or not tf.inside_function():
            return objects(self, other)  # outside of functions TensorFlow itself looks for tensors in lists
        return compare(x=self, y=other, incompatible_shape_error=False)

    setattr(kind, name, operator)


for _kind in (tf.Tensor, tf.Variable):
    _compare_values(_kind, "__eq__", tf.raw_ops.Equal)
    _compare_values(_kind, "__ne__", tf.raw_ops.NotEqual)


def first_values(build: Callable[[Any], Any], vector: Any) -> Any:
    """What a scheme builds of a vector for variables to begin with: in a function, where `==` compares values."""
    return tf.function(build, autograph=False)(vector)


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


def unless_so(condition: Any, otherwise: Callable[[], Any], value: Any) -> Any:
    """Return a value, or `otherwise` where the condition holds; there is none if it is None."""
    return value if condition is None else tf.where(condition, otherwise(), value)


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
