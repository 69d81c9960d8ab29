"""A trial step on one batch before a run starts: checks model and data, and finds the variables that a step changes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..lazy import keras, tf
from ..worker.divisors import Divisors
from ..worker.flat_model import FlatModel, computes_in_float16, loss_of
from .dataset import leaves
from .models import ModelRecipe, custom_objects, plain
from .suspects import finite


def try_out(
    recipe: ModelRecipe, model: Any, batch: Sequence[Any], validation: Sequence[Any] | None = None, *, xla: str = "",
    decays: bool = False,
) -> ModelRecipe:  # fmt: skip
    """Try a training step; return the recipe with the findings. The model is unchanged.

    Args:
        recipe: recipe of `model`.
        model: compiled Keras model.
        batch: (x, y) or (x, y, sample_weight), nested arrays or tensors: the batch of one device of a worker.
        validation: a batch of the validation data, if any.
        xla: find out whether XLA can compile the step for this platform, CPU or GPU; empty to leave that out.
        decays: find out which variables weight decay leaves as they are, since the loss does not depend on them.

    Raises:
        UserError: the model does not accept this batch, or its step cannot be distributed.
    """
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
    copy = recipe.build()
    divisors = _compare(copy, model, batch)
    divided = "alike" if not divisors.vary else "by count" if divisors.agree else "apart"
    recipe = replace(recipe, divided=divided, summed=divisors.has_sums)
    if recipe.custom or any(map(computes_in_float16, model._flatten_layers())):
        _trace(recipe, model, batch)
    if decays:
        unused = unconnected(recipe.flat(model), batch)
        recipe = replace(recipe, without_decay=tuple(sorted({*recipe.without_decay, *unused})))
    if xla:
        recipe = replace(recipe, without_xla=_why_not_compiled(recipe, model, batch, xla))
    if validation is not None:
        _take_metrics(copy, validation, eagerly=not recipe.custom)
    return recipe


def _compare(copy: Any, model: Any, batch: Sequence[Any]) -> Divisors:
    """Return what divides the losses of the rebuilt model.

    Raises:
        UserError: it has another loss than the model, or uses variables of the model.
    """
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tuple(batch))
    scope, read = _watching(copy)
    divisors = Divisors()
    with scope:
        rebuilt = float(np.asarray(loss_of(copy, tensors, training=False, divisors=divisors)))
        divisors.has_others |= bool(scope.losses)  # of layers
    _refuse_foreign(copy, read)
    with keras.StatelessScope(_values(model), collect_losses=True):
        original = float(np.asarray(loss_of(model, tensors, training=False)))
    if not np.isclose(rebuilt, original, rtol=1e-2, atol=1e-4, equal_nan=True):
        raise UserError(
            f"the model, rebuilt from its configuration and weights, has another loss ({rebuilt:g}, and the model "
            f"{original:g}): let get_config return all that its classes need, and keep state in variables (add_weight)"
        )
    return divisors


def unconnected(flat: FlatModel, batch: Sequence[Any]) -> list[int]:
    """Return the positions of the trainable variables on which the loss of a batch does not depend."""
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tuple(batch))
    flat.gradient(
        tf.constant(flat.pack()), tf.constant(flat.pack_state()), flat.initial_seeds, flat.frozen_values(), tensors
    )
    return flat.unconnected


def fails(model: Any, batch: Sequence[Any], role: str, training: bool) -> bool:
    """Return True if the loss of a model cannot be computed on a batch, or is not finite."""
    try:
        _step(model, batch, role, training)
    except UserError:
        return True
    return False


def _trace(recipe: ModelRecipe, model: Any, batch: Sequence[Any]) -> None:
    """Build the graph that the tasks will build.

    Raises:
        UserError: the user's code cannot be traced into a graph, or gradients pass layers in float16.
    """
    from ..messages.ops import building

    flat = recipe.flat(model)
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tuple(batch))
    values = flat.initial_seeds, flat.frozen_values(), tensors
    try:
        with building(tf.Graph()):
            seeds, frozen, inputs = keras.tree.map_structure(
                lambda value: tf.compat.v1.placeholder(value.dtype, value.shape), values
            )
            gradient = tf.function(flat.gradient, autograph=False)
            params = tf.zeros([flat.size]), tf.zeros([flat.state_size])
            traced = gradient.get_concrete_function(*params, seeds, frozen, inputs)
            gradient(*params, seeds, frozen, inputs)  # only a call detects tensors of another graph
    except Exception as error:
        if "capture an EagerTensor" in str(error):
            readers = _readers(model, lambda value: isinstance(value, tf.Variable | tf.Tensor))
            raise UserError(
                f"the model's own code{readers} uses a tf.Variable or a tensor that no layer owns, and each task would "
                "have another copy of it: make it with add_weight in a layer, or of NumPy if it does not change"
            ) from None
        raise UserError(
            f"the model's own code cannot be put into a TensorFlow graph: {plain(error)}. Use keras.ops, "
            "add_weight, and no Python conditions on tensors"
        ) from None
    loss, gradients, *_ = traced.structured_outputs
    forward = _before([loss])
    if any(tensor.dtype == tf.float16 for op in _before(gradients) - forward for tensor in op.outputs):
        layers = ", ".join(layer.name for layer in model._flatten_layers() if computes_in_float16(layer))
        raise UserError(
            f"gradients pass layers that compute in float16 ({layers}), which needs loss scaling, and that is part of "
            "Keras' optimizers, which are not used: use mixed_bfloat16 or float32"
        )


def _why_not_compiled(recipe: ModelRecipe, model: Any, batch: Sequence[Any], platform: str) -> str:
    """Return why XLA cannot compile the gradient for a platform, which need not be here; an empty text if it can."""
    flat = recipe.flat(model)
    inputs = flat.initial_seeds, flat.frozen_values(), tuple(batch)
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)
    gradient = tf.function(flat.gradient, jit_compile=True, autograph=False)
    try:
        gradient.experimental_get_compiler_ir(tf.zeros([flat.size]), tf.zeros([flat.state_size]), *tensors)(
            stage="hlo", platform_name=platform
        )
    except Exception as error:
        unknown = re.search(r"on XLA_[CG]PU_JIT: (\w+)", str(error))
        missing = {"_Arg": "inputs of such a type"}.get(unknown[1], unknown[1]) if unknown else ""
        return f"XLA cannot compile the model: {f'it has no {missing}' if unknown else plain(error)}"
    return ""


def _before(tensors: Sequence[Any]) -> set[Any]:
    """Return the operations on which these tensors of a graph depend."""
    found: set[Any] = set()
    left = [tensor.op for tensor in tensors]
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [tensor.op for tensor in op.inputs]
    return found


def _values(model: Any) -> list[tuple[Any, Any]]:
    """Return the variables of a model with their values, which regularizers need in a stateless scope."""
    return [(v, v.value) for v in model.variables]


def _take_metrics(copy: Any, batch: Sequence[Any], eagerly: bool) -> None:
    """Evaluate each metric on a batch once, so that errors are raised before the start.

    Args:
        copy: copy of the model; its metrics count the batch, so it must not be used afterwards.
        batch: batch of the validation data.
        eagerly: skip tracing, which takes longer; only without metrics of the user's own.

    Raises:
        UserError: a metric does not accept this batch, does not return numbers, or uses variables of another model.
    """
    copy.run_eagerly = eagerly
    try:
        FlatModel(copy).measure(tf.data.Dataset.from_tensors(keras.tree.lists_to_tuples(tuple(batch))))
    except Exception as error:
        raise UserError(
            f"a metric of the model cannot be taken on validation_data: {plain(error)}. Received: {described(batch)}"
        ) from None
    scope, read = _watching(copy)
    with scope:
        x, y, weight, *_ = (*keras.tree.map_structure(keras.ops.convert_to_tensor, tuple(batch)), None, None)
        copy.compute_metrics(x, y, copy(x, training=False), weight)
    _refuse_foreign(copy, read)


def _dtype(leaf: Any) -> str:
    return "string" if getattr(leaf.dtype, "kind", "") in ("U", "S") else leaf.dtype.name


def _step(model: Any, batch: Sequence[Any], role: str, training: bool) -> set[int]:
    """Compute the loss of a batch; returns the ids of the Keras variables that were assigned meanwhile."""
    if len(batch) == 1 and getattr(model, "_compile_loss", None) is not None:
        raise UserError(f"the loss of the model compares with labels: give {role}=(x, y). Received: {described(batch)}")
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, tuple(batch))
    try:
        scope, read = _watching(model)
        with scope:
            before = dict(scope.state_mapping)
            loss = np.asarray(loss_of(model, tensors, training))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the model does not take a batch of {role}: {plain(error)}. Received: {described(batch)}"
        ) from None
    if loss.shape != ():
        raise UserError(f"the loss of a batch must be one number. Received: shape {loss.shape}")
    _check_finite(loss, batch, role)
    if foreign := _foreign(model, read):
        raise UserError(
            f"the model uses variables that none of its layers owns ({_paths(foreign)}): make them with add_weight, "
            "and draw random numbers with a keras.random.SeedGenerator that is an attribute of the layer"
        )
    return {key for key, value in scope.state_mapping.items() if value is not before.get(key)}


def _watching(model: Any) -> tuple[Any, dict[int, Any]]:
    """Return a scope for one computation of a model, and the Keras variables that are read in it, by their ids."""
    read: dict[int, Any] = {}

    class Watched(keras.StatelessScope):
        def get_current_value(self, variable: Any) -> Any:
            read[id(variable)] = variable
            return super().get_current_value(variable)

    return Watched(_values(model), collect_losses=True), read


def _foreign(model: Any, read: Mapping[int, Any]) -> list[Any]:
    """Return those of the read variables that are none of the model's."""
    variable_ids = {id(v) for v in (*model.variables, *model.metrics_variables)}
    return [v for key, v in read.items() if key not in variable_ids]


