"""A Keras optimizer that plays the workers of a run in turn: any algorithm in `model.fit`.

    optimizer = distsgd.Optimizer(Downpour(), workers=4)
    model.compile(optimizer=optimizer, loss=..., metrics=...)
    model.fit(x, y, callbacks=[optimizer.callback()])

Keras traces `apply` once. So the turns of the workers are planned ahead, in whole numbers, and written to variables as
a table: a row for each operation on the variables of `Operations`, in which the workers are rows, too. The graph does
the operations of one step, and then writes the point of the next step's worker into the model.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .arguments import at_most, checked_call
from .cards import warn_if_crowded
from .contract.checks import fitted_in_process
from .contract.hyperparameters import rates_of
from .contract.scheme import Scheme
from .contract.weighed import warning_of_means
from .errors import UserError
from .fit_guards import TurnsInFit
from .group import Operations
from .messages.structure import Structure
from .settings import refuse, source_of
from .turns import WHOLE, Now, Order, TurnsAhead, check_order, now_of

AHEAD = 512  # steps that are planned at a time
ROWS = 6  # rows of the table for each of them; a step, its message and the reply are five operations at most

OF_KERAS = ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")  # arguments of Keras' optimizers


class Table:
    """The plan as variables that a graph reads: the operations of `AHEAD` steps, one after the other.

    Args:
        plan: makes the plan of a run that begins at a step of this number.
        workers: number of workers, W.
    """

    def __init__(self, plan: Callable[[int], TurnsAhead], workers: int):
        self.make, self.plan = plan, plan(0)
        with tf.init_scope():
            self.rows = tf.Variable(np.zeros([ROWS * AHEAD + 4 * workers, 1 + len(Now._fields)], WHOLE), False)
            self.starts = tf.Variable(np.zeros([AHEAD + 1], WHOLE), trainable=False)  # the first row of each step
            self.times = tf.Variable(np.zeros([AHEAD + 1, len(Now._fields)], WHOLE), trainable=False)
            self.first = tf.Variable(np.int64(0), trainable=False)
        self.last = 0  # the steps before this one are in the table

    def prepare(self, step: int, begin: int) -> None:
        """Write the next turns of the run that began at step `begin`, if few are left after number `step`."""
        if begin != self.plan.begin or step < self.plan.first:  # after a load, or in a new run
            self.plan = self.make(begin)
        elif step <= self.last - AHEAD // 2:
            return
        self._write(step)

    def _write(self, step: int) -> None:
        """Write the operations of `AHEAD` steps from number `step` on."""
        while self.plan.first < step:  # after a load: plan the steps that the saved run has made
            self.plan.until(min(step, self.plan.first + AHEAD))
            self.plan.forget(min(step, self.plan.first + AHEAD))
        self.plan.until(step + AHEAD + 1)
        starts, rows, times = [0], [], []
        for now, operations in self.plan.steps:
            times.append(now)
            rows += operations
            starts.append(len(rows))
        self.starts.assign(starts[: AHEAD + 1])
        self.times.assign(times[: AHEAD + 1])
        self.rows[: starts[AHEAD]].assign(np.array(rows[: starts[AHEAD]], WHOLE))
        self.first.assign(step)
        self.last = step + AHEAD

    def of(self, step: Any) -> tuple[Any, Any, Now]:
        """Return the rows of a step, from the first to that after the last, and the time of the next step's worker."""
        at = tf.cast(step - self.first, tf.int32)
        begin, end = (tf.gather(self.starts.read_value(), at + i) for i in range(2))
        return begin, end, now_of(tf.gather(self.times.read_value(), at + 1))


