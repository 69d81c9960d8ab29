"""The numbers by which Keras divides the losses of a batch, which the gradients of several batches are weighed by.

Keras divides the sum of a loss by

    sum                             nothing
    sum_over_batch_size, mean       the number of its values; with a mask, those that it keeps
    mean_with_sample_weight         the sum of the weights, times the mask; without both, the number of its values

The mean of the gradients of batches of one size is that of the batch that they are together, if only numbers of values
divide. If a mask or a sum of weights divides, it is the mean by these numbers, n_k: Σ n_k g_k / Σ n_k; of batches of
several sizes by those of their examples. A penalty of the parameters alone is the same in all of them, and remains so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

from ..contract.weighed import mask_of
from ..lazy import keras, tf


class Divisors:
    """What divides the losses of one batch, as Keras computes them.

    Args:
        batches: number of batches whose mean gradient makes a step. A loss that is a sum is multiplied by it, so that
            the mean is that of the sum over all.

    Attributes:
        has_sums: True if a loss is a sum over the batch.
        has_others: True if something else in the loss depends on the batch: a loss without mask and divisor of its own,
            or a term of a layer (`add_loss`, `activity_regularizer`).
    """

    def __init__(self, batches: int = 1):
        self.batches, self.has_sums, self.has_others = batches, False, False
        self._counts: dict[Any, Callable[[], Any]] = {}  # of masks and sums of weights, which vary

    @property
    def vary(self) -> bool:
        """True if a mask or a sum of weights divides a loss."""
        return bool(self._counts)

    @property
    def agree(self) -> bool:
        """True if one and the same number divides all that depends on the batch."""
        return len(self._counts) == 1 and not (self.has_sums or self.has_others)

    def count(self, batch: Any) -> Any:
        """Return the number that divides the loss of the batch, a scalar: of its examples where nothing else varies."""
        (count,) = self._counts.values() or [lambda: tf.shape(tf.nest.flatten(batch)[0])[0]]
        return tf.cast(count(), tf.float32)

    @contextmanager
    def watching(self, model: Any, y: Any, y_pred: Any, weight: Any) -> Iterator[None]:
        """Note what divides the compiled losses that are computed inside the context, on these tensors."""
        if type(model).compute_loss is not keras.Model.compute_loss:
            self.has_others = True  # what it computes beside the compiled losses, or in place of them
            masks = [mask for part in keras.tree.flatten(y_pred) if (mask := mask_of(part)) is not None]
            self._counts |= {("own", id(mask)): partial(tf.reduce_sum, mask) for mask in masks}
        compiled: Any = getattr(model, "_compile_loss", None)
        if compiled is None:
            yield
            return
        if not compiled.built:
            compiled(y, y_pred, weight)
        kept = compiled._flat_losses
        compiled._flat_losses = [entry._replace(loss=partial(self._noted, entry.loss)) for entry in kept]
        try:
            yield
        finally:
            compiled._flat_losses = kept

    def _noted(self, loss: Any, y_true: Any, y_pred: Any, weight: Any = None) -> Any:
        """Return a loss of the batch, times the number of batches if it is a sum."""
        value = loss(y_true, y_pred, weight)
        if loss.reduction == "sum":
            self.has_sums = True
            return value * self.batches
        masks = _masks(loss, y_true, y_pred)
        weighs = loss.reduction == "mean_with_sample_weight" and weight is not None
        if not masks and not weighs:
            self.has_others = True
        else:
            key = *map(id, masks), id(weight) if weighs else None
            self._counts[key] = partial(_count, loss, masks, weight if weighs else None)
        return value


def _masks(loss: Any, y_true: Any, y_pred: Any) -> list[Any]:
    """Return the masks of the values of a loss: that of the output, and that of the loss itself (`ignore_class`)."""
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        return []
    tensors = [
        keras.tree.map_structure(lambda x: keras.ops.convert_to_tensor(x, dtype=loss.dtype), y)
        for y in (y_true, y_pred)
    ]
    return [mask for part in (y_pred, loss.call(*tensors)) if (mask := mask_of(part)) is not None]


def _count(loss: Any, masks: list[Any], weight: Any) -> Any:
    """Return the number of values that the masks keep, or the sum of their weights."""
    mask = reduce(tf.logical_and, [tf.cast(mask, tf.bool) for mask in masks]) if masks else None
    if weight is None:
        return tf.reduce_sum(tf.cast(mask, tf.float32))
    weight = keras.ops.convert_to_tensor(weight, dtype=loss.dtype)
    return tf.reduce_sum(keras.src.losses.loss.apply_mask(weight, mask, loss.dtype, loss.reduction))
