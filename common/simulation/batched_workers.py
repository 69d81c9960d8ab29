"""Batched workers: rounds of many workers in one computation.

A lane is one worker's round. The scheme's rules for a worker are traced once on cells, and `tf.vectorized_map` turns
them into a computation on all lanes at once: a matrix product of each worker becomes one batched product.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..contract.seeded import uniform
from ..messages.message import packed
from ..messages.ops import building
from ..worker.batches import Stream
from ..worker.replica import Replica
from ..worker.view import View, no_mean
from .cells import Cell
from .tables import Tables, Values


class Given(Stream):
    """A batch source that returns the batch it was given."""

    def __init__(self):
        self.initialize, self.fed = (), []

    def batch(self, rows: Any) -> Any:
        """Return `rows`, which is the batch."""
        return rows


class BatchedWorkers(Tables):
    """The workers of a simulated run.

    Args:
        scheme: the algorithm.
        replica: the model of a worker; its own variables are not used.
        workers: W.
        initial: placeholders of the initial center [P] and state [S].
        seed: seed of the run.

    Attributes:
        forgetful: True if a worker's parameters are not read between its message and the reply, which replaces them:
            then they need not be stored.
    """

    def __init__(self, scheme: Scheme, replica: Replica, workers: int, initial: tuple[Any, Any], seed: int):
        super().__init__(scheme, replica.model, workers, initial)
        self.replica, self.seed = replica, seed
        self.sums_gradients = scheme.period > 1 and scheme.uses_gradient_sum
        self.forgetful = scheme.events == {"exchange"} and self._replaces_params(initial[0])

    # One worker, as cells.

    def view(self, cells: Values, index: Any, when: Any, done: bool = False, **known: Any) -> Any:
        """Build the scheme's view of a worker.

        Args:
            cells: cells of the worker's values.
            index: index of the worker.
            when: local steps that it has done, steps of its round, and number of the round, [3].
            done: True from the message on: then the steps of the round are done, unless the scheme exchanges first.
            known: further attributes of the view.
        """
        shapes = self.replica.model.shapes
        step, steps, number = when[0], when[1], when[2]
        if done and not self.scheme.exchange_first:
            step += steps
        return View(
            params=cells["params"],
            index=index,
            num_workers=self.num_workers,
            steps=steps,
            round=tf.cast(number, tf.int64),
            step=tf.cast(step, tf.int64),
            uniform=partial(uniform, self.seed, self.replica.model.size),
            shapes=shapes,
            mean=no_mean("in a simulation there is no worker.mean: use backend='processes' or 'threads'"),
            **cells["slots"],
            **known,
        )

    def scheme_at(self, clock: Any) -> Scheme:
        """Return the scheme with its learning rates after that many local steps."""
        return self.scheme.at(clock) if self.scheme.scheduled else self.scheme

    def _replaces_params(self, params: Any) -> bool:
        """Return True if a worker's parameters after a reply do not depend on its parameters before."""
        read: list[Any] = []

        def note() -> Any:
            read.append(True)
            return tf.zeros(params.shape)

        with building(tf.Graph()):
            cell = Cell(note)
            self.scheme_at(tf.constant(0.0)).adopt(self._probe(cell), tf.zeros(params.shape))
        return cell.changed and not read

    def _probe(self, params: Cell) -> Any:
        """Build the view of a worker for tracing alone."""
        start = tf.zeros(self.tables["params"].shape[1:])
        slots = {name: Cell.of(value) for name, value in self.scheme.local_variables(start).items()}
        return self.view({"params": params, "slots": slots}, 0, tf.ones([3]))

    def gradient(self, cells: Values, view: Any, batch: Any) -> tuple[Any, Any]:
        """Return loss and gradient of one worker on one batch; update the worker's state and seeds."""
        replica = copy.copy(self.replica)
        replica.state, replica.seeds = cells["state"], cells["seeds"]
        replica.frozen = [Cell.of(value.read_value()) for value in self.replica.frozen]
        return replica.gradient(self.scheme.gradient_point(view), batch)

    # Many workers.

    def steps(
        self, values: Values, workers: Any, when: Any, batches: Any, number: Any, *adopting: Any
    ) -> tuple[Values, Any, Any]:
        """Take local steps of many workers, each on its own batches.

        Args:
            values: values of the workers, [B, ...].
            workers: the workers, [B].
            when: local steps that each has done before, steps of its round, and number of the round, [B, 3].
            batches: function of t that returns the batches of step t, [B, batch size, ...].
            number: number of steps; None for exactly one.
            adopting: `when` of the workers' last rounds, and a reply [P] that they adopt before the single step. Inside
                the vectorized computation the reply is one tensor that all share, so products with it are not batched.

        Returns:
            values, sums of the losses [B], and sums of the gradients [B, P], zeros if the scheme does not use them.
        """
        *before, reply = adopting or (None,)

        def act(cells: Values, index: Any, now: Any, batch: Any, *last: Any) -> Any:
            if last:
                self._adopt(cells, index, last[0], reply)
            view = self.view(cells, index, now)
            loss, gradient = self.gradient(cells, view, batch)
            self.scheme_at(now[0]).local_step(view, gradient)
            return loss, gradient

        if number is None:
            values, (loss, gradient) = self.on_each(act, values, workers, when, batches(0), *before)
            return values, loss, gradient
        moved: list[bool] = []

        def body(t: Any, losses: Any, sums: Any, values: Values) -> Any:
            now = when + tf.cast(tf.stack([t, 0, 0]), tf.float32)
            after, (loss, gradient) = self.on_each(act, values, workers, now, batches(t))
            pairs = zip(tf.nest.flatten(values), tf.nest.flatten(after), strict=True)
            moved[:] = [was is not is_now for was, is_now in pairs]
            return t + 1, losses + loss, sums + gradient if self.sums_gradients else sums, after

        nothing = tf.zeros_like(values["params"]) if self.sums_gradients else tf.constant(0.0)
        start = tf.constant(0), tf.zeros_like(when[:, 0]), nothing, values
        _, losses, sums, after = tf.while_loop(lambda t, *_: t < number, body, start, parallel_iterations=1)
        pairs = zip(moved, tf.nest.flatten(values), tf.nest.flatten(after), strict=True)
        return tf.nest.pack_sequence_as(values, [new if has else old for has, old, new in pairs]), losses, sums

    def first_gradients(self, values: Values, workers: Any, when: Any, batch: Any) -> tuple[Values, Any]:
        """Compute losses and gradients before an exchange, for schemes that exchange first."""

        def act(cells: Values, index: Any, now: Any, batch: Any) -> Any:
            return self.gradient(cells, self.view(cells, index, now), batch)

        return self.on_each(act, values, workers, when, batch)

    def first_steps(self, values: Values, workers: Any, when: Any, gradients: Any) -> Values:
        """Take the local steps with these gradients, after the exchange."""

        def act(cells: Values, index: Any, now: Any, gradient: Any) -> Any:
            self.scheme_at(now[0]).local_step(self.view(cells, index, now), gradient)
            return now

        return self.on_each(act, values, workers, when, gradients)[0]

    def messages(self, values: Values, workers: Any, when: Any, losses: Any, gradients: Any) -> tuple[Values, Any]:
        """Build the messages, [B, P + m].

        `losses` are sums; `gradients` are those of a single step, or sums, or unused by the scheme.
        """
        names = ["gradient"] if self.scheme.period == 1 else []
        names += ["gradient_sum"] if self.scheme.uses_gradient_sum else []
        names = [] if self.scheme.exchange_first else names

        def act(cells: Values, index: Any, now: Any, loss: Any, *gradient: Any) -> Any:
            known = {} if self.scheme.exchange_first else {"loss": loss / now[1]}
            view = self.view(cells, index, now, done=True, **known, **dict.fromkeys(names, *gradient))
            scheme = self.scheme_at(now[0])
            return packed(scheme.name, scheme.scalars, scheme.message(view))

        return self.on_each(act, values, workers, when, losses, *([gradients] if names else []))

    def _adopt(self, cells: Values, index: Any, now: Any, reply: Any) -> None:
        self.scheme_at(now[0]).adopt(self.view(cells, index, now, done=True), reply)

    def adopted(self, values: Values, workers: Any, when: Any, reply: Any) -> Values:
        """Return the values of workers, [B], after they adopt the same reply [P]."""

        def act(cells: Values, index: Any, now: Any) -> Any:
            self._adopt(cells, index, now, reply)
            return now

        return self.on_each(act, values, workers, when)[0]

    def adopt(self, workers: Any, when: Any, reply: Any) -> None:
        """Let these workers, [B], adopt the same reply [P]."""
        before = self.load(workers)
        self.store(workers, before, self.adopted(before, workers, when, reply))

    def adopt_one(self, worker: Any, now: Any, reply: Any) -> None:
        """Let a worker adopt a reply [P]."""
        cells = self.cells(worker)
        self._adopt(cells, worker, now, reply)
        self.keep(worker, cells)
