"""Lanes: rounds of many workers in one computation.

A lane is one worker's round. What the scheme says of a worker is traced once on cells, and `tf.vectorized_map` makes of
that a computation on all lanes at once: a matrix product of each worker becomes one batched product.
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
    """The source of a batch that is there already."""

    def __init__(self):
        self.initialize, self.fed = (), []

    def batch(self, rows: Any) -> Any:
        """What is given for rows."""
        return rows


class BatchedWorkers(Tables):
    """The workers of a simulated run.

    Args:
        scheme: the algorithm.
        replica: the model, as each worker has it; its own variables are not used.
        workers: W.
        initial: center [P] and state [S] at the start, where they are fed.
        seed: of the run.

    Attributes:
        forgetful: True if nobody reads the parameters of a worker between its message and the reply, which replaces
            them: then they need not be stored.
    """

    def __init__(self, scheme: Scheme, replica: Replica, workers: int, initial: tuple[Any, Any], seed: int):
        super().__init__(scheme, replica.model, workers, initial)
        self.replica, self.seed = replica, seed
        self.sums_gradients = scheme.period > 1 and not scheme.exchange_first and scheme.uses_gradient_sum
        self.forgetful = scheme.events == {"exchange"} and self._replaces_params(initial[0])

    # One worker, as cells.

    def view(self, cells: Values, index: Any, when: Any, done: bool = False, **known: Any) -> Any:
        """What the scheme sees of a worker.

        Args:
            cells: of the worker.
            index: which one.
            when: local steps that it has done, those of its round, and the number of that, [3].
            done: True if its message is made: then it has done the steps of its round, too, unless it exchanges first.
            known: what else it sees.
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
        """The scheme with its learning rates after that many local steps."""
        return self.scheme.at(clock) if self.scheme.scheduled else self.scheme

    def _replaces_params(self, params: Any) -> bool:
        """True if what a worker has after a reply does not depend on its parameters before."""
        read: list[Any] = []

        def note() -> Any:
            read.append(True)
            return tf.zeros(params.shape)

        with building(tf.Graph()):
            cell = Cell(note)
            self.scheme_at(tf.constant(0.0)).adopt(self._probe(cell), tf.zeros(params.shape))
        return cell.changed and not read

    def _probe(self, params: Cell) -> Any:
        """A worker that is only looked at."""
        start = tf.zeros(self.tables["params"].shape[1:])
        slots = {name: Cell.of(value) for name, value in self.scheme.local_variables(start).items()}
        return self.view({"params": params, "slots": slots}, 0, tf.ones([3]))

    def gradient(self, cells: Values, view: Any, batch: Any) -> tuple[Any, Any]:
        """Loss and gradient of one worker on one batch; its own state and seeds move on."""
        replica = copy.copy(self.replica)
        replica.state, replica.seeds = cells["state"], cells["seeds"]
        replica.frozen = [Cell.of(value.read_value()) for value in self.replica.frozen]
        return replica.gradient(self.scheme.gradient_point(view), batch)

    # Many workers.

    def steps(
        self, values: Values, workers: Any, when: Any, batches: Any, number: Any, *adopting: Any
    ) -> tuple[Values, Any, Any]:
        """Local steps, each on its batches.

        Args:
            values: of the workers, [B, ...].
            workers: [B].
            when: local steps that each has done before, those of its round, and its number; [B, 3].
            batches: gives the batches of step t, [B, batch size, ...]; a function of t.
            number: of steps; None: exactly one.
            adopting: before the one step, these workers use a reply: `when` of their last rounds, and the reply [P].
                What all have in common then, they have in one copy: the product with it is one, not one for each.

        Returns:
            values, sums of the losses [B], and sums of the gradients [B, P] if anybody asks for them.
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
        """Losses and gradients before an exchange, of schemes that exchange first."""

        def act(cells: Values, index: Any, now: Any, batch: Any) -> Any:
            return self.gradient(cells, self.view(cells, index, now), batch)

        return self.on_each(act, values, workers, when, batch)

    def first_steps(self, values: Values, workers: Any, when: Any, gradients: Any) -> Values:
        """The steps with these gradients, after the exchange."""

        def act(cells: Values, index: Any, now: Any, gradient: Any) -> Any:
            self.scheme_at(now[0]).local_step(self.view(cells, index, now), gradient)
            return now

        return self.on_each(act, values, workers, when, gradients)[0]

    def messages(self, values: Values, workers: Any, when: Any, losses: Any, gradients: Any) -> tuple[Values, Any]:
        """The messages, [B, P + m].

        `losses` are sums; `gradients` are those of the only step, or sums, or nothing that the scheme knows.
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
        """What workers, [B], have when they have used the same reply [P]."""

        def act(cells: Values, index: Any, now: Any) -> Any:
            self._adopt(cells, index, now, reply)
            return now

        return self.on_each(act, values, workers, when)[0]

    def adopt(self, workers: Any, when: Any, reply: Any) -> None:
        """Each of these workers, [B], uses the same reply [P]."""
        before = self.load(workers)
        self.store(workers, before, self.adopted(before, workers, when, reply))

    def adopt_one(self, worker: Any, now: Any, reply: Any) -> None:
        """This worker uses a reply [P]."""
        cells = self.cells(worker)
        self._adopt(cells, worker, now, reply)
        self.keep(worker, cells)
