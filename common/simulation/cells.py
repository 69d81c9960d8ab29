"""Cells: what a rule takes for a variable, and is none. A cell holds a tensor; to assign is to hold another one.

The rules of `algorithms/` read and write variables. In a batched computation over many workers there are none: the
values of all of them are rows of tensors. So each worker's rule is traced on cells, and what they hold in the end is
the new value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
REFLECTED = tuple(f"r{name}" for name in OPERATORS)
OTHERS = ("neg", "abs", "invert", "getitem", "lt", "le", "gt", "ge")


class Cell:
    """A tensor with the interface of a variable: it is read, assigned, and taken for a tensor wherever one is.

    Args:
        read: gives the tensor; asked when it is needed for the first time.

    Attributes:
        changed: True if something was assigned.
    """

    def __init__(self, read: Callable[[], Any]):
        self._read, self._value, self.changed = read, None, False

    @classmethod
    def of(cls, value: Any) -> Cell:
        """A cell that holds this tensor."""
        return cls(lambda: value)

    def read_value(self) -> Any:
        """The tensor."""
        if self._value is None:
            self._value = self._read()
        return self._value

    value = read_value

    @property
    def shape(self) -> Any:
        """Of the tensor."""
        return self.read_value().shape

    @property
    def dtype(self) -> Any:
        """Of the tensor."""
        return self.read_value().dtype

    def assign(self, value: Any) -> Any:
        """Hold another tensor of the same shape and type; returns it."""
        import tensorflow as tf

        before = self.read_value() if self._value is not None else None
        value = tf.convert_to_tensor(value, dtype_hint=tf.float32) if before is None else _like(value, before)
        self._value, self.changed = value, True
        return value

    def assign_add(self, value: Any) -> Any:
        """Hold the sum; returns it."""
        return self.assign(self.read_value() + value)

    def assign_sub(self, value: Any) -> Any:
        """Hold the difference; returns it."""
        return self.assign(self.read_value() - value)


def _like(value: Any, before: Any) -> Any:
    import tensorflow as tf

    value = tf.convert_to_tensor(value, before.dtype)
    value.shape.assert_is_compatible_with(before.shape)
    return value


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: Cell, *others: Any) -> Any:
        import tensorflow as tf

        others = tuple(other.read_value() if isinstance(other, Cell) else other for other in others)
        return getattr(tf.convert_to_tensor(self.read_value()), f"__{name}__")(*others)

    return apply


for _name in (*OPERATORS, *REFLECTED, *OTHERS):
    setattr(Cell, f"__{_name}__", _operator(_name))


def register() -> None:
    """Tell TensorFlow that a cell is a tensor; more than once is no harm."""
    import tensorflow as tf

    def convert(cell: Cell, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
        del as_ref
        return tf.convert_to_tensor(cell.read_value(), dtype, name=name)

    tf.register_tensor_conversion_function(Cell, convert)
