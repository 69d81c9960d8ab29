"""Models: recipes of Keras 3 models, which other processes can rebuild, and a few models by name."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal
from weakref import WeakSet

import numpy as np

from ..errors import UserError
from ..lazy import keras, tf
from ..packages import remedy
from ..settings import STANDARD, of_program, refuse, using
from ..spec import parse
from ..worker.flat_model import FlatModel, _check
from .dataset import num_examples
from .problems import linear_model, quadratic_model, value_of_output


def transformer(shape: tuple[int, ...], classes: int, *, layers: int = 2, width: int = 64, heads: int = 4) -> Any:
    """Build a character model: each position predicts the next character from those up to its own.

    Pre-norm blocks (Xiong et al. 2020, arXiv:2002.04745) of causal attention and a network of 4 * width, learned
    positions, no dropout. About 12 * layers * width^2 parameters in the blocks: 117 thousand in all by default.
    Measured with `serial --dataset text --steps 200` (Python 3.11.7): a test loss of 2.61, where a model of the
    frequencies of characters has 3.11, and one of pairs 2.44.

    Args:
        shape: (context,), int32 numbers of characters.
        classes: number of kinds of characters.
        layers: number of blocks.
        width: size of the embedding of a character.
        heads: number of attention heads, a divisor of the width.

    Returns:
        A model [batch, context] -> logits [batch, context, classes].
    """
    part = keras.layers
    tokens = keras.Input(shape, dtype="int32")
    positions = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    x = part.Embedding(classes, width)(tokens) + part.Embedding(shape[0], width)(positions)
    for _ in range(layers):
        normal = part.LayerNormalization(epsilon=1e-5)(x)
        x = x + part.MultiHeadAttention(heads, head_width(width, heads))(normal, normal, use_causal_mask=True)
        inner = part.Dense(4 * width, activation="gelu")(part.LayerNormalization(epsilon=1e-5)(x))
        x = x + part.Dense(width)(inner)
    return keras.Model(tokens, part.Dense(classes)(part.LayerNormalization(epsilon=1e-5)(x)))


def head_width(width: int, heads: int) -> int:
    """Return the width of one attention head; raise `UserError` if it is no whole number."""
    if width % heads:
        raise UserError(f"heads must divide the width of a transformer. Received: width={width}, heads={heads}")
    return width // heads


NAMED: WeakSet[Any] = WeakSet()  # the Keras models of this process that were built by their names


@dataclass(frozen=True)
class ModelRecipe:
    """A model in a form that another process can rebuild: a name, or a Keras configuration with its classes.

    Classes and functions travel by value (cloudpickle), so they may be defined in a script or a notebook cell.
    """

    build: Callable[[], Any]
    sparse: bool = False  # logistic regression on (indices, values)
    custom: bool = False  # with code of the user's own, which may be impossible to trace into a graph
    products: float | None = None  # multiplications of a step for each example, about
    bfloat16: bool = False  # a layer computes in it
    without_xla: str = ""  # why Keras, with jit_compile="auto", would not let XLA compile it; empty if it would
    settings: Mapping[str, Any] = field(default_factory=lambda: STANDARD)  # of Keras, where the model is built and used
    statistics: Sequence[int] = ()  # see `FlatModel`; empty before `trial.try_out`
    batch: Any = None
    without_decay: Sequence[int] = ()  # see `FlatModel`
    batches: int = 1
    counts: bool = False
    divided: Literal["alike", "by count", "apart"] = "alike"  # the losses of batches of one size, see `Divisors`
    summed: bool = False  # a loss is a sum over the batch

    @property
    def parameters(self) -> int:
        """Number of trainable parameters, computed without allocating them."""
        with tf.Graph().as_default():
            return sum(math.prod(variable.shape) for variable in self.build().trainable_variables)

    def flat(self, model: Any = None) -> FlatModel:
        """Return a new model, or the given one, as a function of flat vectors."""
        model = self.build() if model is None else model
        return FlatModel(model, self.statistics, self.batch, self.without_decay, self.batches, self.counts)

    def excluding(self, texts: str | None, model: Any = None) -> ModelRecipe:
        """Return the recipe without the weight decay of some variables.

        Args:
            texts: texts that occur in the paths of these variables, with commas between; None for none.
            model: the Keras model, if there is one; those that its optimizer excludes are left out, too.

        Raises:
            UserError: a text occurs in no path.
        """
        excluded = set(self.without_decay)
        if model is not None and model.optimizer is not None:
            optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
            excluded |= {i for i, v in enumerate(model.trainable_variables) if not optimizer._use_weight_decay(v)}
        if texts is not None:
            with tf.Graph().as_default():
                paths = [v.path for v in (model or self.build()).trainable_variables]
            for text in texts.split(","):
                found = {i for i, path in enumerate(paths) if text and text in path}
                if not found:
                    raise UserError(
                        f"exclude_from_weight_decay: {text!r} occurs in no path of a variable of the model, such as "
                        f"{', '.join(paths[:4])}. Received: {texts}"
                    )
                excluded |= found
        return replace(self, without_decay=tuple(sorted(excluded)))

    @classmethod
    def of(cls, model: Any) -> ModelRecipe:
        """Return the recipe of a compiled Keras model, weights included.

        Raises:
            UserError: the model cannot be trained here, or cannot be rebuilt from its configuration.
        """
        refuse()
        _check(model)
        objects = custom_objects(model)
        weights = [(np.asarray(v.value), v.trainable) for v in model.variables]
        frozen = [layer.trainable for layer in model._flatten_layers()]  # a subclass has no `trainable` in its config

        def build() -> Any:
            keras.saving.get_custom_objects().update(registered)
            with keras.saving.custom_object_scope(objects):
                # Copy the configuration: Keras removes entries from it as it reads.
                copy = keras.saving.deserialize_keras_object(deepcopy(config), safe_mode=False)
            if len(copy.variables) != len(weights):
                raise ValueError(
                    f"the copy has {len(copy.variables)} variables, and the model {len(weights)}: a layer in the "
                    "configuration of another one becomes a second layer. Let a keras.Model hold both"
                )
            for layer, trainable in zip(copy._flatten_layers(), frozen, strict=True):
                layer.trainable = trainable
            for variable, (value, trainable) in zip(copy.variables, weights, strict=True):
                variable.assign(value)
                if variable.trainable != trainable:
                    variable.trainable = trainable
            for layer in copy._flatten_layers():
                if isinstance(layer, keras.layers.Normalization):
                    layer.finalize_state()  # recompute the values that the layer derives from its variables
            return copy

        try:
            with warnings.catch_warnings(), _named(objects):
                warnings.simplefilter("ignore")  # Keras warns of lambdas in files; this configuration stays in memory
                config = keras.saving.serialize_keras_object(model)
            registered = _registered(config)
            copy = build()
            if getattr(model, "compiled", False) and not copy.compiled:
                raise ValueError("the copy is not compiled")
        except Exception as error:
            raise UserError(_why_not_rebuilt(model, error)) from None
        bfloat16 = any(layer.compute_dtype == "bfloat16" for layer in model._flatten_layers())
        settings = STANDARD if any(model is named for named in NAMED) else of_program()
        properties: dict[str, Any] = {
            "bfloat16": bfloat16,
            "without_xla": _why_without_xla(model),
            "settings": settings,
        }
        return cls(build, custom=bool(objects or registered), products=PASSES * _products(model), **properties)

    @classmethod
    def named(cls, text: str, shape: tuple[int, ...], classes: int, seed: int) -> ModelRecipe:
        """Return the recipe of a model by name, for inputs of `shape`."""
        name, options = parse("model", text, MODELS)
        arguments = {**(MODELS[name].__kwdefaults__ or {}), **options}
        if name in CHECKS:
            CHECKS[name](shape, **arguments)

        build = functools.partial(_built, name, shape, classes, options, seed)
        return cls(build, name == "logistic", products=PASSES * PRODUCTS[name](shape, classes, **arguments))


def _built(name: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any], seed: int) -> Any:
    """Build and compile a model by name, with the settings of the catalogue."""
    keras.utils.set_random_seed(seed)
    with using(STANDARD):
        model = MODELS[name](shape, classes, **options)
        loss, *metrics = _loss_and_metrics(name)
        model.compile(loss=loss, metrics=metrics)
    NAMED.add(model)
    return model


def _loss_and_metrics(name: str) -> tuple[Any, ...]:
    """Return the loss of a model by name, and its metrics."""
    if name == "logistic":
        accuracy = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)
        return keras.losses.BinaryCrossentropy(from_logits=True), accuracy
    if name in PROBLEMS:
        return ("mse",) if name == "linear" else (value_of_output,)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True), "accuracy"


def _why_without_xla(model: Any) -> str:
    """Return why Keras would not let XLA compile a model on a GPU by itself, or an empty text."""
    if unfit := [layer.name for layer in model._flatten_layers() if not layer.supports_jit]:
        return f"Keras does not compile layer {unfit[0]} with XLA"
    # On a machine with CPUs alone this is False for each model that is compiled with jit_compile="auto".
    refused = not model.jit_compile and tf.config.list_physical_devices("GPU")
    return "it is compiled with jit_compile=False" if refused else ""


def _products(model: Any) -> float:
    """Return the multiplications of a model for one example, about: each weight once for each position of an output."""
    total = 0
    for layer in model.layers:
        positions = 1
        with contextlib.suppress(AttributeError, ValueError):  # the layer has several outputs, or is called by code
            positions = math.prod(size or 1 for size in layer.output.shape[1:-1])
        if not isinstance(layer, keras.layers.Embedding):
            total += positions * sum(math.prod(v.shape) for v in layer.weights if len(v.shape) > 1)
    return total


def custom_objects(model: Any) -> dict[str, Any]:
    """Return the classes and functions of a model that Keras cannot import by name in another process."""
    found: dict[str, Any] = {}

    def visit(value: Any) -> None:
        owner = value if isinstance(value, type) or hasattr(value, "__name__") else type(value)
        if getattr(owner, "__name__", "") == LAMBDA:
            if owner not in found.values():
                found[f"lambda_{len(found)}"] = owner
            return
        module = getattr(owner, "__module__", None) or ""
        if module.split(".")[0] not in ("keras", "builtins", "tensorflow", "numpy"):
            for name in (owner.__name__, keras.saving.get_registered_name(owner)):
                found[name] = owner

    for layer in [model, *model._flatten_layers()]:
        visit(layer)
        for value in vars(layer).values():
            # Functions (activations) and objects (initializers); not Keras' wrappers of the layer's own methods.
            if (inspect.isfunction(value) and not hasattr(value, "__wrapped__")) or hasattr(value, "get_config"):
                visit(value)
    config = getattr(model, "_compile_config", None)
    for value in keras.tree.flatten(dict(getattr(config, "config", {}))):
        if callable(value):
            visit(value)
    return found


def _registered(config: Any) -> dict[str, Any]:
    """Return the objects that the program has registered with Keras under the names in a configuration."""
    names = {leaf for leaf in keras.tree.flatten(config) if isinstance(leaf, str)}
    found = {name: keras.saving.get_registered_object(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


LAMBDA = "<lambda>"


@contextmanager
def _named(objects: dict[str, Any]) -> Iterator[None]:
    """Give lambdas names while the context is open: Keras saves an unnamed lambda without its globals."""
    lambdas = {name: value for name, value in objects.items() if getattr(value, "__name__", "") == LAMBDA}
    try:
        for name, value in lambdas.items():
            value.__name__ = name
        yield
    finally:
        for value in lambdas.values():
            value.__name__ = LAMBDA


def _why_not_rebuilt(model: Any, error: Exception) -> str:
    """Return the error that tells the user how to make the model rebuildable from its configuration."""
    layer_types = {type(layer) for layer in model._flatten_layers() if not type(layer).__module__.startswith("keras.")}
    silent = sorted(kind.__name__ for kind in layer_types if kind.get_config.__module__.startswith("keras."))
    advice = f"give class {' and '.join(silent)} a get_config" if silent else "is its configuration complete?"
    return f"the model cannot be rebuilt in another process: {advice} ({plain(error)})"


def plain(error: BaseException) -> str:
    """Format an error of Keras or TensorFlow in one line without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m|\{\{.*?\}\}", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    telling = lines[1] if len(lines) > 1 and lines[0].startswith("Exception encountered") else lines[0]
    return f"{type(error).__name__}: {telling[:300]}{remedy(error)}"