@keras.saving.register_keras_serializable(package="distsgd")
class Optimizer(keras.optimizers.Optimizer):
    """Optimizer that plays the workers and parameter servers of an algorithm, in one process.

    Each batch is one local step of one worker, and with the last step of a round comes the exchange with the servers.
    The gradient is taken where the algorithm takes it: during training, the model's weights are the point of the worker
    of the next step. At evaluations, at the end of an epoch and at the end of `fit` they are the center. For this,
    `fit` needs the callback of the optimizer.

    Weights that have been changed between two calls of `fit` begin a new run: all variables of workers and servers, the
    order and a schedule begin anew.

    All workers take their batches from the data of `fit`, and share the state of layers, such as the statistics of
    `BatchNormalization`. Everything else is as in a `Group`: on the same order both have the same center. Gradients
    count alike, also of batches with a mask, whatever their numbers of valid positions (a warning says so).

    Args:
        scheme: the algorithm, for instance `Downpour(communication_period=5)`.
        workers: number of workers, W.
        order: order in which the workers step. `"round robin"`; `"random"`, by the seed; or a list of workers, which
            is repeated. A worker that has to wait (for a barrier, for slower workers, for the end of a warm start) is
            skipped: the next one in the order that is ready steps instead.
        seed: seed of a random order, and of `worker.uniform`.
        ps: number of parameter servers, each with a slice of the center. A codec encodes each slice by itself.
        codec: compression of messages, for instance `int8` or `topk:fraction=0.01`, with error feedback.
        name: name of the optimizer.
        clipnorm: as in other optimizers of Keras; so are `clipvalue` and `global_clipnorm`.
        clipvalue: the largest size of an element of a gradient.
        global_clipnorm: the largest norm of all gradients together.
        loss_scale_factor: factor of the loss, by which gradients are divided.

    Attributes:
        learning_rate: the `learning_rate` of the scheme. It can be assigned, as by `ReduceLROnPlateau`. A schedule
            counts the local steps of a worker.

    Example:
        >>> import distsgd, keras, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(512, 4))
        >>> optimizer = distsgd.Optimizer(distsgd.EASGD(learning_rate=0.1), workers=4)
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile(optimizer=optimizer, loss="mse")
        >>> history = model.fit(x, x.sum(1), epochs=20, verbose=0, callbacks=[optimizer.callback()])
        >>> history.history["loss"][-1] < 0.1
        True

    Raises:
        UserError: the arguments do not fit.
    """

    @checked_call
    def __init__(
        self, scheme: Scheme, *, workers: int, order: Order = "round robin", seed: int = 0, ps: int = 1,
        codec: str = "float32", name: str = "distsgd", clipnorm: float | None = None, clipvalue: float | None = None,
        global_clipnorm: float | None = None, loss_scale_factor: float | None = None,
    ):  # fmt: skip
        refuse()
        warn_if_crowded()
        scheme = fitted_in_process(scheme, workers, ps, codec, "Optimizer(Downpour(), workers=4)")
        check_order(order, workers)
        rate = rates_of(scheme).get("learning_rate", 0.0)
        super().__init__(
            rate if callable(rate) else float(rate),
            name=name,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            loss_scale_factor=loss_scale_factor,
        )
        self.scheme, self.workers, self.seed, self.ps, self.codec = scheme, workers, seed, ps, codec
        self.order: Order = order
        self._loss: Any = None  # loss of the present step
        self._has_center = False  # True while the model's weights are the center
        self._seen: int | None = None  # step at which the callback of the present `fit` was called last

    def __repr__(self) -> str:
        """Return the algorithm and the number of workers, as in the call that makes such an optimizer."""
        return f"Optimizer({self.scheme!r}, workers={self.workers})"

    # The variables.

    def build(self, variables: Sequence[Any]) -> None:
        """Make the variables of workers and servers: all begin with the values of these variables."""
        if self.built:
            return
        check_variables(variables)
        with tf.init_scope(), keras.name_scope(self.name):
            super().build(list(variables))
            values = [tensor_of(variable) for variable in variables]
            self._structure = Structure(values)
            center, shapes = self._structure.vector(values, "variables"), self._structure.shapes
            at_most(len(center), ps=self.ps)
            self._began_at = self._variable(tf.constant(0, tf.int64), "began_at")  # step at which the run began
            self._first = len(self.variables)  # index of the first variable of the run
            common: dict[str, Any] = {"workers": self.workers, "ps": self.ps, "shapes": shapes, "seed": self.seed}
            common["without_decay"] = [i for i, v in enumerate(variables) if not self._use_weight_decay(v)]
            self._operations = Operations(self.scheme, center, **common, variable=self._variable, for_xla=True)
            self._operations.learning_rate = self._rate if "learning_rate" in rates_of(self.scheme) else None
            self._table = Table(partial(TurnsAhead, self.scheme, self.workers, self.order, self.seed), self.workers)
            self._prepare()
            self._write_point()

    def _variable(self, value: Any, name: str) -> Any:
        """Make a variable that is saved with the optimizer."""
        check_type(value.dtype, f"{self.scheme.name}: make its variable {name}")
        variable = keras.Variable(value, dtype=value.dtype.name, trainable=False, name=f"{name}_{len(self.variables)}")
        self._track_variable(variable)
        return variable.value

    @property
    def center(self) -> list[Any]:
        """The center: a tensor for each variable of the model."""
        return self._structure.arrays(self._operations.center())

    def _write(self, vector: Any) -> None:
        for variable, part in zip(self._trainable_variables, self._structure.arrays(vector), strict=True):
            variable.assign(part)

    def _write_center(self) -> None:
        """Write the center into the model."""
        if self.built and not self._has_center:
            self._write(self._operations.center())
            self._has_center = True

    def _write_point(self) -> None:
        """Write the point of the next step's worker into the model."""
        self._write(self._operations.point(self._next()))
        self._has_center = False

    def _next(self) -> Now:
        """Return the time of the worker of the next step, whose turn is in the table."""
        return self._table.plan.steps[int(self._iterations.numpy()) - self._table.plan.first][0]

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Write the center into the model, at the end of `fit`."""
        if not self.built:
            return
        called_at, self._seen = self._seen, None
        if called_at is None or int(self._iterations.numpy()) > called_at:
            raise UserError(f"{NEEDS_CALLBACK}. Received: no callback in fit")
        self._has_center = False
        self._write_center()

    # A step.

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss times the scale factor. The algorithm can read it as `worker.loss`."""
        self._loss = tf.cast(loss, tf.float32)
        return super().scale_loss(loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Make one local step of the worker whose turn it is, and with the last step of its round the exchange.

        Args:
            grads: gradients at the present values of the variables.
            trainable_variables: variables of the gradients: in each call the same.
        """
        if tf.inside_function() and self._seen is None:  # before variables are made: a graph is not built twice
            raise UserError(f"{NEEDS_CALLBACK}; run_eagerly=True does without. Received: no callback in fit")
        grads = list(grads)
        if trainable_variables is not None:
            variables = list(trainable_variables)
            self.build(variables)
            grad_of = {self._var_key(variable): grad for variable, grad in zip(variables, grads, strict=True)}
            keys = [self._var_key(variable) for variable in self._trainable_variables]
            if grad_of.keys() != set(keys):
                raise UserError(
                    f"the optimizer was built for {len(keys)} variables, and each step needs their gradients: compile "
                    f"with a new optimizer for others. Received: gradients of {len(grad_of)} variables, "
                    f"{len(grad_of.keys() - set(keys))} of them others"
                )
            grads = [grad_of[key] for key in keys]
        for variable, grad in zip(self._trainable_variables, grads, strict=True):
            if grad is None:
                raise UserError(
                    f"the gradient of {getattr(variable, 'path', variable.name)} is None: the loss does not depend on "
                    "it. Set trainable=False on its layer"
                )
        super().apply(grads, self._trainable_variables)

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        if not tf.inside_function():
            self._prepare()
            self._seen = int(self._iterations.numpy()) + 1
        operations, table = self._operations, self._table
        operations.gradient_and_loss, self._loss = (self._structure.vector(list(grads), "gradients"), self._loss), None
        begin, end, following = table.of(self._iterations.value)
        rows = table.rows.read_value()

        def do(i: Any) -> list[Any]:
            row = tf.gather(rows, i)
            which, now = tf.cast(row[0], tf.int32), now_of(row[1:])

            def branch(name: str, kind: int) -> Callable[[], Any]:  # which returns a tensor
                return lambda: operations.do(name, now._replace(kind=kind)) or tf.constant(0)

            tf.switch_case(which, [branch(*operation) for operation in table.plan.operations])
            return [i + 1]

        tf.while_loop(lambda i: i < end, do, [begin], parallel_iterations=1)
        self._write(operations.point(following))
        self._has_center = False

    def _prepare(self) -> None:
        """Write the next turns to the table, if it has few left."""
        self._table.prepare(int(self._iterations.numpy()), int(self._began_at.numpy()))

    # The learning rate.

    @property
    def learning_rate(self) -> Any:
        """The present learning rate, that of an average worker if it is a schedule."""
        rate = self._learning_rate
        steps = self._iterations - (self._began_at if self.built else 0)
        return rate(steps // self.workers) if callable(rate) else rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        if "learning_rate" not in rates_of(self.scheme):
            raise UserError(f"{self.scheme.name} has no learning_rate that could change. Received: {rate}")
        keras.optimizers.Optimizer.learning_rate.fset(self, rate)

    def _rate(self) -> Any:
        rate = self._learning_rate
        return rate if callable(rate) else tf.convert_to_tensor(rate.value)

    # In `fit`.

    def callback(self) -> keras.callbacks.Callback:
        """Return the callback that `fit` needs, as the first if it does not know the number of batches.

        The model's weights are the center at evaluations, after an epoch, in checkpoints, after `fit` and exceptions.
        """
        return TurnsInFit(self, partial(warning_of_means, self.scheme, self.workers))

    def _begin_fit(self, model: Any) -> None:
        """Continue where the last `fit` ended. If the weights have been changed since, they begin a new run."""
        if self is not getattr(model.optimizer, "inner_optimizer", model.optimizer):
            raise UserError(
                "callbacks=[optimizer.callback()] must be of the optimizer that the model is compiled with. Received: "
                f"that of another {self.name}; model.optimizer.callback() is right (mixed_float16: .inner_optimizer)"
            )
        if model.steps_per_execution > AHEAD // 2:
            raise UserError(f"steps_per_execution must be at most {AHEAD // 2}. Received: {model.steps_per_execution}")
        self._see()
        if not self.built:
            model.make_train_function(force=True)  # a `fit` that was refused may have traced a part of it
        if not self.built and model.built:
            self.build(model.trainable_variables)
        if self.built:
            self._prepare()
            weights = self._structure.vector([tensor_of(variable) for variable in self._trainable_variables], "weights")
            for center in self._operations.center(), self._operations.point(self._next()):
                if np.array_equal(weights, center, equal_nan=True):
                    break
            else:
                self._restart(weights)

    def _see(self) -> None:
        """Note that the callback is called: without it, `fit` ends at a later step than that seen."""
        self._seen = int(self._iterations.numpy())

    def _restart(self, center: Any) -> None:
        """Begin a new run from this center with the variables that there are."""
        self._operations.begin(center, assigning(map(tensor_of, self.variables[self._first :])))
        self._began_at.assign(int(self._iterations.numpy()))
        self._prepare()

    def load_own_variables(self, store: Any) -> None:
        """Load the variables of a saved run, which `fit` may do in another callback."""
        super().load_own_variables(store)
        if self._seen is not None:
            self._see()

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the optimizer, with the present learning rate."""
        values = {field.name: getattr(self.scheme, field.name) for field in fields(self.scheme)}
        if "learning_rate" in rates_of(self.scheme):
            rate = self._learning_rate
            values["learning_rate"] = rate if callable(rate) else float(str(np.float32(rate.numpy())))
        scheme = saved_scheme(type(self.scheme), values)
        order = self.order if isinstance(self.order, str) else [int(k) for k in self.order]
        names = ("workers", "seed", "ps", "codec", "name", *OF_KERAS)
        return {"scheme": scheme, "order": order} | {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Optimizer:
        """Return an optimizer with these arguments."""
        saved = config["scheme"]
        values = keras.saving.deserialize_keras_object(saved["config"], custom_objects=custom_objects)
        return cls(**{**config, "scheme": kind_of(saved)(**values)})


NEEDS_CALLBACK = (
    "fit needs callbacks=[optimizer.callback()]: it brings the order of the workers, and the center for evaluations"
)


def tensor_of(variable: Any) -> Any:
    """Return the variable of TensorFlow in a variable of Keras, or this variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def assigning(variables: Iterator[Any]) -> Callable[[Any, str], Any]:
    """Return a function that assigns each value to the next one of these variables, and returns the variable."""

    def variable(value: Any, name: str) -> Any:
        target = next(variables)
        target.assign(value)
        return target

    return variable


def saved_scheme(kind: type[Scheme], values: dict[str, Any]) -> dict[str, Any]:
    """Return a class of algorithms and the values of its fields as Keras saves them."""
    config = keras.saving.serialize_keras_object(values)
    return {"module": kind.__module__, "class_name": kind.__qualname__, "config": config}


def kind_of(saved: dict[str, Any]) -> type[Scheme]:
    """Return the class of a saved scheme; `UserError` if its module has no such class.

    A file may be of any origin. So only modules of the catalogue are imported for it; others must have been.
    """
    module, name = saved["module"], saved["class_name"]
    if module.startswith("distsgd.algorithms."):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, Scheme)):
        raise UserError(
            f"the saved optimizer needs its algorithm: there is no scheme {name} in module {module}. If it is "
            "your own, import its module before you load the model"
        )
    return kind


def check_type(kind: Any, make_it: str) -> None:
    """Raise `UserError` for a variable of workers or servers of a type that TensorFlow does not keep on a GPU."""
    if kind == tf.int32:
        raise UserError(
            f"{make_it} of type int64: TensorFlow keeps those of int32 in the memory of the host, where a fit that is "
            "compiled for a GPU cannot read them"
        )


def check_variables(variables: Sequence[Any]) -> None:
    """Raise `UserError` for variables that the workers cannot have."""
    if tf.distribute.has_strategy():
        raise UserError("the optimizer plays all workers in one process: leave tf.distribute's strategy out")
    for variable in variables:
        name = getattr(variable, "path", variable.name)
        if variable.constraint is not None:
            raise UserError(f"weights with a constraint are not supported: leave that of {name} out")
        if tf.as_dtype(variable.dtype) != tf.float32:
            raise UserError(
                f"trainable weights must be of type float32. Received: {name} of type {variable.dtype}"
                f"{source_of(keras.backend.standardize_dtype(variable.dtype))}"
            )
