"""The local steps of a worker: a gradient on each batch, and the scheme's step with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..contract.views import MESSAGE_ONLY
from ..messages.ops import zeros
from .buckets import Buckets
from .replica import Replica


class LocalSteps:
    """The computation of a worker between two messages.

    Attributes:
        scheme: the algorithm.
        replica: the model on its devices, and its batches.
        buckets: buckets of the worker's vectors.
        views: the scheme's views of the worker, one for each bucket.
        clock: local steps done, for schedules.
        is_center: True if the worker's parameters are the center.
    """

    scheme: Scheme
    replica: Replica
    buckets: Buckets
    views: list[Any]
    clock: Any
    is_center: bool

    def _local_steps(self, rows: Any, after: Any, first: Any) -> Any:
        """Make one local step for each of `rows`, numbered from `first`, after the tensor `after`; returns the loss."""
        if self.scheme.period == 1:
            loss, gradients = self._gradient(rows[0], after)
            self._step(gradients)
            show(self.views, step=first + 1)
            show_each(self.views, gradient=gradients)
            if self.scheme.uses_gradient_sum:
                show_each(self.views, gradient_sum=gradients)
            return loss

        def step(t: Any, total: Any, sums: Any) -> tuple[Any, Any, Any]:
            show(self.views, step=first + tf.cast(t, tf.int64))
            loss, gradients = self._gradient(rows[t])
            self._step(gradients)
            return t + 1, total + loss, [a + g for a, g in zip(sums, gradients, strict=True)] if sums else []

        with tf.control_dependencies([after]):
            nothing = [zeros(size) for size in self.buckets.sizes] if self.scheme.uses_gradient_sum else []
            start = tf.constant(0), tf.constant(0.0), nothing
        _, total, sums = tf.while_loop(lambda t, *_: t < tf.shape(rows)[0], step, start, parallel_iterations=1)
        show(self.views, step=first + tf.shape(rows, tf.int64)[0])
        if self.scheme.uses_gradient_sum:
            show_each(self.views, gradient_sum=sums)
        return total

    def _step(self, gradients: Sequence[Any]) -> None:
        scheme = self._scheme_now()
        if len(gradients) > 1:
            # Update no variable before all gradients are computed: TensorFlow would copy a variable that the rest of
            # the backward pass still reads. The identities make the control edges wait, see `RoundTimer`.
            gradients = [tf.identity(gradient) for gradient in gradients]
        with tf.control_dependencies(gradients if len(gradients) > 1 else []):
            for view, gradient in zip(self.views, gradients, strict=True):
                scheme.local_step(view, gradient)
        if self.scheme.scheduled or self.is_center:
            self.clock.assign_add(1)

    def _scheme_now(self) -> Scheme:
        """Return the scheme with its current learning rates."""
        return self.scheme.at(tf.cast(self.clock.read_value(), tf.float32)) if self.scheme.scheduled else self.scheme

    def _gradient(self, rows: Any, *after: Any) -> tuple[Any, list[Any]]:
        """Return loss and gradient (in buckets) on one batch; only the read of the parameters waits for `after`."""
        with tf.control_dependencies(after):
            point = [tf.identity(self.scheme.gradient_point(view)) for view in self.views]
        loss, gradient = self.replica.gradient(self.buckets.of_variables(point), rows)
        return loss, self.buckets.from_variables(gradient)


def show(views: Iterable[Any], **known: Any) -> None:
    """Set the same attributes on the view of each bucket of a worker."""
    for view in views:
        vars(view).update(known)


def hide(views: Iterable[Any]) -> None:
    """Remove the attributes that only `Scheme.message` may read."""
    for view in views:
        for name in MESSAGE_ONLY:
            vars(view).pop(name, None)


def show_each(views: Iterable[Any], **vectors: Sequence[Any]) -> None:
    """Set attributes that differ between the views: for each name, one vector for each bucket."""
    for name, parts in vectors.items():
        for view, part in zip(views, parts, strict=True):
            setattr(view, name, part)