def softmax(shape: tuple[int, ...], classes: int) -> Any:
    """Build softmax regression: one linear layer."""
    layers = keras.layers
    return keras.Sequential([keras.Input(shape), layers.Flatten(), layers.Dense(classes)])


def mlp(shape: tuple[int, ...], classes: int, *, hidden: tuple[int, ...] = (128,)) -> Any:
    """Build fully connected layers with tanh; `mlp:hidden=1024-1024`."""
    layers = keras.layers
    inner = [layers.Dense(units, activation="tanh") for units in hidden]
    return keras.Sequential([keras.Input(shape), layers.Flatten(), *inner, layers.Dense(classes)])


def image_side(shape: tuple[int, ...]) -> int:
    """Return the side of an image in pixels; the image may be a flat vector."""
    side = round(shape[0] ** 0.5) if len(shape) == 1 else shape[0]
    if len(shape) not in (1, 3) or (len(shape) == 1 and side * side != shape[0]):
        raise UserError(f"model cnn needs images, or vectors of a square length. Received: shape {shape}")
    return side


def cnn(shape: tuple[int, ...], classes: int, *, filters: int = 16) -> Any:
    """Build two convolutions and a linear layer; flat inputs are taken as square images."""
    layers = keras.layers
    side = image_side(shape)
    image = [layers.Reshape((side, side, 1))] if len(shape) == 1 else []
    return keras.Sequential(
        [
            keras.Input(shape),
            *image,
            layers.Conv2D(filters, 3, padding="same", activation="tanh"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * filters, 3, padding="same", activation="tanh"),
            layers.Flatten(),
            layers.Dense(classes),
        ]
    )


