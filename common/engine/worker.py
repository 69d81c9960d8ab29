"""A worker: its local variables, its local steps, and the round that every scheme shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..contract.rounds import Event
from ..contract.scheme import Scheme
from .batches import Shard, Stream
from .flat_model import FlatModel
from .ops import is_finite, when
from .parameter_server import ParameterServer
from .slots import Slot


class Worker:
    """The local variables of one worker, and its round, built into the current graph.

    Algorithms see `params`, `gradient`, `steps`, `index`, `num_workers` and the scheme's local variables by name.

    Args:
        scheme: the algorithm.
        model: what is trained.
        gradient: `model.gradient` as a function of the graph, shared by all workers in it.
        ps: the global variables.
        slot: the worker's place there.
        name: prefix of the names of its variables.
        devices: where it computes; its batches are split evenly over them (towers). Its variables are on the first.
        source: its batches.
        structure: how x and y are nested.
        l2: adds l2/2 |x|^2 to the loss.
        clip_norm: gradients are clipped to this norm of the whole vector.
    """

    def __init__(
        self,
        scheme: Scheme,
        model: FlatModel,
        gradient: Any,
        ps: ParameterServer,
        slot: Slot,
        name: str,
        devices: Sequence[str],
        source: Shard | Stream,
        structure: Any,
        l2: float = 0.0,
        clip_norm: float | None = None,
    ):
        self.scheme, self.model, self.ps, self.slot = scheme, model, ps, slot
        self.l2, self.clip_norm = l2, clip_norm
        self.devices, self.device = devices, devices[0]
        self.source, self.structure, self._gradient_function = source, structure, gradient
        self.index, self.num_workers = slot.index, ps.num_workers
        self.gradient: Any = None
        self.steps: Any = None
        # Without a ps, what the chief has is the center.
        self.is_center = not self.scheme.gate.uses_ps and (name == "worker_0")
        with tf.device(self.device):
            if self.is_center:
                self.params = ps.slices[0].center
            else:
                self.params = tf.Variable(tf.zeros([model.size]), name=f"{name}_params")
            slots = self.scheme.local_variables(tf.zeros([model.size])).items()
            self.slots = {slot: tf.Variable(value, name=f"{name}_{slot}") for slot, value in slots}
            vars(self).update(self.slots)
            self.clock = tf.Variable(tf.constant(0, tf.int64), name=f"{name}_clock")  # local steps done, for schedules
            self.state = tf.Variable(tf.zeros([model.state_size]), name=f"{name}_state")
            self.seeds = [  # no two workers drop the same
                tf.Variable(value + tf.cast(slot.index, value.dtype), name=f"{name}_seed_{i}")
                for i, value in enumerate(model.initial_seeds)
            ]
            # Fed once, like the data: constants would make the graph as large as the model.
            self.fed = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in model.frozen]
            self.frozen = [
                tf.Variable(fed, trainable=False, name=f"{name}_frozen_{i}") for i, fed in enumerate(self.fed)
            ]
            local = [*self.slots.values(), self.clock, self.state, *self.seeds, *self.frozen]
            if not self.is_center:
                local.append(self.params)
            self.initialize = tf.group(*(v.initializer for v in local), source.initialize)

    def start(self, recorded: Any) -> dict[str, Any]:
        """Take a slot: the local variables become twins of the global ones."""
        with tf.device(self.device):
            center, state, joined = self.ps.join(self.slot, recorded)
            if not self.is_center:
                self.params.assign(center)
            for name, value in self.scheme.local_variables(center).items():
                self.slots[name].assign(value)
            self.state.assign(state)
        return joined

    def rounds(self, rows: Any, event: Event) -> Any:
        """Several rounds, one after the other in one call.

        Args:
            rows: the batches, [rounds, steps, batch size].
            event: how each of them ends.

        Returns:
            the mean loss of each round, and how many of its steps count, [rounds, 2].
        """
        with tf.device(self.device):
            return tf.stack([self.round(rows[r], event) for r in range(rows.shape[0])])

    def round(self, rows: Any, event: Event) -> Any:
        """One round on the batches `rows`, [steps, batch size]; returns its mean loss, and how many steps count."""
        scheme, ps = self._scheme_now(), self.ps
        self.steps = done = tf.cast(tf.shape(rows)[0], tf.float32)
        if not scheme.gate.exchanges:
            total, done = self._steps_alone(rows)
        elif scheme.exchange_first:
            total, gradient = self._gradient(rows[0])  # at the parameters before the exchange
            self._meet_server(scheme, event)
            self._step(gradient)
            if scheme.period > 1:
                total += self._local_steps(rows[1:])
        elif not scheme.gate.uses_ps:
            total, fine = self._round_in_ring(scheme, rows)
            done *= tf.cast(fine, tf.float32)
        else:
            total = self._local_steps(rows)
            self._meet_server(scheme, event)
        if self.model.state_size:
            with tf.control_dependencies([self.params.read_value()]):  # collectives one after the other
                self.state.assign(scheme.gate.share_state(ps, self.slot, self.state.read_value()))
        return tf.stack([total / (self.steps if scheme.gate.exchanges else done), done])

    def _meet_server(self, scheme: Scheme, event: Event) -> None:
        if event == "pull":
            scheme.adopt(self, self.ps.pull(self.slot))
            return
        message = tf.convert_to_tensor(scheme.message(self))
        if event == "push":
            scheme.gate.push(self.ps, self.slot, message)
        else:
            scheme.adopt(self, scheme.gate.exchange(self.ps, self.slot, message))

    # Without a ps nobody else refuses what is not finite.

    def _steps_alone(self, rows: Any) -> tuple[Any, Any]:
        """The local steps of a worker that is all there is, but for those that are not finite; returns how many."""

        def step(t: Any, total: Any, done: Any) -> tuple[Any, Any, Any]:
            state = self.state.read_value()
            loss, gradient = self._gradient(rows[t])
            fine = is_finite(gradient) & tf.math.is_finite(loss)
            stepped = when(fine, lambda: self._step_of_center(gradient))
            self._keep_state(fine, state)
            self.clock.assign_add(1)
            return t + 1, total + tf.where(fine, loss, 0.0), done + tf.cast(stepped, tf.int64)

        zero = tf.constant(0), tf.constant(0.0), tf.constant(0, tf.int64)
        number = tf.shape(rows)[0]
        _, total, done = tf.while_loop(lambda t, *_: t < number, step, zero, parallel_iterations=1)
        self.ps.count_refused(self.slot, tf.cast(number, tf.int64) - done)
        self.ps.record(self.ps.read_version(), self.slot.index, 0, accepted=True, locked=False)
        self.ps.count_updates(done)
        return total, tf.cast(done, tf.float32)

    def _step_of_center(self, gradient: Any) -> None:
        self._scheme_now().local_step(self, gradient)
        self.ps.move_average(self.ps.slices[0], self.clock.read_value())

    def _round_in_ring(self, scheme: Scheme, rows: Any) -> tuple[Any, Any]:
        """All have the same mean message: if it is not finite, all go on without it, and the round does not count."""
        state, clock = self.state.read_value(), self.clock.read_value()
        total = self._local_steps(rows)
        reply = scheme.gate.exchange(self.ps, self.slot, tf.convert_to_tensor(scheme.message(self)))
        fine = tf.reduce_all(tf.math.is_finite(reply))  # each element, lest two workers come to different sums

        def adopt() -> None:
            scheme.adopt(self, reply)
            if self.is_center:
                self.ps.move_average(self.ps.slices[0], clock)

        adopted = when(fine, adopt)
        self._keep_state(fine, state)
        return total, adopted

    def _keep_state(self, fine: Any, before: Any) -> None:
        """The model's own state is what it was before a step that is left out."""
        if self.model.state_size:
            self.state.assign(tf.where(fine, self.state.read_value(), before))

    def _local_steps(self, rows: Any) -> Any:
        """One local step for each of `rows`; returns the sum of the losses."""

        def step(t: Any, total: Any) -> tuple[Any, Any]:
            loss, gradient = self._gradient(rows[t])
            self._step(gradient)
            return t + 1, total + loss

        if self.scheme.period == 1:
            loss, self.gradient = self._gradient(rows[0])
            self._step(self.gradient)
            return loss
        self.gradient = None  # a message over several steps is made from local variables
        zero = tf.constant(0), tf.constant(0.0)
        return tf.while_loop(lambda t, _: t < tf.shape(rows)[0], step, zero, parallel_iterations=1)[1]

    def _step(self, gradient: Any) -> None:
        self._scheme_now().local_step(self, gradient)
        if self.scheme.scheduled or self.is_center:
            self.clock.assign_add(1)

    def _scheme_now(self) -> Scheme:
        """The scheme with its learning rates of this moment."""
        return self.scheme.at(tf.cast(self.clock.read_value(), tf.float32)) if self.scheme.scheduled else self.scheme

    def _gradient(self, rows: Any) -> tuple[Any, Any]:
        """Loss and gradient on one batch, the mean over the towers; the model's own state moves on."""
        params, state = self.scheme.gradient_point(self), self.state.read_value()
        seeds, frozen = ([v.read_value() for v in variables] for variables in (self.seeds, self.frozen))
        towers = []
        for i, (device, batch) in enumerate(zip(self.devices, self._batches(rows), strict=True)):
            with tf.device(device):
                own = [s + tf.cast(i * self.num_workers, s.dtype) for s in seeds] if i else seeds
                towers.append(self._gradient_function(params, state, own, frozen, batch))
        losses, gradients, states, _ = zip(*towers, strict=True)
        loss, gradient, state = (_mean(values) for values in (losses, gradients, states))
        if self.l2:
            loss += self.l2 / 2 * tf.reduce_sum(tf.square(params))
            gradient += self.l2 * params
        if self.clip_norm is not None:
            gradient = tf.clip_by_norm(gradient, self.clip_norm)
        if self.model.state_size:
            self.state.assign(state)
        for variable, value in zip(self.seeds, towers[0][3], strict=True):
            variable.assign(value)
        return loss, gradient

    def _batches(self, rows: Any) -> list[Any]:
        """The batch, cut evenly for the towers."""
        count = len(self.devices)
        leaves = self.source.batch(rows)
        parts = [tf.split(leaf, count) if count > 1 else [leaf] for leaf in leaves]
        return [tf.nest.pack_sequence_as(self.structure, part) for part in zip(*parts, strict=True)]


def _mean(values: Sequence[Any]) -> Any:
    return tf.add_n(values) / len(values) if len(values) > 1 else values[0]
