"""Batched workers: rounds of many workers in one computation.

The local variables of all workers are rows of tables, and a load or store touches only the rows of its workers. The
scheme's rules for a worker read and write variables: they are traced once on shadow variables, whose final tensors are
the new values, and `tf.vectorized_map` turns them into a computation for all workers at once: a matrix product of each
worker becomes one batched product.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ...common.contract.kept import first_values
from ...common.contract.scheme import Scheme
from ...common.contract.seen import for_message, of_round, of_workers, worker_view
from ...common.contract.weighed import weighs
from ...common.messages.cut import cut_into
from ...common.messages.message import MeanUnknown, as_message, declared_means, known_means
from ...common.messages.ops import building
from ...common.messages.stand_in import Row, StandIn
from ...common.sync.store import Message
from ...common.worker.replica import Replica, Stream, own_seed

Values = dict[str, Any]  # of one or many workers: params, slots (of the scheme), codec (by slice), state, seeds


class ShadowVariable(StandIn):
    """A tensor with the interface of a variable: an assignment replaces the tensor.

    Args:
        read: returns the tensor; called at the first use.

    Attributes:
        changed: True after an assignment.
    """

    def __init__(self, read: Callable[[], Any]):
        self._read, self._value, self.changed = read, None, False

    @classmethod
    def of(cls, value: Any) -> ShadowVariable:
        """Build a shadow variable that holds this tensor."""
        return cls(lambda: value)

    def read_value(self) -> Any:
        """Return the tensor."""
        if self._value is None:
            self._value = self._read()
        return self._value

    def assign(self, value: Any) -> Any:
        """Replace the tensor by another of the same shape and type; return it."""
        before = self.read_value() if self._value is not None else None
        value = tf.convert_to_tensor(value, dtype_hint=tf.float32) if before is None else _like(value, before)
        self._value, self.changed = value, True
        return value


def _like(value: Any, before: Any) -> Any:
    value = tf.convert_to_tensor(value, before.dtype)
    value.shape.assert_is_compatible_with(before.shape)
    return value


class Given(Stream):
    """A batch source that returns the batch it was given."""

    def __init__(self):
        self.initialize, self.fed = (), []

    def batch(self, rows: Any) -> Any:
        """Return `rows`, which is the batch."""
        return rows


class BatchedWorkers:
    """The workers of a simulated run.

    Args:
        scheme: the algorithm.
        replica: the model of a worker; its own variables are not used.
        workers: W.
        initial: a pair, the placeholders of the initial center [P] and state [S].
        seed: seed of the run.
        sizes: sizes of the slices of a message, which a codec encodes.

    Attributes:
        tables: a variable [W, ...] for each local variable, nested as `Values`.
        shared: the workers' states as the evaluator sees them, [W, S].
        replaces_params: True if a worker's parameters are not read between its message and the reply, which replaces
            them: then they need not be stored.
    """

    def __init__(self, scheme: Scheme, replica: Replica, workers: int, initial: Any, seed: int, sizes: list[int]):
        self.scheme, self.replica, self.model = scheme, replica, replica.model
        self.kinds = [*scheme.kinds]
        self.num_workers, self.sizes = workers, sizes
        self.common = of_workers(self.model.shapes, self.model.without_decay, self.model.size, workers, seed)
        center, state = initial

        def seeds(initial_seed: Any) -> Any:
            return own_seed(initial_seed, np.arange(workers)[:, None])

        def all_rows(value: Any) -> Any:
            value = tf.convert_to_tensor(value)
            return tf.tile(value[None], [workers, *[1] * value.shape.rank])

        codec = [dict(scheme.codecs()[0].local_variables(part)) for part in cut_into(0 * center, sizes)]
        start = {"params": center, "state": state, "slots": dict(first_values(scheme.worker_variables, center))}
        start = tf.nest.map_structure(all_rows, start | {"codec": codec})
        start["seeds"] = [seeds(seed) for seed in self.model.initial_seeds]
        self.tables = tf.nest.map_structure(lambda value: tf.Variable(value, name="table"), start)
        self.shared = tf.Variable(all_rows(state), name="shared")
        self.sums_gradients = scheme.period > 1 and scheme.sends == "gradient_sum"
        replaces = (self._replaces_params(initial[0], kind) for kind in range(len(self.kinds)))
        self.replaces_params = scheme.events == {"exchange"} and all(replaces)

    # One worker, as shadow variables.

    def view(self, variables: Values, index: Any, when: Any, kind: int, done: bool = False, **more: Any) -> Any:
        """Build the scheme's view of a worker.

        Args:
            variables: shadow variables of the worker's values.
            index: index of the worker.
            when: local steps that it has done, steps of its round, and number of the round, [3].
            kind: number of the kind of the round, in the order of `Scheme.kinds`.
            done: True from the message on: then the steps of the round are done.
            more: further attributes of the view.
        """
        step, steps, number = when[0], when[1], when[2]
        if done:
            step += steps
        visible = {"params": variables["params"], **variables["slots"]}
        return worker_view(self.common, index, visible, **of_round(self.kinds[kind], steps, number, step), **more)

    def scheme_at(self, clock: Any) -> Scheme:
        """Return the scheme with its learning rates after that many local steps."""
        return self.scheme.at(clock) if self.scheme.scheduled else self.scheme

    def _replaces_params(self, params: Any, kind: int) -> bool:
        """Return True if a worker's parameters after a reply do not depend on its parameters before."""
        read: list[Any] = []
        with building(tf.Graph()):
            start = tf.zeros(params.shape)
            variable = ShadowVariable(lambda: read.append(True) or start)
            slots = {name: ShadowVariable.of(value) for name, value in self.scheme.worker_variables(start).items()}
            view = self.view({"params": variable, "slots": slots}, 0, tf.ones([3]), kind)
            self.scheme_at(tf.constant(0.0)).on_reply(
                view, tf.zeros([self.scheme.message_sizes(self.model.shapes)[-1]])
            )
        return variable.changed and not read

    def gradient(self, variables: Values, view: Any, batch: Any) -> tuple[Any, Any]:
        """Return loss and gradient of one worker on one batch; update the worker's state and seeds."""
        replica = copy.copy(self.replica)
        replica.index = view.index
        replica.state, replica.seeds = variables["state"], variables["seeds"]
        replica.frozen = [ShadowVariable.of(value.read_value()) for value in self.replica.frozen]
        found = replica.gradient(self.scheme.gradient_point(view), batch)
        if weighs(self.scheme):
            view.count.assign(replica.count)
        return found

    # Many workers.

    def steps(
        self, values: Values, workers: Any, when: Any, kind: int, batches: Any, number: Any, *adopting: Any
    ) -> tuple[Values, Any, Any]:
        """Take local steps of many workers, each on its own batches.

        Args:
            values: values of the workers, [B, ...].
            workers: the workers, [B].
            when: local steps that each has done before, steps of its round, and number of the round, [B, 3].
            kind: number of the kind of their rounds.
            batches: function of t that returns the batches of step t, [B, batch size, ...].
            number: number of steps; None for exactly one.
            adopting: `when` and `kind` of the workers' last rounds, and a reply [P] that they adopt before the single
                step. Inside the vectorized computation the reply is one tensor that all share, so products with it are
                not batched.

        Returns:
            values, sums of the losses [B], and sums of the gradients [B, P], zeros if the scheme does not use them.
        """
        *before, earlier, reply = adopting or (0, None)

        def act(variables: Values, index: Any, now: Any, batch: Any, *last: Any) -> Any:
            if last:
                self.on_reply(variables, index, last[0], earlier, reply)
            view = self.view(variables, index, now, kind)
            loss, gradient = self.gradient(variables, view, batch)
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

    def messages(
        self, values: Values, workers: Any, when: Any, kind: int, losses: Any, gradients: Any
    ) -> tuple[Values, Any]:
        """Build the messages, `Message` of tensors with a row for each worker.

        `losses` are sums; `gradients` are those of a single step, or sums, or unused by the scheme. If the messages
        need means over all workers, `workers` are all of them.
        """
        means: list[Any] = []
        names = for_message(self.scheme)
        of_gradients = [name for name in names if name != "loss"]

        def act(variables: Values, index: Any, now: Any, loss: Any, *gradient: Any) -> Any:
            more = {"loss": loss / now[1]} if "loss" in names else {}
            begun, now = now[0], now - tf.stack([tf.minimum(float(self.scheme.overlap), now[1]), 0.0, 0.0])
            more |= {"mean": declared_means(self.scheme.name, sizes, known_means(means))}
            view = self.view(variables, index, now, kind, done=True, **more, **dict.fromkeys(of_gradients, *gradient))
            scheme = self.scheme_at(begun)
            try:
                return as_message(scheme.name, scheme.scalars, scheme.message(view))
            except MeanUnknown as unknown:
                return unknown.vector

        sizes = self.scheme.message_sizes(self.model.shapes)
        while True:
            after, result = self.on_each(act, values, workers, when, losses, *([gradients] if of_gradients else []))
            if isinstance(result, Message):
                return after, result
            means.append(tf.reduce_mean(result, 0))

    def on_reply(self, variables: Values, index: Any, now: Any, kind: int, reply: Any) -> None:
        """Let a worker adopt a reply [P] in a round of this kind."""
        self.scheme_at(now[0]).on_reply(self.view(variables, index, now, kind, done=True), reply)

    def adopted(self, values: Values, workers: Any, when: Any, kind: int, reply: Any) -> Values:
        """Return the values of workers, [B], after they adopt the same reply [P], or each its own, [B, P]."""

        def act(variables: Values, index: Any, now: Any, *own_reply: Any) -> None:
            self.on_reply(variables, index, now, kind, *own_reply or (reply,))

        return self.on_each(act, values, workers, when, *([reply] if reply.shape.rank == 2 else []))[0]

    def load(self, workers: Any) -> Values:
        """Return the values of these workers, [B, ...] each."""
        return tf.nest.map_structure(lambda table: Row(table, workers).read_value(), self.tables)

    def store(self, workers: Any, before: Values, after: Values) -> None:
        """Write the changed values of these workers: the tensors of `after` that are not those of `before`."""
        old, new = tf.nest.flatten(before), tf.nest.flatten(after)
        for table, was, now in zip(tf.nest.flatten(self.tables), old, new, strict=True):
            if was is not now:
                Row(table, workers).assign(now)

    # Many workers at a time.

    def on_each(self, act: Callable[..., Any], values: Values, *tensors: Any) -> tuple[Values, Any]:
        """Call `act(variables, ...)` for each worker, on shadow variables of its values, in one vectorized computation.

        Args:
            act: receives the shadow variables of a worker, and its part of each tensor in `tensors`.
            values: values of the workers, [B, ...] each.
            tensors: further tensors [B, ...], nested.

        Returns:
            the new values (a variable without an assignment keeps its tensor), and the results of `act`.
        """
        changed: list[bool] = []

        def act_on_row(row: Any) -> Any:
            of_worker, others = row
            variables = tf.nest.map_structure(ShadowVariable.of, of_worker)
            result = act(variables, *others)
            result = others[0] if result is None else result  # a vectorized computation needs one
            flat = tf.nest.flatten(variables)
            changed[:] = [variable.changed for variable in flat]
            return [variable.read_value() for variable in flat if variable.changed], result

        new, result = tf.vectorized_map(act_on_row, (values, tensors), warn=False)
        left = iter(new)
        flat = [next(left) if has else value for value, has in zip(tf.nest.flatten(values), changed, strict=True)]
        return tf.nest.pack_sequence_as(values, flat), result

    # One worker at a time; only the tensors in use are read.

    def variables_of(self, worker: Any) -> Values:
        """Build shadow variables of a worker, each of which reads its row of a table at the first use."""
        return tf.nest.map_structure(lambda table: ShadowVariable(Row(table, worker).read_value), self.tables)

    def store_one(self, worker: Any, variables: Values) -> None:
        """Write the assigned shadow variables of a worker to the tables."""
        for table, variable in zip(tf.nest.flatten(self.tables), tf.nest.flatten(variables), strict=True):
            if variable.changed:
                Row(table, worker).assign(variable.read_value())

    def start_one(self, worker: Any, center: Any) -> None:
        """Start a worker anew: initialize its local variables from the center."""
        variables = self.variables_of(worker)
        variables["params"].assign(center)
        for name, value in self.scheme.worker_variables(center).items():
            variables["slots"][name].assign(value)
        for local, part in zip(variables["codec"], cut_into(0 * center, self.sizes), strict=True):
            for name, value in self.scheme.codecs()[0].local_variables(part).items():
                local[name].assign(value)
        if self.model.state_size:
            variables["state"].assign(Row(self.shared, worker).read_value())
        self.store_one(worker, variables)

    def share_state(self, workers: Any) -> None:
        """Copy the states of these workers to `shared`, where the evaluator reads them."""
        if not self.model.state_size:
            return
        shared, states = Row(self.shared, workers), Row(self.tables["state"], workers)
        if self.scheme.sync.most_left_out(self.shared.shape[0]):  # as `DenseWorker.round`
            finite = tf.reduce_all(tf.math.is_finite(states.read_value()), -1, keepdims=True)
            states.assign(tf.where(finite, states.read_value(), shared.read_value()))
        shared.assign(states.read_value())
