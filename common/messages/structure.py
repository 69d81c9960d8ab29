"""The arrays of a caller, nested or a single one, as one vector [P], and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import UserError
from ..lazy import tf
from ..sync.store import Tensor


def check_eager(call: str) -> None:
    """Raise `UserError` inside a `tf.function`, which makes a Python call only once: when it is traced."""
    if tf.inside_function():
        raise UserError(
            f"{call} would be called only once, when the tf.function around it is traced: let the function return the "
            f"gradients, and call {call} outside of it"
        )


class Structure:
    """The structure of the caller's parameters.

    Args:
        params: NumPy arrays, TensorFlow tensors or variables, in lists, tuples and dicts, or a single one.

    Attributes:
        shapes: shapes of the arrays, in the order of the vector.
    """

    def __init__(self, params: Any):
        leaves = [leaf if tf.is_tensor(leaf) else np.asarray(leaf) for leaf in tf.nest.flatten(params)]
        self.nested = tf.nest.map_structure(lambda _: 0, params)
        self.kind = f"{type(params).__name__} with {len(leaves)} arrays"
        self.shapes = [tuple(leaf.shape) for leaf in leaves]
        self.dtypes = [tf.as_dtype(leaf.dtype) for leaf in leaves]
        self.is_tensor = [tf.is_tensor(leaf) for leaf in leaves]
        if not leaves or not all(dtype.is_floating for dtype in self.dtypes):
            kinds = ", ".join(sorted({dtype.name for dtype in self.dtypes})) or "none"
            raise UserError(f"the parameters must be arrays of floats. Received: {kinds}")

    def vector(self, arrays: Any, name: str) -> Tensor:
        """Return arrays of this structure as one vector [P], float32; raises `UserError` as `parts` does."""
        return tf.concat(self.parts(arrays, name), 0)

    def parts(self, arrays: Any, name: str) -> list[Tensor]:
        """Return arrays of this structure as flat vectors, float32.

        Raises:
            UserError: the structure or a shape differs, or an array is None; the message has the `name`.
        """
        leaves = tf.nest.flatten(arrays)
        try:
            tf.nest.assert_same_structure(self.nested, arrays)
        except (TypeError, ValueError):
            received = f"{type(arrays).__name__} with {len(leaves)} arrays"
            raise UserError(f"{name} must be a {self.kind}, like the parameters. Received: {received}") from None
        parts = []
        for i, (leaf, shape) in enumerate(zip(leaves, self.shapes, strict=True)):
            if leaf is None:
                raise UserError(
                    f"{name} {i} of {len(leaves)} is None: the loss does not depend on these parameters, of shape "
                    f"{shape}. Leave them out of the parameters, or pass zeros"
                )
            part = tf.convert_to_tensor(leaf) if tf.is_tensor(leaf) else np.array(leaf, np.float32)  # a copy
            if tuple(part.shape) != shape:
                raise UserError(f"{name} {i} of {len(leaves)} must have shape {shape}. Received: {tuple(part.shape)}")
            parts.append(tf.reshape(tf.cast(part, tf.float32), [-1]))
        return parts

    def arrays(self, vector: Tensor) -> Any:
        """Return a vector [P] as arrays of this structure: tensors for TensorFlow's, else NumPy arrays."""
        parts = tf.split(vector, [math.prod(shape) for shape in self.shapes])
        leaves = []
        for part, shape, dtype, is_tensor in zip(parts, self.shapes, self.dtypes, self.is_tensor, strict=True):
            leaf = tf.cast(tf.reshape(part, shape), dtype)
            leaves.append(leaf if is_tensor else leaf.numpy())
        return tf.nest.pack_sequence_as(self.nested, leaves)
