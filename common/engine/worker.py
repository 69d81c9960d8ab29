"""A worker: its local variables, its local steps, and the round that every scheme shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract import views
from ..contract.message import packed
from ..contract.rounds import Event
from ..contract.scheme import Scheme
from ..errors import UserError
from .membership import Slot
from .ops import is_finite, when
from .parameter_server import ParameterServer
from .replica import Replica
from .stamps import Stamps, moment, stack


class View(SimpleNamespace):
    """A worker as its scheme sees it: `contract.views.Worker`."""

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(name for name in vars(self) if not name.startswith("_"))
        raise AttributeError(f"a worker of this scheme has no {name} here. It has: {known}", name=name, obj=self)


class Worker:
    """The local variables of one worker, and its round, built into the current graph.

    Args:
        scheme: the algorithm.
        replica: the model on its devices, and its batches.
        ps: the global variables.
        slot: the worker's place there.
        name: prefix of the names of its variables.

    Raises:
        UserError: a local variable has the name of something else.
    """

    def __init__(self, scheme: Scheme, replica: Replica, ps: ParameterServer, slot: Slot, name: str):
        self.scheme, self.replica, self.ps = scheme, replica, ps
        self.device, size = replica.devices[0], replica.model.size
        # Without a ps, what the chief has is the center.
        self.is_center = not self.scheme.gate.uses_ps and (name == "worker_0")
        with tf.device(self.device):
            if self.is_center:
                self.params = ps.slices[0].center
            else:
                self.params = tf.Variable(tf.zeros([size]), name=f"{name}_params")
            slots = self.scheme.local_variables(tf.zeros([size]))
            views.check_names(scheme.name, "local", slots, views.WORKER_NAMES)
            self.slots = {slot: tf.Variable(value, name=f"{name}_{slot}") for slot, value in slots.items()}
            self.clock = tf.Variable(tf.constant(0, tf.int64), name=f"{name}_clock")  # local steps done, for schedules
            self.encoder = ps.center.encoder(f"{name}_codec")
            local = [*self.slots.values(), *self.encoder.variables, self.clock]
            if not self.is_center:
                local.append(self.params)
            self.initialize = tf.group(*(v.initializer for v in local), replica.initialize)
        self.slot = replace(slot, encoder=self.encoder)
        self.view: Any = View(
            params=self.params,
            index=slot.index,
            num_workers=ps.num_workers,
            shapes=replica.model.shapes,
            mean=no_mean("worker.mean is for Scheme.message alone: take it there, and keep it in a local variable"),
            **self.slots,
        )
        self.sums_gradients = scheme.period > 1 and not scheme.exchange_first and asks_for_sum(scheme, self.view)

    def start(self, recorded: Any) -> dict[str, Any]:
        """Take a slot: the local variables become twins of the global ones."""
        with tf.device(self.device):
            center, state, joined = self.ps.join(self.slot, recorded)
            if not self.is_center:
                self.params.assign(center)
            for name, value in self.scheme.local_variables(center).items():
                self.slots[name].assign(value)
            self.encoder.begin_again()
            self.replica.state.assign(state)
        return joined

    def rounds(self, rows: Any, event: Event) -> Any:
        """Several rounds, one after the other in one call.

        Args:
            rows: the batches, [rounds, steps, batch size].
            event: how each of them ends.

        Returns:
            of each round the mean loss, and how many of its steps count, [rounds, 2]; and its `Stamps`, see `stack`.
        """
        with tf.device(self.device):
            results, taken, now = [], [], moment()
            for r in range(rows.shape[0]):
                taken.append(Stamps(now))
                results.append(self.round(rows[r], event, taken[-1]))
                now = taken[-1].replied
            return tf.stack(results), stack(taken)

    def round(self, rows: Any, event: Event, stamps: Stamps) -> Any:
        """One round on the batches `rows`, [steps, batch size]; returns its mean loss, and how many steps count.

        A scheme with `exchange_first` sends what it has at once: what it computes between a reply and the next message
        is steps of two rounds.
        """
        scheme, ps, state = self._scheme_now(), self.ps, self.replica.state
        self.view.steps = steps = done = tf.cast(tf.shape(rows)[0], tf.float32)
        if not scheme.gate.exchanges:
            total, done = self._steps_alone(rows, stamps)
        elif scheme.exchange_first:
            total, gradient = self._gradient(rows[0], stamps.begun)  # at the parameters before the exchange
            self._meet_server(scheme, event, stamps)
            self._step(gradient)
            if scheme.period > 1:
                total += self._local_steps(rows[1:], stamps.replied)
        elif not scheme.gate.uses_ps:
            total, fine = self._collective_round(scheme, rows, stamps)
            done *= tf.cast(fine, tf.float32)
        else:
            total = self._local_steps(rows, stamps.begun)
            self._meet_server(scheme, event, stamps, total)
        if self.replica.model.state_size:
            state.assign(scheme.gate.share_state(ps, self.slot, state.read_value()))
        return tf.stack([total / (steps if scheme.gate.exchanges else done), done])

    def _meet_server(self, scheme: Scheme, event: Event, stamps: Stamps, total: Any = None) -> None:
        if event == "pull":
            with tf.control_dependencies([stamps.send(total)]):
                center = self.ps.pull(self.slot)
            with stamps.reply():
                scheme.adopt(self.view, center)
            return
        message = stamps.send(message_of(scheme, self, stamps.begun, total))
        if event == "push":
            with stamps.reply():  # what is acknowledged is no reply, but the next round waits for it
                scheme.gate.push(self.ps, self.slot, message)
            return
        reply = scheme.gate.exchange(self.ps, self.slot, message)
        with stamps.reply():
            scheme.adopt(self.view, reply)

    # Without a ps nobody else refuses what is not finite.

    def _steps_alone(self, rows: Any, stamps: Stamps) -> tuple[Any, Any]:
        """The local steps of a worker that is all there is, but for those that are not finite; returns how many."""

        def step(t: Any, total: Any, done: Any) -> tuple[Any, Any, Any]:
            state = self.replica.state.read_value()
            loss, gradient = self._gradient(rows[t])
            fine = is_finite(gradient) & tf.math.is_finite(loss)
            stepped = when(fine, lambda: self._step_of_center(gradient, done + 1))
            self.replica.keep_state(fine, state)
            self.clock.assign_add(1)
            return t + 1, total + tf.where(fine, loss, 0.0), done + tf.cast(stepped, tf.int64)

        with tf.control_dependencies([stamps.begun]):
            zero = tf.constant(0), tf.constant(0.0), tf.constant(0, tf.int64)
        number = tf.shape(rows)[0]
        _, total, done = tf.while_loop(lambda t, *_: t < number, step, zero, parallel_iterations=1)
        done = stamps.send(done)
        self.ps.journal.count_refused(self.slot, tf.cast(number, tf.int64) - done)
        with stamps.reply(), tf.control_dependencies([done]):
            self.ps.record(self.ps.read_version(), self.slot.index, 0, accepted=True, locked=False)
        self.ps.count_updates(done)
        return total, tf.cast(done, tf.float32)

    def _step_of_center(self, gradient: Any, uncounted: Any) -> None:
        self._scheme_now().local_step(self.view, gradient)
        self.ps.center.come_to(self.ps.read_version() + uncounted, self.clock.read_value(), self.replica.state)

    def _collective_round(self, scheme: Scheme, rows: Any, stamps: Stamps) -> tuple[Any, Any]:
        """All have the same mean message: if it is not finite, all go on without it, and the round does not count."""
        state, clock = self.replica.state.read_value(), self.clock.read_value()
        total = self._local_steps(rows, stamps.begun)
        message = stamps.send(message_of(scheme, self, stamps.begun, total))
        reply = scheme.gate.exchange(self.ps, self.slot, message)
        fine = tf.reduce_all(tf.math.is_finite(reply))  # each element, lest two workers come to different sums

        def adopt() -> None:
            scheme.adopt(self.view, reply)
            if self.is_center:
                self.ps.center.come_to(self.ps.read_version(), clock, self.replica.state)

        with stamps.reply():
            adopted = when(fine, adopt)
        self.replica.keep_state(fine, state)
        return total, adopted

    def _local_steps(self, rows: Any, after: Any) -> Any:
        """One local step for each of `rows`, `after` that moment; returns the sum of the losses."""
        if self.scheme.period == 1:
            loss, gradient = self._gradient(rows[0], after)
            self._step(gradient)
            self.view.gradient = self.view.gradient_sum = gradient
            return loss

        def step(t: Any, total: Any, gradients: Any) -> tuple[Any, Any, Any]:
            loss, gradient = self._gradient(rows[t])
            self._step(gradient)
            return t + 1, total + loss, gradients + gradient if self.sums_gradients else gradients

        with tf.control_dependencies([after]):
            nothing = tf.zeros([self.replica.model.size if self.sums_gradients else 0])
            start = tf.constant(0), tf.constant(0.0), nothing
        _, total, gradients = tf.while_loop(lambda t, *_: t < tf.shape(rows)[0], step, start, parallel_iterations=1)
        if self.sums_gradients:
            self.view.gradient_sum = gradients
        return total

    def _step(self, gradient: Any) -> None:
        self._scheme_now().local_step(self.view, gradient)
        if self.scheme.scheduled or self.is_center:
            self.clock.assign_add(1)

    def _scheme_now(self) -> Scheme:
        """The scheme with its learning rates of this moment."""
        return self.scheme.at(tf.cast(self.clock.read_value(), tf.float32)) if self.scheme.scheduled else self.scheme

    def _gradient(self, rows: Any, *after: Any) -> tuple[Any, Any]:
        """Loss and gradient on one batch, `after` a moment; the batch itself may be fetched before."""
        with tf.control_dependencies(after):
            params = tf.identity(self.scheme.gradient_point(self.view))
        return self.replica.gradient(params, rows)


def no_mean(why: str) -> Callable[[Any], Any]:
    """`worker.mean` where there is none."""

    def mean(vector: Any) -> Any:
        del vector
        raise UserError(why)

    return mean


def message_of(scheme: Scheme, worker: Worker, begun: Any, total: Any = None) -> Any:
    """What a worker sends, [P + m].

    Args:
        scheme: with its learning rates of this moment.
        worker: whose round it is.
        begun: the moment when it began. Means come one after the other, after those of the round before.
        total: the sum of the losses of the round, if they are known.
    """
    view, last = worker.view, begun

    def mean(vector: Any) -> Any:
        nonlocal last
        with tf.control_dependencies([last]):
            last = scheme.gate.mean(worker.ps, worker.slot, tf.identity(tf.cast(vector, tf.float32)))
        return last

    if total is not None:
        view.loss = total / view.steps
    elsewhere, view.mean = view.mean, mean
    message = packed(scheme.name, scheme.scalars, scheme.message(view))
    view.mean = elsewhere
    if last is begun:
        return message
    with tf.control_dependencies([last]):  # also those that are no part of it come before the exchange
        return tf.identity(message)


def asks_for_sum(scheme: Scheme, view: Any) -> bool:
    """True if the scheme's message is made of the sum of gradients; others need not add them up."""
    asked = []

    class Probe(View):
        @property
        def gradient_sum(self) -> Any:
            asked.append(True)
            return tf.zeros_like(self.params)

    probe: Any = Probe(**vars(view) | {"steps": tf.constant(1.0), "loss": tf.constant(1.0), "mean": tf.identity})
    tf.function(lambda: scheme.at(tf.constant(0.0)).message(probe), autograph=False).get_concrete_function()
    return bool(asked)
