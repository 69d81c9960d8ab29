"""The local variables of all workers, as rows of tables: a load or store touches only the rows of its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..messages.ops import first_values
from ..server.slices import Row
from ..worker.flat_model import FlatModel
from .cells import Cell

Values = dict[str, Any]  # of one or many workers, by name: params, slots (of the scheme), codec, state, seeds


class Tables:
    """The local variables of the workers of a simulated run.

    Args:
        scheme: the algorithm.
        model: the model to train.
        workers: W.
        initial: placeholders of the initial center [P] and state [S].

    Attributes:
        tables: a variable [W, ...] for each local variable, nested as `Values`.
        shared: the workers' states as the evaluator sees them, [W, S].
        gradients: for schemes that exchange first, the gradients to apply after the reply, [W, P]; else None.
    """

    def __init__(self, scheme: Scheme, model: FlatModel, workers: int, initial: tuple[Any, Any]):
        self.scheme, self.model, self.num_workers = scheme, model, workers
        center, state = initial
        number = tf.range(workers)

        def seeds(initial_seed: Any) -> Any:  # different seeds, so that workers draw different dropout masks
            ones = [1] * initial_seed.ndim
            return initial_seed[None] + tf.cast(tf.reshape(number, [-1, *ones]), initial_seed.dtype)

        def all_rows(value: Any) -> Any:
            value = tf.convert_to_tensor(value)
            return tf.tile(value[None], [workers, *[1] * value.shape.rank])

        own = {"slots": first_values(scheme.local_variables, center), "codec": scheme.codec.local_variables(0 * center)}
        start = {"params": center, "state": state} | {kind: dict(values) for kind, values in own.items()}
        start = tf.nest.map_structure(all_rows, start)
        start["seeds"] = [seeds(seed) for seed in model.initial_seeds]
        self.tables = tf.nest.map_structure(lambda value: tf.Variable(value, name="table"), start)
        self.shared = tf.Variable(all_rows(state), name="shared")
        self.gradients = tf.Variable(all_rows(0 * center), name="gradients") if scheme.exchange_first else None

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

    def on_each(self, act: Callable[..., Any], values: Values, *of_each: Any) -> tuple[Values, Any]:
        """Call `act(cells, ...)` for each worker, on cells of its values, in one vectorized computation.

        Args:
            act: receives the cells of a worker, and its part of each tensor in `of_each`.
            values: values of the workers, [B, ...] each.
            of_each: further tensors [B, ...], nested.

        Returns:
            the new values (a variable without an assignment keeps its tensor), and the results of `act`.
        """
        changed: list[bool] = []

        def lane(given: Any) -> Any:
            mine, others = given
            cells = tf.nest.map_structure(Cell.of, mine)
            result = act(cells, *others)
            flat = tf.nest.flatten(cells)
            changed[:] = [cell.changed for cell in flat]
            return [cell.read_value() for cell in flat if cell.changed], result

        new, result = tf.vectorized_map(lane, (values, of_each), warn=False)
        left = iter(new)
        flat = [next(left) if has else value for value, has in zip(tf.nest.flatten(values), changed, strict=True)]
        return tf.nest.pack_sequence_as(values, flat), result

    # One worker at a time; only the tensors in use are read.

    def cells(self, worker: Any) -> Values:
        """Build cells of a worker, each of which reads its row of a table at the first use."""
        return tf.nest.map_structure(lambda table: Cell(Row(table, worker).read_value), self.tables)

    def keep(self, worker: Any, cells: Values) -> None:
        """Write the assigned cells of a worker to the tables."""
        for table, cell in zip(tf.nest.flatten(self.tables), tf.nest.flatten(cells), strict=True):
            if cell.changed:
                Row(table, worker).assign(cell.read_value())

    def start_one(self, worker: Any, center: Any) -> None:
        """Start a worker anew: initialize its local variables from the center."""
        cells = self.cells(worker)
        cells["params"].assign(center)
        for name, value in self.scheme.local_variables(center).items():
            cells["slots"][name].assign(value)
        for name, value in self.scheme.codec.local_variables(0 * center).items():
            cells["codec"][name].assign(value)
        if self.model.state_size:
            cells["state"].assign(Row(self.shared, worker).read_value())
        self.keep(worker, cells)

    def share_state(self, workers: Any) -> None:
        """Copy the states of these workers to `shared`, where the evaluator reads them."""
        if self.model.state_size:
            Row(self.shared, workers).assign(Row(self.tables["state"], workers).read_value())
