"""Stand-ins: objects with the interface of a variable, such as the row of one worker in a variable of all workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
REFLECTED = tuple(f"r{name}" for name in OPERATORS)
OTHERS = ("neg", "abs", "invert", "getitem", "eq", "ne", "lt", "le", "gt", "ge")


class StandIn:
    """The interface of a variable: it can be read and assigned, and converts to a tensor."""

    def read_value(self) -> Any:
        """Return the tensor."""
        raise NotImplementedError

    def assign(self, value: Any) -> Any:
        """Replace the tensor by another of the same shape and type."""
        raise NotImplementedError

    @property
    def shape(self) -> Any:
        """Shape of the tensor."""
        return self.read_value().shape

    @property
    def dtype(self) -> Any:
        """Type of the tensor's elements."""
        return self.read_value().dtype

    def value(self) -> Any:
        """Return the tensor."""
        return self.read_value()

    def assign_add(self, value: Any) -> Any:
        """Add a value to the tensor."""
        return self.assign(self.read_value() + value)

    def assign_sub(self, value: Any) -> Any:
        """Subtract a value from the tensor."""
        return self.assign(self.read_value() - value)


@dataclass(frozen=True, eq=False)
class Row(StandIn):
    """One worker's row of a variable [W, ...], read and written like a variable [...] of its own; or several rows."""

    rows: Any
    index: Any

    def read_value(self) -> Any:
        """Read the row, [...]."""
        return tf.raw_ops.ResourceGather(resource=self.rows.handle, indices=self.index, dtype=self.rows.dtype)

    def assign(self, value: Any) -> Any:
        """Write the row; return what was written."""
        value = tf.convert_to_tensor(value, self.rows.dtype)
        self.write(value)
        return value

    def write(self, value: Any) -> Any:
        """Write the row; return the operation."""
        return tf.raw_ops.ResourceScatterUpdate(resource=self.rows.handle, indices=self.index, updates=value)


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: StandIn, *others: Any) -> Any:
        others = tuple(other.read_value() if isinstance(other, StandIn) else other for other in others)
        return getattr(tf.convert_to_tensor(self.read_value()), f"__{name}__")(*others)

    return apply


for _name in (*OPERATORS, *REFLECTED, *OTHERS):
    setattr(StandIn, f"__{_name}__", _operator(_name))


def _convert(value: StandIn, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
    return tf.convert_to_tensor(value.read_value(), dtype, name=name)


tf.register_tensor_conversion_function(StandIn, _convert)