def logistic(shape: tuple[int, ...], classes: int) -> Any:
    """Build logistic regression on sparse examples (indices, values), without a bias, which all would share."""
    layers = keras.layers
    indices, values = keras.Input((None,), dtype="int32"), keras.Input((None,))
    weights = layers.Embedding(shape[0], 1, embeddings_initializer="zeros")(indices)
    return keras.Model((indices, values), layers.Dot(axes=1)([layers.Reshape((-1,))(weights), values]))


PROBLEMS: dict[str, Callable[..., Any]] = {"linear": linear_model, "quadratic": quadratic_model}

MODELS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (softmax, mlp, cnn, logistic, transformer)},
    **PROBLEMS,
}

CHECKS: dict[str, Callable[..., Any]] = {  # checks of shape and options, before a task builds the model
    "cnn": lambda shape, **_: image_side(shape),
    "transformer": lambda _, *, width, heads, **__: head_width(width, heads),
}

PASSES = 3  # forward, and backward for the inputs and for the weights

PRODUCTS: dict[str, Callable[..., float]] = {  # multiplications of a forward pass for one example, without Keras
    "softmax": lambda shape, classes: math.prod(shape) * classes,
    "mlp": lambda shape, classes, *, hidden: sum(a * b for a, b in pairwise((math.prod(shape), *hidden, classes))),
    "cnn": lambda shape, classes, *, filters: _of_cnn(image_side(shape), *shape[2:], classes=classes, filters=filters),
    "logistic": lambda shape, classes: 0,
    "linear": lambda shape, classes: shape[0],
    "quadratic": lambda shape, classes, *, dim, noise, minima: dim,
    "transformer": lambda shape, classes, *, layers, width, heads: (
        shape[0] * width * (layers * (12 * width + 2 * shape[0]) + classes)
    ),
}


