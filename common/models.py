"""Models: any Keras 3 model as a function of one flat vector, and a few models by name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UserError
from .spec import parse


class FlatModel:
    """A compiled Keras model whose trainable variables are one float32 vector [P], in the order Keras lists them.

    Non-trainable float variables (batch normalisation's averages) are a second vector [S], `state`;
    other ones (random seeds of dropout) stay with the worker.
    """

    def __init__(self, model: Any):
        self.model = model
        if not model.built:
            raise UserError("the model has no variables yet: give it an Input layer, or call it on one batch")
        if getattr(model, "_compile_loss", None) is None:
            raise UserError("the model has no loss: call model.compile(loss=...) first")
        self.trainable = model.trainable_variables
        wrong = [f"{v.path} ({v.dtype})" for v in self.trainable if v.dtype != "float32"]
        if wrong:
            raise UserError(f"trainable variables must be float32. Received: {', '.join(wrong)}")
        if not self.trainable:
            raise UserError("the model has no trainable variables")
        others = model.non_trainable_variables
        self.averaged = [v for v in others if str(v.dtype) == "float32"]
        self.private = [v for v in others if str(v.dtype) != "float32"]
        # As arrays from the start: inside a graph Keras' variables cannot be read.
        self.initial_state = self.pack_state()
        self.initial_private = [np.asarray(v.value) for v in self.private]
        self.shapes = [tuple(v.shape) for v in self.trainable]
        self.size = sum(int(np.prod(shape)) for shape in self.shapes)
        self.state_size = sum(int(np.prod(v.shape)) for v in self.averaged)

    @staticmethod
    def _pack(variables: Sequence[Any]) -> np.ndarray:
        parts = [np.asarray(v.value).ravel() for v in variables]
        return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)

    def pack(self) -> np.ndarray:
        """The model's trainable weights, [P]."""
        return self._pack(self.trainable)

    def pack_state(self) -> np.ndarray:
        """The model's averaged state, [S]."""
        return self._pack(self.averaged)

    def load(self, params: np.ndarray, state: np.ndarray) -> None:
        """Put a flat vector and a state into the Keras model."""
        for vector, variables in ((params, self.trainable), (state, self.averaged)):
            start = 0
            for variable in variables:
                size = int(np.prod(variable.shape))
                variable.assign(vector[start : start + size].reshape(variable.shape))
                start += size

    def measure(self, test: Any, batch_size: int | None) -> dict[str, float]:
        """Keras' metrics of what is loaded, on (x, y) or on a data set of batches (without a `batch_size`)."""
        logs = self.model.evaluate(*test, batch_size=batch_size, verbose=0, return_dict=True)
        return {f"test_{name}": float(value) for name, value in logs.items()}

    def gradient(self, params: Any, state: Any, private: Sequence[Any], batch: Sequence[Any]) -> tuple[Any, ...]:
        """Loss and gradient on one batch, in the current graph.

        Args:
            params: flat vector [P].
            state: averaged state [S].
            private: values of the private variables.
            batch: (x, y) or (x, y, sample_weight).

        Returns:
            loss (scalar), gradient [P], new state [S], new private values.
        """
        import keras
        import tensorflow as tf

        x, y, *weight = batch
        parts = unpack(params, self.shapes)
        state_parts = unpack(state, [tuple(v.shape) for v in self.averaged])
        with tf.GradientTape() as tape:
            tape.watch(parts)
            mapping = [
                *zip(self.trainable, parts, strict=True),
                *zip(self.averaged, state_parts, strict=True),
                *zip(self.private, private, strict=True),
            ]
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                y_pred = self.model(x, training=True)
                loss = self.model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight[0] if weight else None)
        gradients = tape.gradient(loss, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradient = tf.concat([tf.reshape(g, [-1]) for g in gradients], 0)
        after = [tf.reshape(scope.get_current_value(v), [-1]) for v in self.averaged]
        new_state = tf.concat(after, 0) if after else state
        new_private = [tf.convert_to_tensor(scope.get_current_value(v)) for v in self.private]
        return loss, gradient, new_state, new_private


def unpack(vector: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The tensors of those shapes that lie one after the other in a flat vector."""
    import tensorflow as tf

    parts, start = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        # A slice, where it is aligned, is a view; tf.split copies, 7 % of a step of a model of 2 M parameters.
        parts.append(tf.reshape(vector[start : start + size], shape))
        start += size
    return parts


@dataclass(frozen=True)
class ModelRecipe:
    """A model in a form that another process can rebuild: a name, or a Keras configuration with its classes.

    Classes and functions travel by value (cloudpickle), so they may be defined in a script or a notebook cell.
    """

    build: Callable[[], Any]
    sparse: bool = False  # logistic regression on (indices, values)

    @classmethod
    def of(cls, model: Any) -> ModelRecipe:
        """The recipe of a compiled Keras model, weights included."""
        import keras

        FlatModel(model)  # says what is wrong with it, if anything is
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lambdas are unsafe in a file; this goes from memory to memory
            config = keras.saving.serialize_keras_object(model)
        objects = _custom_objects(model)
        weights = [np.asarray(v.value) for v in model.variables]

        def build() -> Any:
            import keras

            with keras.saving.custom_object_scope(objects):
                copy = keras.saving.deserialize_keras_object(config, safe_mode=False)
            for variable, value in zip(copy.variables, weights, strict=True):
                variable.assign(value)
            return copy

        return cls(build)

    @classmethod
    def named(cls, text: str, shape: tuple[int, ...], classes: int, seed: int) -> ModelRecipe:
        """The recipe of a model by name, for inputs of `shape`."""
        name, options = parse("model", text, MODELS)
        if name == "cnn":
            image_side(shape)
        sparse = name == "logistic"

        def build() -> Any:
            import keras

            keras.utils.set_random_seed(seed)
            model = MODELS[name](shape, classes, **options)
            if sparse:
                loss: Any = keras.losses.BinaryCrossentropy(from_logits=True)
                metric: Any = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)
            else:
                loss, metric = keras.losses.SparseCategoricalCrossentropy(from_logits=True), "accuracy"
            model.compile(loss=loss, metrics=[metric])
            return model

        return cls(build, sparse)


def _custom_objects(model: Any) -> dict[str, Any]:
    """Classes and functions of the model that Keras cannot import by name in another process."""
    found: dict[str, Any] = {}

    def visit(value: Any) -> None:
        owner = value if isinstance(value, type) or hasattr(value, "__name__") else type(value)
        module = getattr(owner, "__module__", None) or ""
        if module.split(".")[0] not in ("keras", "builtins", "tensorflow", "numpy"):
            import keras

            for name in (owner.__name__, keras.saving.get_registered_name(owner)):
                found[name] = owner

    for layer in [model, *model._flatten_layers()]:
        visit(layer)
        for value in vars(layer).values():
            # Functions (activations) and objects (initializers); not Keras' wrappers of the layer's own methods.
            if (inspect.isfunction(value) and not hasattr(value, "__wrapped__")) or hasattr(value, "get_config"):
                visit(value)
    config = getattr(model, "_compile_config", None)
    for value in getattr(config, "config", {}).values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if callable(item):
                visit(item)
    return found


def softmax(shape: tuple[int, ...], classes: int) -> Any:
    """Softmax regression: one linear layer."""
    import keras

    layers = keras.layers
    return keras.Sequential([keras.Input(shape), layers.Flatten(), layers.Dense(classes)])


def mlp(shape: tuple[int, ...], classes: int, *, hidden: tuple[int, ...] = (128,)) -> Any:
    """Fully connected layers with tanh; `mlp:hidden=1024-1024`."""
    import keras

    layers = keras.layers
    inner = [layers.Dense(units, activation="tanh") for units in hidden]
    return keras.Sequential([keras.Input(shape), layers.Flatten(), *inner, layers.Dense(classes)])


def image_side(shape: tuple[int, ...]) -> int:
    """Pixels on a side of an image, which may be given as a flat vector."""
    side = round(shape[0] ** 0.5) if len(shape) == 1 else shape[0]
    if len(shape) not in (1, 3) or (len(shape) == 1 and side * side != shape[0]):
        raise UserError(f"model cnn needs images, or vectors of a square length. Received: shape {shape}")
    return side


def cnn(shape: tuple[int, ...], classes: int, *, filters: int = 16) -> Any:
    """Two convolutions and a linear layer; flat inputs are taken as square images."""
    import keras

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
    """Logistic regression on sparse examples (indices, values), without a bias, which all examples would share."""
    import keras

    del classes
    layers = keras.layers
    indices, values = keras.Input((None,), dtype="int32"), keras.Input((None,))
    weights = layers.Embedding(shape[0], 1, embeddings_initializer="zeros")(indices)
    return keras.Model((indices, values), layers.Dot(axes=1)([layers.Reshape((-1,))(weights), values]))


MODELS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (softmax, mlp, cnn, logistic)}


def name_for(text: str | None, sparse: bool) -> str:
    """The model of a command line, for a data set that is sparse or not."""
    text = text or ("logistic" if sparse else "mlp")
    if (parse("model", text, MODELS)[0] == "logistic") != sparse:
        need = "a sparse data set needs the model logistic" if sparse else "the model logistic needs a sparse data set"
        raise UserError(f"{need}. Received: --model {text}")
    return text
