"""Small pieces of graphs that workers and parameter server are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Cut:
    """Cuts coordinates of the whole vector into the parts that lie on each slice of the center."""

    def __init__(self, indices: Any, sizes: Sequence[int]):
        self.count = len(sizes)
        ends = np.cumsum(sizes)
        self.owner = tf.searchsorted(tf.constant(ends, indices.dtype), indices, side="right")
        starts = [0, *ends[:-1].tolist()]
        self.indices = [part - start for part, start in zip(self.cut(indices), starts, strict=True)]

    def cut(self, values: Any) -> list[Any]:
        """What belongs to each slice."""
        return tf.dynamic_partition(values, self.owner, self.count) if self.count > 1 else [values]

    def join(self, parts: Sequence[Any]) -> Any:
        """The parts in the order in which they were before."""
        if self.count == 1:
            return parts[0]
        return tf.dynamic_stitch(self.cut(tf.range(tf.shape(self.owner)[0])), parts)


def even_sizes(size: int, parts: int) -> list[int]:
    """Sizes of `parts` contiguous slices of a vector of `size`, different by one at most."""
    return [size // parts + (i < size % parts) for i in range(parts)]


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


def queue(name: str, shared_name: str | None = None, shape: Sequence[int] = (), dtype: Any = "bool") -> Any:
    """An unbounded queue on the present device, shared by name among the tasks."""
    return tf.queue.FIFOQueue(-1, [tf.as_dtype(dtype)], [list(shape)], shared_name=shared_name or name, name=name)


def when(condition: Any, action: Callable[[], None]) -> Any:
    """Build `action` to run only if `condition` holds; the returned tensor is there when it has run.

    A control edge from a `tf.cond` does not wait for what its branches do to variables; an edge from a tensor
    made of its output does.
    """

    def act() -> Any:
        action()
        return tf.constant(True)  # inside a function, a result waits for everything that was built before it

    return tf.identity(tf.cond(condition, act, lambda: tf.constant(False)))
