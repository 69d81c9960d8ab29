"""Small pieces of graphs that workers and parameter server are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..gates.ops import queue


class Cut:
    """Cuts coordinates of the whole vector into the parts that lie on each slice of the center."""

    def __init__(self, indices: Any, sizes: Sequence[int]):
        import tensorflow as tf

        self.count = len(sizes)
        ends = np.cumsum(sizes)
        self.owner = tf.searchsorted(tf.constant(ends, indices.dtype), indices, side="right")
        starts = [0, *ends[:-1].tolist()]
        self.indices = [part - start for part, start in zip(self.cut(indices), starts, strict=True)]

    def cut(self, values: Any) -> list[Any]:
        """What belongs to each slice."""
        import tensorflow as tf

        return tf.dynamic_partition(values, self.owner, self.count) if self.count > 1 else [values]

    def join(self, parts: Sequence[Any]) -> Any:
        """The parts in the order in which they were before."""
        import tensorflow as tf

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
