"""Any Keras 3 model as a function of one flat vector."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from ..errors import UserError
from ..lazy import keras, tf
from ..messages.torch_tensors import is_module
from ..settings import source_of
from .divisors import Divisors

# Options of a Keras optimizer that are not applied here, each with the option to use instead.
INSTEAD = {
    "clipnorm": "use clip_norm=... of train",
    "global_clipnorm": "use clip_norm=... of train",
    "clipvalue": "use clip_norm=... of train",
    "weight_decay": "use l2=... of train",
    "use_ema": "use ema_decay=... of train",
    "loss_scale_factor": "use a float32 or mixed_bfloat16 model, which needs no loss scaling",
    "gradient_accumulation_steps": "use a larger batch_size",
}

SHOWN = 3  # variables of a model in an error


class FlatModel:
    """A compiled Keras model whose trainable variables are one float32 vector [P], in the order Keras lists them.

    Its other variables are of three kinds. `statistics` change in a training step (averages of batch normalisation):
    they are a second float32 vector [S], which is sent with the messages. `seeds` of dropout and the like differ
    between workers. The rest is `frozen`: equal on all tasks, of any dtype, sent only once.

    Args:
        model: built, and compiled with a loss.
        statistics: positions in `model.non_trainable_variables` of those that a training step changes (see `trial`).
        batch: shapes and dtypes of a batch, for a model whose loss has variables of its own (one for each output).
        without_decay: positions of the trainable variables that weight decay leaves as they are.
        batches: number of batches whose mean gradient makes a step, see `Divisors`.
        counts: True if the gradients of several batches are weighed by what divides their losses.

    Raises:
        UserError: the model cannot be trained here; the message has the reason.
    """

    def __init__(
        self, model: Any, statistics: Sequence[int] = (), batch: Any = None, without_decay: Sequence[int] = (),
        batches: int = 1, counts: bool = False,
    ):  # fmt: skip
        _check(model)
        self.batches, self.counts = batches, counts
        if batch is not None:  # these variables cannot be made inside a graph
            model._symbolic_build(data_batch=batch)
        self.model, self.without_decay = model, without_decay
        self.unconnected: list[int] = []  # positions of trainable variables on which the last loss did not depend
        self.trainable = model.trainable_variables
        others = model.non_trainable_variables
        self.statistics = [others[i] for i in statistics]
        owned = {id(generator.state) for layer in model._flatten_layers() for generator in layer._seed_generators}
        self.seeds = [v for v in others if id(v) in owned]
        moving = owned | {id(v) for v in self.statistics}
        self.frozen = [v for v in others if id(v) not in moving]
        # Read the values into arrays now: inside a graph Keras' variables cannot be read.
        self.initial_seeds = [np.asarray(v.value) for v in self.seeds]
        self.metrics = [(v, np.asarray(v.value)) for v in model.metrics_variables]
        self.constants = [
            (attributes, name, np.asarray(value))
            for attributes in _attributes(model)
            for name, value in attributes.items()
            if isinstance(value, tf.Tensor)
        ]
        self.shapes = [tuple(v.shape) for v in self.trainable]
        self.size = sum(int(np.prod(shape)) for shape in self.shapes)
        self.state_size = sum(int(np.prod(v.shape)) for v in self.statistics)

    @staticmethod
    def _pack(variables: Sequence[Any]) -> np.ndarray:
        sizes = [int(np.prod(v.shape)) for v in variables]
        vector = np.empty(sum(sizes), np.float32)
        for variable, end in zip(variables, np.cumsum(sizes), strict=True):  # one at a time, to save memory
            vector[end - int(np.prod(variable.shape)) : end] = np.asarray(variable.value).ravel()
        return vector

    def pack(self) -> np.ndarray:
        """Return the model's trainable weights, [P]."""
        return self._pack(self.trainable)

    def pack_state(self) -> np.ndarray:
        """Return the model's running statistics, [S]."""
        return self._pack(self.statistics)

    def frozen_values(self) -> list[np.ndarray]:
        """Return the values of the frozen variables, each array in its own dtype."""
        return [np.asarray(v.value) for v in self.frozen]

    def load(self, params: np.ndarray, state: np.ndarray) -> None:
        """Assign a flat vector [P] and a state [S] to the Keras model."""
        for vector, variables in ((params, self.trainable), (state, self.statistics)):
            start = 0
            for variable in variables:
                size = int(np.prod(variable.shape))
                variable.assign(vector[start : start + size].reshape(variable.shape))
                start += size

    def measure(self, batches: Any, callbacks: Sequence[Any] = ()) -> dict[str, Any]:
        """Return Keras' metrics of the loaded model on batches (see `batched`): numbers, and (nested) lists of them."""
        logs = self.model.evaluate(batches, verbose=0, return_dict=True, callbacks=list(callbacks))
        return {f"test_{name}": np.asarray(value, np.float64).tolist() for name, value in logs.items()}

    @contextmanager
    def _arrays(self) -> Iterator[None]:
        """Replace eager tensors in attributes of the model by arrays inside the context: a graph takes only arrays."""
        kept = [attributes[name] for attributes, name, _ in self.constants]
        for attributes, name, array in self.constants:
            attributes[name] = array
        try:
            yield
        finally:
            for (attributes, name, _), value in zip(self.constants, kept, strict=True):
                attributes[name] = value

    def gradient(
        self, params: Any, state: Any, seeds: Sequence[Any], frozen: Sequence[Any], batch: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Build loss and gradient on one batch into the current graph.

        Args:
            params: flat vector [P], or a list of one for each variable.
            state: running statistics [S].
            seeds: values of the random seeds.
            frozen: values of the frozen variables.
            batch: (x, y) or (x, y, sample_weight).

        Returns:
            loss (scalar), gradient (a flat vector for each variable), new state [S], new seeds; the number that divides
            the loss, if the model `counts`, else 1.
        """
        divisors = Divisors(self.batches) if self.counts or self.batches > 1 else None
        if isinstance(params, list):
            parts = [tf.reshape(part, shape) for part, shape in zip(params, self.shapes, strict=True)]
        else:
            parts = unpack(params, self.shapes)
        statistics = unpack(state, [tuple(v.shape) for v in self.statistics])
        with tf.GradientTape() as tape:
            tape.watch(parts)
            mapping = [
                *zip(self.trainable, parts, strict=True),
                *((v, tf.cast(part, v.dtype)) for v, part in zip(self.statistics, statistics, strict=True)),
                *zip(self.seeds, seeds, strict=True),
                *zip(self.frozen, frozen, strict=True),
                *self.metrics,  # a loss may update them; the new values are discarded
            ]
            with self._arrays(), keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                loss = tf.cast(loss_of(self.model, batch, training=True, divisors=divisors), tf.float32)
                count = divisors.count(batch) if divisors and self.counts else tf.constant(1.0)
        found = tape.gradient(loss, parts)
        self.unconnected = [i for i, gradient in enumerate(found) if gradient is None]
        gradients = [tf.zeros_like(x) if g is None else g for x, g in zip(parts, found, strict=True)]
        after = [tf.reshape(tf.cast(scope.get_current_value(v), tf.float32), [-1]) for v in self.statistics]
        new_state = tf.concat(after, 0) if after else state
        new_seeds = [tf.convert_to_tensor(scope.get_current_value(v)) for v in self.seeds]
        return loss, [tf.reshape(g, [-1]) for g in gradients], new_state, new_seeds, count


def _attributes(model: Any) -> list[dict[str, Any]]:
    """List the attributes of all parts of a model: layers, regularizers, losses, and the parts of these."""
    found: dict[int, dict[str, Any]] = {}
    left = [model, *model._flatten_layers()]
    while left:
        part = left.pop()
        if isinstance(part, dict | list | tuple):
            left += part.values() if isinstance(part, dict) else part
        elif id(part) not in found and hasattr(part, "get_config") and not isinstance(part, type):
            found[id(part)] = part.__dict__
            left += part.__dict__.values()
    return [*found.values()]


def loss_of(model: Any, batch: Sequence[Any], training: bool, divisors: Divisors | None = None) -> Any:
    """Return the loss of a Keras model on (x,), (x, y) or (x, y, sample_weight), as `fit` computes it.

    Floats are of Keras' type, as those of arrays are in `fit`: a user's `compute_loss` may combine them with others.
    `divisors` notes what divides its terms.
    """
    x, y, weight, *_ = (*tf.nest.map_structure(_in_floatx, tuple(batch)), None, None)
    y_pred = model(x, training=training)
    with divisors.watching(model, y, y_pred, weight) if divisors else nullcontext():
        return model._compute_loss(x, y, y_pred, weight, training=training)


def _in_floatx(tensor: Any) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def _check(model: Any) -> None:
    """Raise `UserError` for a model that would not be trained as its user expects."""
    if not isinstance(model, keras.Model):
        instead = ". A model of PyTorch trains in its own loop, with distsgd.join" * is_module(model)
        raise UserError(f"the model must be a Keras model. Received: {_kind(model)}{instead}")
    if not model.built:
        raise UserError("the model has no variables yet: give it an Input layer, or call it on one batch")
    kind = type(model)
    if kind.train_step is not keras.Model.train_step:
        raise UserError(
            f"class {kind.__name__} has its own train_step, which is not used here: the algorithm takes the step. Put "
            "the loss into compute_loss(self, x, y, y_pred, sample_weight, training), or keep train_step: in model.fit "
            "with distsgd.Optimizer, or as a loop with distsgd.join"
        )
    if not getattr(model, "compiled", False) and kind.compute_loss is keras.Model.compute_loss:
        raise UserError("the model has no loss: call model.compile(loss=...) first")
    if not model.trainable_variables:
        raise UserError("the model has no trainable variables")
    if wrong := [v for v in model.trainable_variables if v.dtype != "float32"]:
        received = ", ".join(f"{v.path} ({v.dtype})" for v in wrong[:SHOWN])
        more = f" and {len(wrong) - SHOWN} more" * (len(wrong) > SHOWN)
        raise UserError(f"trainable variables must be float32. Received: {received}{more}{source_of(wrong[0].dtype)}")
    for v in model.trainable_variables:
        if v.constraint is not None:
            raise UserError(
                f"the constraint {_kind(v.constraint)} of {v.path} cannot be kept: workers push updates, and their sum "
                "on the server would leave it. Leave it out, and use a regularizer, or l2=... of train"
            )
        if v.overwrite_with_gradient:
            raise UserError(f"{v.path} (float8) is set by Keras' own optimizers alone, which are not used: use float32")
    for layer in model._flatten_layers():
        _check_lookup(layer)
        if getattr(layer, "stateful", False):
            raise UserError(
                f"layer {layer.name} is stateful: it continues the sequences of the batch before, and workers draw "
                "their batches at random. Leave stateful=True out"
            )
        if computes_in_float16(layer) and any(v.trainable for v in layer._trainable_variables):
            raise UserError(
                f"layer {layer.name} trains in float16, which needs loss scaling, and that is part of Keras' "
                f"optimizers, which are not used: use mixed_bfloat16 or float32{source_of('float16')}"
            )
    _check_optimizer(getattr(model.optimizer, "inner_optimizer", model.optimizer))


def computes_in_float16(layer: Any) -> bool:
    """Return True if gradients through this layer may underflow in their dtype."""
    return layer.compute_dtype == "float16"


def _check_lookup(layer: Any) -> None:
    """Refuse a layer with a lookup table: the table is no variable, and cannot be put into a graph."""
    if hasattr(layer, "save_assets"):
        raise UserError(
            f"layer {layer.name} ({_kind(layer)}) looks its inputs up in a table, which is none of its variables and "
            "does not reach the tasks: apply the layer to the data before train, and let the model take its numbers"
        )


def _check_optimizer(optimizer: Any) -> None:
    """Refuse options of the user's optimizer that would not be applied."""
    if optimizer is None:
        return
    defaults = inspect.signature(type(optimizer).__init__).parameters
    for name, instead in INSTEAD.items():
        value = getattr(optimizer, name, None)
        if value and (name not in defaults or value != defaults[name].default):
            raise UserError(f"the model's optimizer is not used, and its {name}={value} would be lost: {instead}")


def unused_optimizer(model: Any) -> str | None:
    """Return the name of the optimizer that a user has compiled into a model; None for Keras' default."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    usual = keras.optimizers.RMSprop()
    if optimizer is None or optimizer.get_config() == {**usual.get_config(), "name": optimizer.name}:
        return None
    rate = optimizer._learning_rate
    return f"{_kind(optimizer)}({_kind(rate) if callable(rate) else f'{float(rate):g}'})"


def _kind(value: Any) -> str:
    return type(value).__name__


def unpack(vector: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Split a flat vector into tensors of those shapes."""
    parts, start = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        # An aligned slice is a view; tf.split copies, which takes 7 % of a step of a model of 2 M parameters.
        parts.append(tf.reshape(vector[start : start + size], shape))
        start += size
    return parts