def _of_cnn(side: int, channels: int = 1, *, classes: int, filters: int) -> float:
    pooled = (side // 2) ** 2
    return 9 * side**2 * channels * filters + 2 * filters * pooled * (9 * filters + classes)


# Kinds of data; the others take dense examples.
MADE_FOR = {"logistic": "sparse", "transformer": "text", **{name: name for name in PROBLEMS}}


def name_for(text: str | None, kind: str, only: str = "") -> str:
    """Return the model of a command line, or the usual one, for a data set of that kind (see `Dataset.kind`).

    Args:
        text: the model of the command line; None for the usual one.
        kind: kind of the data set.
        only: the only model for the data set, with its options, if there is just one.
    """
    usual = only or {made_for: name for name, made_for in MADE_FOR.items()}.get(kind, "mlp")
    text = text or usual
    if only and text != only:
        raise UserError(f"the data set needs the model {only}: leave --model out. Received: --model {text}")
    name = parse("model", text, MODELS)[0]
    if (made_for := MADE_FOR.get(name, "dense")) != kind:
        need = f"a {kind} data set needs the model {usual}" if kind in MADE_FOR.values() else ""
        raise UserError(f"{need or f'the model {name} needs a {made_for} data set'}. Received: --model {text}")
    return text


def batched(test: Any, size: int) -> Any:
    """Convert (x, y) or (x, y, sample_weight) of arrays to a data set of batches for repeated evaluation.

    Given arrays, Keras builds a data set each time, which takes longer than the evaluation, and TensorFlow never frees
    its functions. So does a data set with a function (as of `map`): its iterators take four milliseconds each.
    """

    def tensor(array: np.ndarray) -> Any:
        floats = np.issubdtype(array.dtype, np.floating)
        return tf.convert_to_tensor(array, keras.config.floatx() if floats else None)  # as Keras does it

    tensors = keras.tree.map_structure(tensor, keras.tree.lists_to_tuples(tuple(test)))
    number, rest = divmod(num_examples(test), size)
    parts = []
    if number:
        cut = lambda a: tf.reshape(a[: number * size], [number, size, *a.shape[1:]])  # noqa: E731
        parts.append(tf.data.Dataset.from_tensor_slices(keras.tree.map_structure(cut, tensors)))
    if rest:
        parts.append(tf.data.Dataset.from_tensors(keras.tree.map_structure(lambda a: a[number * size :], tensors)))
    return functools.reduce(lambda first, last: first.concatenate(last), parts)
