"""A worker: its local variables, its local steps, and the round that every scheme shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .gates import Alone
from .models import FlatModel
from .parameter_server import ParameterServer, Seat
from .scheme import Scheme


class Shard:
    """Batches from arrays kept on the worker's device; a batch is named by its rows."""

    def __init__(self, arrays: Sequence[np.ndarray], prefix: str):
        self.fed = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
        self.variables = [
            tf.Variable(fed, trainable=False, name=f"{prefix}_data_{i}") for i, fed in enumerate(self.fed)
        ]
        self.initialize = tf.group(*(v.initializer for v in self.variables))

    def batch(self, rows: Any) -> list[Any]:
        """The examples in those rows."""
        return [tf.gather(v, rows) for v in self.variables]


class Stream:
    """Batches from a `tf.data.Dataset`; the rows only count steps."""

    def __init__(self, dataset: Any):
        self.iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        self.initialize = self.iterator.initializer
        self.fed: list[Any] = []

    def batch(self, rows: Any) -> list[Any]:
        """The next batch."""
        del rows
        return tf.nest.flatten(self.iterator.get_next())


class Worker:
    """The local variables of one worker, and its round, built into the current graph.

    Algorithms see `params`, `gradient`, `steps` and the scheme's local variables by name.
    """

    def __init__(
        self,
        scheme: Scheme,
        model: FlatModel,
        gradient: Any,
        ps: ParameterServer,
        seat: Seat,
        name: str,
        device: str,
        source: Shard | Stream,
        structure: Any,
    ):
        self.scheme, self.model, self.ps, self.seat, self.device = scheme, model, ps, seat, device
        self.source, self.structure, self._gradient_function = source, structure, gradient
        self.gradient: Any = None
        self.steps: Any = None
        with tf.device(device):
            if isinstance(scheme.gate, Alone):
                self.params = ps.slices[0].center
            else:
                self.params = tf.Variable(tf.zeros([model.size]), name=f"{name}_params")
            slots = scheme.local_variables(tf.zeros([model.size])).items()
            self.slots = {slot: tf.Variable(value, name=f"{name}_{slot}") for slot, value in slots}
            vars(self).update(self.slots)
            self.state = tf.Variable(model.initial_state, name=f"{name}_state")
            self.private = [
                tf.Variable(value + tf.cast(seat.index, value.dtype), name=f"{name}_private_{i}")
                for i, value in enumerate(model.initial_private)
            ]
            local = [*self.slots.values(), self.state, *self.private]
            if self.params is not ps.slices[0].center:
                local.append(self.params)
            self.initialize = tf.group(*(v.initializer for v in local), source.initialize)

    def start(self) -> Any:
        """First pull: the local variables become twins of the global ones."""
        if not isinstance(self.scheme.gate, Alone):
            with tf.device(self.device):
                center = self.ps.pull(self.seat)
                self.params.assign(center)
                for name, value in self.scheme.local_variables(center).items():
                    self.slots[name].assign(value)
        return tf.constant(True)

    def rounds(self, rows: Any) -> Any:
        """Several rounds, one after the other in one call.

        Args:
            rows: the batches, [rounds, steps, batch size].

        Returns:
            the mean loss of each round, [rounds].
        """
        with tf.device(self.device):
            return tf.stack([self.round(rows[r]) for r in range(rows.shape[0])])

    def round(self, rows: Any) -> Any:
        """One round on the batches `rows`, [steps, batch size]; returns its mean loss."""
        scheme = self.scheme
        self.steps = tf.shape(rows)[0]
        if isinstance(scheme.gate, Alone):
            total = self._local_steps(rows)
            self.ps.record(self.ps.read_version(), self.seat, 0, accepted=True)
            self.ps.count_updates(self.steps)
        elif scheme.exchange_first:
            total, gradient = self._gradient(rows[0])  # at the parameters before the exchange
            self._exchange()
            scheme.local_step(self, gradient)
            if scheme.period > 1:
                total += self._local_steps(rows[1:])
        else:
            total = self._local_steps(rows)
            self._exchange()
        if self.model.state_size:
            self.ps.store_state(self.seat, self.state.read_value())
        return total / tf.cast(self.steps, tf.float32)

    def _exchange(self) -> None:
        message = tf.convert_to_tensor(self.scheme.message(self))
        self.scheme.adopt(self, self.scheme.gate.exchange(self.ps, self.seat, message))

    def _local_steps(self, rows: Any) -> Any:
        """One local step for each of `rows`; returns the sum of the losses."""

        def step(t: Any, total: Any) -> tuple[Any, Any]:
            loss, gradient = self._gradient(rows[t])
            self.scheme.local_step(self, gradient)
            return t + 1, total + loss

        if self.scheme.period == 1 and not isinstance(self.scheme.gate, Alone):
            loss, self.gradient = self._gradient(rows[0])
            self.scheme.local_step(self, self.gradient)
            return loss
        self.gradient = None  # a message over several steps is made from local variables
        zero = tf.constant(0), tf.constant(0.0)
        return tf.while_loop(lambda t, _: t < tf.shape(rows)[0], step, zero, parallel_iterations=1)[1]

    def _gradient(self, rows: Any) -> tuple[Any, Any]:
        """Loss and gradient at the present parameters on one batch; the model's own state moves on."""
        batch = tf.nest.pack_sequence_as(self.structure, self.source.batch(rows))
        private = [v.read_value() for v in self.private]
        loss, gradient, state, private = self._gradient_function(
            self.params.read_value(), self.state.read_value(), private, batch
        )
        if self.model.state_size:
            self.state.assign(state)
        for variable, value in zip(self.private, private, strict=True):
            variable.assign(value)
        return loss, gradient
