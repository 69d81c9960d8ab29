"""The model on the devices of a worker: the loss and the gradient of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .batches import Shard, Stream
from .flat_model import FlatModel


class Replica:
    """What a worker needs besides parameters to take a gradient: data, running statistics, random seeds.

    Args:
        model: what is trained.
        gradient: `model.gradient` as a function of the graph, shared by all workers in it.
        name: prefix of the names of its variables.
        worker: which one this is, and of how many.
        devices: where it computes; its batches are split evenly over them. Its variables are on the first.
        source: its batches.
        structure: how x and y are nested.
        l2: adds l2/2 |x|^2 to the loss.
        clip_norm: gradients are clipped to this norm of the whole vector.
    """

    def __init__(
        self,
        model: FlatModel,
        gradient: Any,
        name: str,
        worker: tuple[Any, int],
        devices: Sequence[str],
        source: Shard | Stream,
        structure: Any,
        l2: float = 0.0,
        clip_norm: float | None = None,
    ):
        self.model, self.devices, self.l2, self.clip_norm = model, devices, l2, clip_norm
        self.source, self.structure, self._gradient_function = source, structure, gradient
        index, self.num_workers = worker
        with tf.device(devices[0]):
            self.state = tf.Variable(tf.zeros([model.state_size]), name=f"{name}_state")
            self.seeds = [  # no two workers drop the same
                tf.Variable(value + tf.cast(index, value.dtype), name=f"{name}_seed_{i}")
                for i, value in enumerate(model.initial_seeds)
            ]
            # Fed once, like the data: constants would make the graph as large as the model.
            self.fed = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in model.frozen]
            self.frozen = [
                tf.Variable(fed, trainable=False, name=f"{name}_frozen_{i}") for i, fed in enumerate(self.fed)
            ]
            local = [self.state, *self.seeds, *self.frozen]
            self.initialize = tf.group(*(v.initializer for v in local), source.initialize)

    @property
    def local(self) -> dict[str, list[Any]]:
        """What changes with each step and is not in the center, by name: the model's own state, random seeds."""
        state = {"model.state": [self.state]} if self.model.state_size else {}
        return state | {f"model.seed_{i}": [seed] for i, seed in enumerate(self.seeds)}

    @property
    def needs_vector(self) -> bool:
        """True if parameters cannot be a list in `gradient`."""
        return bool(self.l2) or self.clip_norm is not None or len(self.devices) > 1

    def gradient(self, params: Any, rows: Any) -> tuple[Any, Any]:
        """Loss and gradient on one batch, the mean over the devices; the model's own state moves on.

        Args:
            params: where, [P]; if they are a list, of a flat vector for each variable, so is the gradient.
            rows: the batch, [batch size].
        """
        state = self.state.read_value()
        seeds, frozen = ([v.read_value() for v in variables] for variables in (self.seeds, self.frozen))
        results = []
        for i, (device, batch) in enumerate(zip(self.devices, self._batches(rows), strict=True)):
            with tf.device(device):
                own = [s + tf.cast(i * self.num_workers, s.dtype) for s in seeds] if i else seeds
                results.append(self._gradient_function(params, state, own, frozen, batch))
        losses, gradients, states, _ = zip(*results, strict=True)
        gradients = [_as_is(params, parts) for parts in gradients]
        loss, gradient, state = map(_mean, (losses, gradients, states))
        if self.l2:
            loss += self.l2 / 2 * tf.reduce_sum(tf.square(params))
            gradient += self.l2 * params
        if self.clip_norm is not None:
            gradient = tf.clip_by_norm(gradient, self.clip_norm)
        if self.model.state_size:
            self.state.assign(state)
        for variable, value in zip(self.seeds, results[0][3], strict=True):
            variable.assign(value)
        return loss, gradient

    def keep_state(self, fine: Any, before: Any) -> None:
        """The model's own state is what it was before a step that is left out, unless `fine`."""
        if self.model.state_size:
            self.state.assign(tf.where(fine, self.state.read_value(), before))

    def _batches(self, rows: Any) -> list[Any]:
        """The batch, cut evenly for the devices."""
        count = len(self.devices)
        leaves = self.source.batch(rows)
        parts = [tf.split(leaf, count) if count > 1 else [leaf] for leaf in leaves]
        return [tf.nest.pack_sequence_as(self.structure, part) for part in zip(*parts, strict=True)]


def _as_is(params: Any, gradient: list[Any]) -> Any:
    """One vector, unless parameters are a list."""
    return gradient if isinstance(params, list) else tf.concat(gradient, 0)


def _mean(values: Any) -> Any:
    return tf.add_n(values) / len(values) if len(values) > 1 else values[0]
