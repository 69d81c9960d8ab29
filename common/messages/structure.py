"""The arrays of a caller, nested or a single one, as one vector [P], and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import UserError
from ..lazy import tf
from ..sync.store import Tensor
from .torch_tensors import as_tensor, is_module, is_torch, on_host


def check_eager(call: str) -> None:
    """Raise `UserError` inside a `tf.function`, which makes a Python call only once: when it is traced."""
    if tf.inside_function():
        raise UserError(
            f"{call} would be called only once, when the tf.function around it is traced: let the function return the "
            f"gradients, and call {call} outside of it"
        )


def arrays_of(params: Any) -> Any:
    """Return a caller's parameters: those of a model that are trained, and a list for another iterable."""
    if is_module(params):
        return [parameter for parameter in params.parameters() if parameter.requires_grad]
    if hasattr(params, "trainable_variables"):
        return list(params.trainable_variables)
    if isinstance(params, str | bytes | Mapping | list | tuple) or hasattr(params, "shape"):
        return params
    return list(params) if isinstance(params, Iterable) else params


def _as_lists(nested: Any) -> Any:
    """Return a structure with lists in place of tuples: to a caller, these are the same."""
    if type(nested) in (list, tuple):
        return [_as_lists(part) for part in nested]
    return {name: _as_lists(part) for name, part in nested.items()} if type(nested) is dict else nested


def host_value(leaf: Any) -> Any:
    """Return an array as TensorFlow or NumPy has it, of any other framework as NumPy's."""
    if isinstance(leaf, np.ndarray) or tf.is_tensor(leaf):  # the second is slow
        return leaf
    return on_host(leaf) if is_torch(leaf) else np.asarray(leaf)


def scalar(value: Any) -> Any:
    """Return a loss without the operations of PyTorch that have made it; None stays None."""
    return float(on_host(value)) if is_torch(value) else value


def _in_words(value: Any, arrays: int) -> str:
    return f"a {type(value).__name__} with {arrays} arrays" if tf.nest.is_nested(value) else f"a {type(value).__name__}"


class Structure:
    """The structure of the caller's parameters.

    Args:
        params: NumPy arrays, tensors of TensorFlow or PyTorch, or variables, in lists, tuples and dicts, or a single
            one.

    Attributes:
        shapes: shapes of the arrays, in the order of the vector.
    """

    def __init__(self, params: Any):
        given_leaves = tf.nest.flatten(params)
        self.torch = [(leaf.device, leaf.dtype) if is_torch(leaf) else None for leaf in given_leaves]
        leaves = [host_value(leaf) for leaf in given_leaves]
        self.nested = tf.nest.map_structure(lambda _: 0, params)
        self.kind = _in_words(params, len(leaves))
        self.shapes = [tuple(leaf.shape) for leaf in leaves]
        self.dtypes = [tf.as_dtype(leaf.dtype) for leaf in leaves]
        self.is_tensor = [tf.is_tensor(leaf) for leaf in leaves]
        if not leaves or not all(dtype.is_floating for dtype in self.dtypes):
            kinds = ", ".join(sorted({dtype.name for dtype in self.dtypes})) or "none"
            raise UserError(f"the parameters must be arrays of floats. Received: {kinds}")

    def vector(self, arrays: Any, name: str) -> Tensor:
        """Return arrays of this structure as one new vector [P], float32; raises `UserError` as `leaves` does."""
        leaves = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in self.leaves(arrays, name)]
        return tf.concat([tf.reshape(tf.cast(leaf, tf.float32), [-1]) for leaf in leaves], 0)

    def leaves(self, arrays: Any, name: str) -> list[Any]:
        """Return arrays of this structure as tensors or as NumPy arrays of float32, which may share their memory.

        Raises:
            UserError: the structure or a shape differs, or an array is None; the message has the `name`.
        """
        arrays = arrays_of(arrays)
        leaves = tf.nest.flatten(arrays)
        try:
            tf.nest.assert_same_structure(_as_lists(self.nested), _as_lists(arrays))
        except (TypeError, ValueError):
            received = _in_words(arrays, len(leaves))
            raise UserError(f"{name} must be {self.kind}, like the parameters. Received: {received}") from None
        found = []
        for i, (leaf, shape) in enumerate(zip(leaves, self.shapes, strict=True)):
            if leaf is None:
                raise UserError(
                    f"{name} {i} of {len(leaves)} is None: the loss does not depend on these parameters, of shape "
                    f"{shape}. Leave them out of the parameters, or pass zeros"
                )
            value = host_value(leaf)
            is_array = isinstance(value, np.ndarray)
            try:
                value = np.asarray(value, np.float32) if is_array else tf.convert_to_tensor(value)
            except (TypeError, ValueError):
                raise UserError(f"{name} must hold numbers. Received: {type(leaf).__name__}") from None
            if tuple(value.shape) != shape:
                raise UserError(f"{name} {i} of {len(leaves)} must have shape {shape}. Received: {tuple(value.shape)}")
            found.append(value)
        return found

    def arrays(self, vector: Tensor) -> Any:
        """Return a vector [P] as arrays of this structure: tensors for those of a framework, else NumPy arrays."""
        parts = tf.split(vector, [math.prod(shape) for shape in self.shapes])
        leaves = []
        kinds = zip(parts, self.shapes, self.dtypes, self.is_tensor, self.torch, strict=True)
        for part, shape, dtype, is_tensor, torch in kinds:
            part = tf.reshape(part, shape)
            leaf = as_tensor(part, *torch) if torch else tf.cast(part, dtype)
            leaves.append(leaf if is_tensor or torch else leaf.numpy())
        return tf.nest.pack_sequence_as(self.nested, leaves)
