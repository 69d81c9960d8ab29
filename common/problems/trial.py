"""One step on one batch before anything starts: whether model and data fit, and what a step changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.flat_model import loss_of
from ..errors import UserError
from .dataset import leaves
from .models import ModelRecipe, plain


def try_out(
    recipe: ModelRecipe, model: Any, batch: Sequence[Any], validation: Sequence[Any] | None = None
) -> ModelRecipe:
    """The recipe, with what a training step has shown; the model itself is left as it was.

    Args:
        recipe: of `model`.
        model: compiled Keras model.
        batch: (x, y) or (x, y, sample_weight), nested arrays or tensors: what a device of a worker trains on at once.
        validation: the same of the validation data, if there are any.

    Raises:
        UserError: the model does not take this batch, or its step does what cannot be distributed.
    """
    import keras

    changed = _step(model, batch, "data", training=True)
    if validation is not None:
        _step(model, validation, "validation_data", training=False)
    flat = recipe.flat(model)
    seeds = {id(v) for v in flat.seeds}
    others = model.non_trainable_variables
    statistics = [i for i, v in enumerate(others) if id(v) in changed and id(v) not in seeds]
    for v in (others[i] for i in statistics):
        if not keras.backend.is_float_dtype(v.dtype):
            raise UserError(
                f"a training step changes {v.path} ({v.dtype}), and whole numbers or flags of several workers have no "
                "mean: give it the dtype float32"
            )
    shapes = keras.tree.map_structure(lambda leaf: keras.KerasTensor(leaf.shape, _dtype(leaf)), tuple(batch))
    loss_has_variables = bool(getattr(model._compile_loss, "metrics", ()))
    recipe = replace(recipe, statistics=tuple(statistics), batch=shapes if loss_has_variables else None)
    _compare(recipe.build(), model, batch)
    if recipe.custom:
        _trace(recipe, model, batch)
    return recipe


def _compare(copy: Any, model: Any, batch: Sequence[Any]) -> None:
    """What another process rebuilds must be the same function."""
    import keras

    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tuple(batch))
    with keras.StatelessScope(collect_losses=True):
        theirs = float(np.asarray(loss_of(copy, tensors, training=False)))
    with keras.StatelessScope(collect_losses=True):
        own = float(np.asarray(loss_of(model, tensors, training=False)))
    if not np.isclose(theirs, own, rtol=1e-2, atol=1e-4, equal_nan=True):
        raise UserError(
            f"the model, rebuilt from its configuration and weights, has another loss ({theirs:g}, and the model "
            f"{own:g}): let get_config return all that its classes need, and keep state in variables (add_weight)"
        )


def _trace(recipe: ModelRecipe, model: Any, batch: Sequence[Any]) -> None:
    """Make the graph that the tasks will make, as far as the user's own code goes."""
    import keras
    import tensorflow as tf

    flat = recipe.flat(model)
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tuple(batch))
    values = flat.initial_seeds, flat.frozen_values(), tensors
    try:
        with tf.Graph().as_default():
            seeds, frozen, inputs = keras.tree.map_structure(
                lambda value: tf.compat.v1.placeholder(value.dtype, value.shape), values
            )
            gradient = tf.function(flat.gradient, autograph=False)
            gradient(tf.zeros([flat.size]), tf.zeros([flat.state_size]), seeds, frozen, inputs)
    except Exception as error:
        raise UserError(
            f"the model's own code cannot be put into a TensorFlow graph: {plain(error)}. Use keras.ops, "
            "add_weight, and no Python conditions on tensors"
        ) from None


def _dtype(leaf: Any) -> str:
    return "string" if getattr(leaf.dtype, "kind", "") in ("U", "S") else leaf.dtype.name


def _step(model: Any, batch: Sequence[Any], what: str, training: bool) -> set[int]:
    """Take the loss of a batch; returns the ids of the Keras variables that this has assigned to."""
    import keras

    read: dict[int, Any] = {}

    class Watched(keras.StatelessScope):
        def get_current_value(self, variable: Any) -> Any:
            read[id(variable)] = variable
            return super().get_current_value(variable)

    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tuple(batch))
    try:
        with Watched(collect_losses=True) as scope:
            loss = np.asarray(loss_of(model, tensors, training))
    except UserError:
        raise
    except Exception as error:
        received = ", ".join(f"{name} {_shapes(part)}" for name, part in zip("xyw", batch, strict=False))
        raise UserError(f"the model does not take a batch of {what}: {plain(error)}. Received: {received}") from None
    if loss.shape != ():
        raise UserError(f"the loss of a batch must be one number. Received: shape {loss.shape}")
    _check_finite(loss, batch, what)
    known = {id(v) for v in (*model.variables, *model.metrics_variables)}
    foreign = sorted(v.path for v in read.values() if id(v) not in known)
    if foreign:
        raise UserError(
            f"the model uses variables that none of its layers owns ({', '.join(foreign)}): make them with add_weight, "
            "and draw random numbers with a keras.random.SeedGenerator that is an attribute of the layer"
        )
    return set(scope.state_mapping)


def _shapes(part: Any) -> str:
    return ", ".join(f"{_dtype(leaf)} {tuple(leaf.shape)}" for leaf in leaves(part))


def _check_finite(loss: np.ndarray, batch: Sequence[Any], what: str) -> None:
    """A loss that is not finite because of the data is no fault of the learning rate."""
    if np.isfinite(loss):
        return
    for name, part in zip(("x", "y", "sample_weight"), batch, strict=False):
        if not all(finite(np.asarray(leaf)) for leaf in leaves(part)):
            raise UserError(f"{name} of {what} holds NaN or infinite values, and so the loss is {loss}: mend the data")


def finite(array: np.ndarray) -> bool:
    """True if all numbers of an array are finite; without another array of its size."""
    if array.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.sum(array, dtype=np.float64)))


def telling(arrays: Sequence[Any], size: int) -> tuple[Any, ...]:
    """A batch in which faults show: of each array the smallest number, the largest, one that is not finite; first rows.

    Args:
        arrays: nested arrays [examples, ...].
        size: of the batch.
    """
    import keras

    rows: list[int] = []
    for array in leaves(arrays):
        width = max(1, array.size // max(1, len(array)))
        if array.dtype.kind in "iu":
            rows += [int(array.argmax()) // width, int(array.argmin()) // width]
        elif not finite(array):
            rows.append(int(np.argmin(np.isfinite(array))) // width)
    rows = list(dict.fromkeys([*rows, *range(size)]))[: min(size, len(leaves(arrays)[0]))]
    return keras.tree.map_structure(lambda array: array[rows], tuple(arrays))
