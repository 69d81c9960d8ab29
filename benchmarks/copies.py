"""Several settings of an algorithm in one simulated run.

When things happen does not depend on learning rates, and the rules of the catalogue are elementwise. So a run with K
settings is one run of a model that is K copies side by side, [K P], in which each copy has its own rates: K times
the arithmetic, which is cheap for a small model, in as many operations as one run needs.

Codecs that choose elements or cut blocks (`ef_sgd`, `demo`) would mix the copies, as would rules of whole vectors
(`krum`), and so may the rules of an imported algorithm: their settings run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..algorithms import Scheme
from ..common.cluster.fingerprint import class_digest
from ..common.contract import Codec, Signs
from ..common.contract.weighed import extended
from ..common.errors import UserError
from ..common.lazy import tf
from ..common.worker.flat_model import FlatModel, unpack


def shares_runs(scheme: Scheme) -> bool:
    """Return True if several settings of the algorithm can share one run."""
    return type(scheme.codecs()[0]) in (Codec, Signs) and not scheme.whole_center and not class_digest(type(scheme))


def with_values(settings: Sequence[Scheme], size: int) -> Scheme:
    """Return one scheme for as many copies of a model with P = `size` parameters as there are settings.

    Raises:
        UserError: the settings differ in something that is no number.
    """
    first = settings[0]
    if len(settings) == 1:
        return first
    changed: dict[str, Any] = {}
    for name, value in vars(first).items():
        values = [vars(other)[name] for other in settings]
        if all(other == value for other in values):
            continue
        if isinstance(value, tuple) and len(value) == 1:
            changed[name] = OneForAll(_vector([only for (only,) in values], size))
        elif all(isinstance(other, float) for other in values):
            changed[name] = _vector(values, size)
        else:
            raise UserError(f"copies differ in numbers alone. Received: {name}={values}")
    return extended(first, _Varying).but(**changed)


class _Varying:
    """A scheme of which some numbers, not rates alone, are functions of the step, see `_vector`."""

    @property
    def scheduled(self) -> bool:
        return any(map(callable, vars(self).values()))

    def at(self, step: Any) -> Any:
        values = {name: value(step) for name, value in vars(self).items() if callable(value)}
        return self.but(**values)  # pyright: ignore[reportAttributeAccessIssue]


def _vector(values: Sequence[float], size: int) -> Callable[[Any], Any]:
    """Return a schedule (see `Scheme.at`) that is constant in time, and differs between the copies."""

    def rate(step: Any) -> Any:
        del step
        return tf.constant(np.repeat(np.array(values, np.float32), size))

    return rate


class OneForAll:
    """A rate for each copy in place of a tuple with one rate: `Scheme.check` sees its length, `Scheme.at` calls it."""

    def __init__(self, rate: Callable[[Any], Any]):
        self.rate = rate

    def __len__(self) -> int:
        return 1

    def __call__(self, step: Any) -> tuple[Any]:
        """Return the tuple, after that many local steps."""
        return (self.rate(step),)


class Copies:
    """K copies of a model side by side, as the executor of a simulated run takes one; its vector is [K P].

    Args:
        model: without state of its own (batch normalisation), random seeds or frozen variables.
        number: K.

    Raises:
        UserError: the model has more than parameters.
    """

    def __init__(self, model: FlatModel, number: int):
        if model.state_size or model.seeds or model.frozen:
            raise UserError("copies of a model side by side need a model of parameters alone: no state, no dropout")
        self.model, self.number = model, number
        self.size, self.state_size = number * model.size, 0
        self.shapes = model.shapes * number
        places = range(0, len(self.shapes), len(model.shapes))
        self.without_decay = [first + position for first in places for position in model.without_decay]
        self.initial_seeds, self.frozen, self.counts = [], [], model.counts  # the batch is the same for all copies
        self._measure: Any = None

    def pack(self) -> np.ndarray:
        """Return the initial weights, the same for each copy, [K P]."""
        return np.tile(self.model.pack(), self.number)

    def pack_state(self) -> np.ndarray:
        """Return no state, [0]."""
        return self.model.pack_state()

    def frozen_values(self) -> list[np.ndarray]:
        """Return no values."""
        return []

    def gradient(self, params: Any, state: Any, seeds: Any, frozen: Any, batch: Any) -> tuple[Any, ...]:
        """Return the mean loss, and in one vector the gradient of each copy, [K P]; 0 where a copy has diverged."""

        def of_copy(vector: Any) -> Any:
            loss, parts, *_, count = self.model.gradient(vector, state, seeds, frozen, batch)
            return loss, tf.concat(parts, 0), count

        if self.number == 1:
            return self.model.gradient(params, state, seeds, frozen, batch)
        losses, gradients, counts = tf.vectorized_map(of_copy, tf.reshape(params, [self.number, -1]), warn=False)
        flat = tf.reshape(gradients, [-1])
        return tf.reduce_mean(losses), [tf.where(tf.math.is_finite(flat), flat, 0.0)], state, [], counts[0]

    def measure(self, params: np.ndarray, data: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return loss and accuracy of each copy on (x, y), [K] each."""
        if self._measure is None:
            self._measure = tf.function(self._measures(*map(tf.constant, data)), autograph=False)
        loss, accuracy = self._measure(tf.constant(params.reshape(self.number, -1)))
        return np.asarray(loss), np.asarray(accuracy)

    def _measures(self, x: Any, y: Any) -> Callable[[Any], Any]:
        keras_model, shapes = self.model.model, self.model.shapes

        def of_copy(vector: Any) -> Any:
            logits, _ = keras_model.stateless_call(unpack(vector, shapes), [], x, training=False)
            right = tf.equal(tf.argmax(logits, -1, y.dtype), y)
            return keras_model.loss(y, logits), tf.reduce_mean(tf.cast(right, tf.float32))

        return lambda vectors: tf.vectorized_map(of_copy, vectors, warn=False)
