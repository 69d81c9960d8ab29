"""A worker whose gradients come from a script: its graph passes each point to the script, and waits for a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..messages.ops import when
from .parameters import Parameters
from .timing import CPU
from .worker import DenseWorker
from .worker_rules import show


class FedReplica:
    """The gradients of a script, with the interface of a `Replica`.

    Args:
        model: the parameters, with the function that passes a point to the script.
        name: prefix of the names of its variables.
        device: device of the worker.

    Attributes:
        may_end: a tensor: True if the round may end here, before its last step, because the script has left its loop.
        more: of the last gradient, a tensor: False if the script has left its loop; the gradient is then zeros.
        is_point: of the last gradient, a tensor: True if it is the point that the script's optimizer has reached.
    """

    needs_vector = True

    def __init__(self, model: Parameters, name: str, device: str):
        self.model, self.devices, self.local = model, [device], {}
        self.may_end = self.more = self.is_point = tf.constant(False)
        with tf.device(device):
            self.state = tf.Variable(tf.zeros([0]), name=f"{name}_state")
            self.initialize = self.state.initializer
        self.fed = [], []

    def gradient(self, params: Any, rows: Any) -> tuple[Any, Any]:
        """Build the wait for the loss and the gradient [P] of the script at `params` [P].

        Args:
            params: the point.
            rows: the number of the call, in place of the rows of a batch.
        """
        with tf.device(CPU):
            kinds, inputs = [tf.float32, tf.float32, tf.bool, tf.bool], [params, self.may_end, rows[0]]
            gradient, loss, is_point, more = tf.numpy_function(self.model.take, inputs, kinds)
        self.is_point, self.more = tf.ensure_shape(is_point, []), tf.ensure_shape(more, [])
        return tf.ensure_shape(loss, []), tf.ensure_shape(gradient, [self.model.size])

    def keep_state(self, fine: Any, before: Any) -> None:
        """Keep no state: layers and their statistics belong to the script."""


class FedWorker(DenseWorker):
    """A worker whose rounds end early if the script leaves its loop."""

    replica: Any

    may_end = True

    def _local_step(self, rows: Any, t: Any) -> tuple[Any, list[Any], list[Any]]:
        """Make the local step `t`, unless the script has left its loop: the round then has the steps made so far."""
        self.replica.may_end = t > 0
        loss, gradients = self._gradient(rows)
        more = self.replica.more
        stepped = when(more, lambda: self._step(gradients))
        return loss, gradients, [stepped & more]

    def message(self, scheme: Any, begun: Any, total: Any = None) -> Any:
        """Build the message, which with gossip waits for the last gradient: the script may leave in place of it.

        Otherwise parameters from before that step could reach neighbours, for a round that this worker never makes.
        """
        with tf.control_dependencies([total] if scheme.sync.gossips else []):
            return super().message(scheme, begun, total)

    def _end_steps(self, first: Any, count: Any) -> None:
        super()._end_steps(first, count)
        self.replica.may_end = tf.constant(False)
        show(self.views, steps=tf.cast(count, tf.float32))

    def _step(self, gradients: Sequence[Any]) -> None:
        """Make a local step, unless the optimizer of the script has made it: then adopt its point."""
        own_step = super()._step
        if not self.scheme.makes_inner_steps:
            return own_step(gradients)

        def adopt() -> None:
            for view, point in zip(self.views, gradients, strict=True):
                view.params.assign(point)
            self._count_step()

        when(self.replica.is_point, adopt, lambda: own_step(gradients))
