"""Sources of a worker's batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Shard:
    """Batches from arrays on the worker's device; the rows select the examples of a batch."""

    def __init__(self, arrays: Sequence[np.ndarray], prefix: str):
        self.fed = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
        self.variables = [
            tf.Variable(fed, trainable=False, name=f"{prefix}_data_{i}") for i, fed in enumerate(self.fed)
        ]
        self.initialize = tf.group(*(v.initializer for v in self.variables))

    def batch(self, rows: Any) -> list[Any]:
        """Return the examples in those rows."""
        return [tf.gather(v, rows) for v in self.variables]


class Stream:
    """Batches from a `tf.data.Dataset`; the rows only count steps.

    The iterator has a name, so that it belongs to the task and not to a session: a worker that reconnects continues
    with the next batch.
    """

    def __init__(self, dataset: Any, prefix: str):
        self.iterator = tf.compat.v1.data.make_initializable_iterator(dataset, shared_name=f"{prefix}_batches")
        self.initialize = self.iterator.initializer
        self.fed: list[Any] = []

    def batch(self, rows: Any) -> list[Any]:
        """Return the next batch."""
        del rows
        return tf.nest.flatten(self.iterator.get_next())
