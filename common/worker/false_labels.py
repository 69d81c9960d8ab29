"""Labels that a hostile worker counts from the other end (`--hostile label-flip:2`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..lazy import tf


def with_false_labels(batch: Any, largest: Sequence[float | None], is_hostile: Any) -> Any:
    """Return a batch (x, y, ...) with other labels in y if `is_hostile`, a flag: y₀ − y, with y₀ the largest label.

    A one-hot label, for which `largest` has None, is read from its end.
    """

    def false(y: Any, most: float | None) -> Any:
        if most is None:
            other = tf.reverse(y, [-1])
        else:
            other = tf.logical_not(y) if y.dtype == tf.bool else tf.cast(most, y.dtype) - y
        return tf.where(is_hostile, other, y)

    x, y, *rest = batch
    others = [false(*pair) for pair in zip(tf.nest.flatten(y), largest, strict=True)]
    return (x, tf.nest.pack_sequence_as(y, others), *rest)
