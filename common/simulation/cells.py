"""Cells: stand-ins for variables that hold a tensor; an assignment replaces the tensor.

The rules of `algorithms/` read and write variables. A batched computation over many workers has none: the values of all
workers are rows of tensors. So each worker's rule is traced on cells, and their final tensors are the new values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..server.stand_in import StandIn


class Cell(StandIn):
    """A tensor with the interface of a variable.

    Args:
        read: returns the tensor; called at the first use.

    Attributes:
        changed: True after an assignment.
    """

    def __init__(self, read: Callable[[], Any]):
        self._read, self._value, self.changed = read, None, False

    @classmethod
    def of(cls, value: Any) -> Cell:
        """Build a cell that holds this tensor."""
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