def _paths(variables: Sequence[Any]) -> str:
    """Return the names of variables, as `dense/kernel`."""
    return ", ".join(sorted(v.path for v in variables))


def _refuse_foreign(copy: Any, read: Mapping[int, Any]) -> None:
    """Raise `UserError` if the rebuilt model reads a variable of the model, through the closure of a function.

    A task gets a copy of such a function, with a variable of its own that no training changes.
    """
    if foreign := _foreign(copy, read):
        foreign_ids = {id(v) for v in foreign}
        readers = _readers(
            copy, lambda value: not foreign_ids.isdisjoint(map(id, (value, *getattr(value, "variables", ()))))
        )
        raise UserError(
            f"a function of the model{readers} reads {_paths(foreign)} from outside, and each task would have another "
            "copy of it, which is not trained: write a keras.Model with the layer as an attribute, and read it in call "
            "(for a loss in compute_loss)"
        )


def _readers(model: Any, is_meant: Callable[[Any], bool]) -> str:
    """Return the functions of a model that refer to such a value, as ` (lambda in line 3 of my_model.py)`."""
    found = []
    for function in filter(inspect.isfunction, custom_objects(model).values()):
        used = inspect.getclosurevars(function)
        if any(map(is_meant, (*used.nonlocals.values(), *used.globals.values()))):
            code = function.__code__
            found.append(
                f"{function.__name__.strip('<>')} in line {code.co_firstlineno} of {Path(code.co_filename).name}"
            )
    return f" ({', '.join(found)})" if found else ""


def described(batch: Sequence[Any]) -> str:
    """Describe dtypes and shapes of (x, y) or (x, y, sample_weight): `x float32 (32, 4), y int32 (32,)`."""
    return ", ".join(f"{name} {_shapes(part)}" for name, part in zip("xyw", batch, strict=False))


def _shapes(part: Any) -> str:
    return ", ".join(f"{_dtype(leaf)} {tuple(leaf.shape)}" for leaf in leaves(part))


def _check_finite(loss: np.ndarray, batch: Sequence[Any], role: str) -> None:
    """Raise `UserError` if the data make the loss not finite; otherwise the learning rate may be the cause."""
    if np.isfinite(loss):
        return
    for name, part in zip(("x", "y", "sample_weight"), batch, strict=False):
        if not all(finite(np.asarray(leaf)) for leaf in leaves(part)):
            raise UserError(f"{name} of {role} holds NaN or infinite values, and so the loss is {loss}: mend the data")
