"""The model on the devices of a worker, which computes loss and gradient of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..contract.weighed import LEAST_COUNT
from ..hostile import NO_ATTACK, Attack
from .false_labels import with_false_labels
from .flat_model import FlatModel

SEED_STRIDE = 0x9E3779B1  # odd: all workers have different seeds; of no simple ratio to 2^32: far apart


class Shard:
    """Batches from arrays on the worker's device; the rows select the examples of a batch.

    Args:
        arrays: the shard: inputs and labels, and weights if given, each with an example in each row.
        prefix: prefix of the names of its variables.

    Attributes:
        fed: placeholders of the arrays, which are fed once.
    """

    def __init__(self, arrays: Sequence[np.ndarray], prefix: str):
        self.fed = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
        self.variables = [
            tf.Variable(fed, trainable=False, name=f"{prefix}_data_{i}") for i, fed in enumerate(self.fed)
        ]
        self.initialize = tf.group(*(v.initializer for v in self.variables))

    def batch(self, rows: Any) -> list[Any]:
        """Return the examples in the rows [batch size], a tensor [batch size, ...] for each array."""
        return [tf.gather(v, rows) for v in self.variables]


class Stream:
    """Batches from a `tf.data.Dataset`, again and again; the rows are not used.

    The iterator has a name, so that it belongs to the task and not to a session: a worker that reconnects continues
    with the next batch.
    """

    def __init__(self, dataset: Any, prefix: str):
        self.length = dataset.cardinality()
        repeated = dataset.repeat()
        self.iterator = tf.compat.v1.data.make_initializable_iterator(repeated, shared_name=f"{prefix}_batches")
        self.initialize = self.iterator.initializer
        self.fed: list[Any] = []

    def batch(self, rows: Any) -> list[Any]:
        """Return the next batch."""
        return tf.nest.flatten(self.iterator.get_next())

    def skip(self, batches: Any) -> Any:
        """Read what `batches` have used of the present pass, if its length is known; return that length, else -1 or -2.

        A pass that shuffles has the order of the first one.
        """
        used = tf.where(self.length > 0, batches % tf.maximum(self.length, 1), 0)

        def read(number: Any) -> Any:
            with tf.control_dependencies(tf.nest.flatten(self.iterator.get_next())):
                return (number + 1,)

        (number,) = tf.while_loop(lambda number: number < used, read, [tf.zeros_like(used)], parallel_iterations=1)
        with tf.control_dependencies([number]):
            return tf.identity(self.length)


class Replica:
    """The inputs of a worker's gradient besides parameters: data, running statistics, random seeds.

    Args:
        model: the model.
        gradient: `model.gradient` as a function of the graph, shared by all workers in it.
        name: prefix of the names of its variables.
        worker: index of the worker, and number of workers.
        devices: devices of the worker; its batches are split evenly over them. Its variables are on the first.
        source: source of its batches.
        structure: nested structure of x and y.
        l2: coefficient of a penalty l2/2 ‖x‖² in the loss.
        clip_norm: norm of the whole vector to which gradients are clipped.
        hostile: what the last workers do.
        labels: the largest labels, which it counts from the other end, see `largest_labels`.

    Attributes:
        count: the number that divides the loss of the last batch, a scalar, see `Divisors`.
    """

    count: Any = None

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
        hostile: Attack = NO_ATTACK,
        labels: Sequence[float | None] = (),
    ):
        self.model, self.devices, self.l2, self.clip_norm = model, devices, l2, clip_norm
        self.source, self.structure, self._gradient_function = source, structure, gradient
        self.index, self.num_workers = index, _ = worker
        self.hostile, self.labels = hostile, labels
        with tf.device(devices[0]):
            self.state = tf.Variable(tf.zeros([model.state_size]), name=f"{name}_state")
            self.seeds = [  # different on each worker
                tf.Variable(own_seed(value, index), name=f"{name}_seed_{i}")
                for i, value in enumerate(model.initial_seeds)
            ]
            # Feed the frozen values once, like the data: as constants they would make the graph as large as the model.
            frozen = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in model.frozen]
            self.fed = source.fed, frozen
            self.frozen = [tf.Variable(fed, trainable=False, name=f"{name}_frozen_{i}") for i, fed in enumerate(frozen)]
            local = [self.state, *self.seeds, *self.frozen]
            self.initialize = tf.group(*(v.initializer for v in local), source.initialize)

    @property
    def local(self) -> dict[str, list[Any]]:
        """Variables that change with each step and are not in the center, by name: the model's state, random seeds."""
        state = {"model.state": [self.state]} if self.model.state_size else {}
        return state | {f"model.seed_{i}": [seed] for i, seed in enumerate(self.seeds)}

    @property
    def needs_vector(self) -> bool:
        """True if `gradient` needs the parameters as one vector."""
        return bool(self.l2) or self.clip_norm is not None or self.hostile.factor != 1 or len(self.devices) > 1

    def gradient(self, params: Any, rows: Any) -> tuple[Any, Any]:
        """Return loss and gradient on one batch, the mean over the devices, and update the model's own state.

        Where the model `counts`, the mean is by what divides the losses of the devices' parts of the batch.

        Args:
            params: parameters [P], or a list with a flat vector for each variable.
            rows: the batch, [batch size].

        Returns:
            the loss, a scalar; the gradient, in the form of `params`.
        """
        state = self.state.read_value()
        seeds, frozen = ([v.read_value() for v in variables] for variables in (self.seeds, self.frozen))
        results = []
        for i, (device, batch) in enumerate(zip(self.devices, self._batches(rows), strict=True)):
            with tf.device(device):  # seeds that no other device of any worker has
                device_seeds = [own_seed(s, i * self.num_workers) for s in seeds] if i else seeds
                results.append(self._gradient_function(params, state, device_seeds, frozen, batch))
        losses, gradients, states, _, counts = zip(*results, strict=True)
        gradients = [_in_form_of(params, parts) for parts in gradients]
        self.count = tf.add_n(counts)
        if self.model.counts and len(counts) > 1:
            shares = [count / tf.maximum(self.count / len(counts), LEAST_COUNT) for count in counts]
            losses, gradients = ([s * value for s, value in zip(shares, of, strict=True)] for of in (losses, gradients))
        loss, gradient, state = map(_mean, (losses, gradients, states))
        if self.l2:
            loss += self.l2 / 2 * tf.reduce_sum(tf.square(params))
            gradient += self.l2 * params
        if self.clip_norm is not None:
            gradient = tf.clip_by_norm(gradient, self.clip_norm)
        if self.hostile.factor != 1:
            gradient *= tf.where(self._is_hostile, self.hostile.factor, 1.0)
        if self.model.state_size:
            self.state.assign(state)
        for variable, value in zip(self.seeds, results[0][3], strict=True):
            variable.assign(value)
        return loss, gradient

    def keep_state(self, fine: Any, before: Any) -> None:
        """Reset the model's own state to `before` unless `fine`, after a step that is dropped."""
        if self.model.state_size:
            self.state.assign(tf.where(fine, self.state.read_value(), before))

    def _batches(self, rows: Any) -> list[Any]:
        """Split the batch evenly over the devices."""
        count = len(self.devices)
        leaves = self.source.batch(rows)
        parts = [tf.split(leaf, count) if count > 1 else [leaf] for leaf in leaves]
        batches = [tf.nest.pack_sequence_as(self.structure, part) for part in zip(*parts, strict=True)]
        if self.hostile.kind == "label-flip":
            batches = [with_false_labels(batch, self.labels, self._is_hostile) for batch in batches]
        return batches

    @property
    def _is_hostile(self) -> Any:
        return self.index >= self.num_workers - self.hostile.workers


def own_seed(state: Any, number: Any) -> Any:
    """Return the state (seed, counter) of a layer's random generator on the device of that number, of all workers.

    Seeds are far apart: layers often have neighbouring ones, which a worker's number could make equal.
    """
    return state + tf.cast(number, state.dtype) * tf.constant([SEED_STRIDE, 0], state.dtype)


def _in_form_of(params: Any, gradient: list[Any]) -> Any:
    """Concatenate the gradient to one vector, unless the parameters are a list."""
    return gradient if isinstance(params, list) else tf.concat(gradient, 0)


def _mean(values: Any) -> Any:
    return tf.add_n(values) / len(values) if len(values) > 1 else values[0]
