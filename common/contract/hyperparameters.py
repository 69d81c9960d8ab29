"""Types of hyperparameters and options, with the constraint on the value, which is checked when an object is made.

    period: Period = 10         # 0 is refused: "period must be at least 1. Received: period=0"

The command line reads the same annotations to parse its flags.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..arguments import a_text, at_least, below_one, fraction, not_negative, one_of, positive
from ..errors import UserError
from ..sync.topology import Topology

Rate = Annotated[float | Callable[[Any], Any], lambda **given: None if callable(*given.values()) else positive(**given)]
"""A learning rate, or a schedule (`keras.optimizers.schedules`) of local steps."""
Positive = Annotated[float, positive]
"""A number above zero."""
NotNegative = Annotated[float, not_negative]
"""A number from zero."""
Fraction = Annotated[float, fraction]
"""A number from zero to one."""
Probability = Annotated[float, positive, fraction]
"""A number above zero, to one."""
Decay = Annotated[float, below_one]
"""Weight of the past in a moving average, from 0 to less than 1."""
Graph = Annotated[str, lambda **given: _check_graph(*given.values())]
"""Name of a graph of workers, see `sync.topology`."""
Natural = Annotated[int, functools.partial(at_least, 1)]
"""A whole number from one."""
Count = Annotated[int, functools.partial(at_least, 0)]
"""A whole number from zero."""

# Types of hyperparameters that the engine reads, with the name of the field. A field of this name and another type is
# the author's own: the engine does not read it.
FixedPeriod = Annotated[int, functools.partial(at_least, 1), "communication_period"]
"""The local steps of a round, from one, of a scheme with `rounds` of its own."""
Period = Annotated[int | str, lambda **given: _check_period(**given), "communication_period"]
"""The local steps of a round, from one, or a rule by which they change, as in "qsr:0.0175,4": see `Scheme.period`."""
Delay = Annotated[int, functools.partial(at_least, 0), "delay"]
"""The local steps that a worker makes between a message and its reply, from zero: see `Scheme.overlap`."""
Fragments = Annotated[int, functools.partial(at_least, 1), "fragments"]
"""The parts of the vector of which a round sends one, from one."""
WeightDecay = Annotated[float, not_negative, "weight_decay"]
"""The coefficient of the decoupled weight decay, from zero."""


def unstable_above(limit: float, workers: int, **value: float) -> list[str]:
    """Return a warning if a value exceeds the limit of stability on a flat loss; else an empty list."""
    ((name, received),) = value.items()
    if received <= limit:
        return []
    above = f"above {name}={limit:.4g} {workers} workers are not stable, not even where the loss is flat"
    return [f"{above}: lower it. Received: {name}={received:g}"]


def feature(kind: Any) -> str | None:
    """Return the name that a field of this type must have for the engine to read it; None if the engine reads none."""
    return next((tag for tag in getattr(kind, "__metadata__", ()) if isinstance(tag, str)), None)


def declared(owner: Any, name: str, default: Any) -> Any:
    """Return the hyperparameter that the engine reads under a name; the default if no field declares it by its type."""
    return getattr(owner, name) if feature(kinds_of(type(owner)).get(name)) == name else default


def undeclared(owner: Any) -> list[str]:
    """Return a line for each field that has the name of a hyperparameter of the engine, but not its type.

    A number with a fraction is never one of the engine's.
    """
    kinds = kinds_of(type(owner))
    types = {field_name: name for name, kind in globals().items() if (field_name := feature(kind))}
    return [
        f"{owner.name}: {name} is a number of your own rule, which the engine does not read: for its meaning in the "
        f"engine give the field the type {types[name]}"
        for name in types.keys() & {field.name for field in fields(owner)}
        if feature(kinds.get(name)) != name and isinstance(getattr(owner, name), int)
    ]


def rates_of(owner: Any) -> dict[str, Any]:
    """Return the learning rates of a scheme, its fields of the type `Rate`, without those that are None."""
    rates = [name for name, kind in kinds_of(type(owner)).items() if Rate in (kind, *get_args(kind))]
    return {name: value for name in rates if (value := getattr(owner, name)) is not None}


def check_fields(checked: Any) -> None:
    """Raise `UserError` for the first field of a dataclass whose value is not of its annotated type.

    A custom type is `Annotated[int, refuse]`, where `refuse(name=value)` raises. Values of a plain `int` or `float` are
    not checked.
    """
    check_values(type(checked), {field.name: getattr(checked, field.name) for field in fields(checked)})


def check_values(kind: type, values: Mapping[str, Any]) -> None:
    """Raise `UserError` for the first value that is not of the type of the field with its name in a dataclass."""
    kinds = kinds_of(kind)
    for name, value in values.items():
        _check(name, kinds.get(name), value)


@functools.cache
def kinds_of(checked: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, by name."""
    names: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(checked, localns=names or None, include_extras=True)
        except NameError as unknown:  # a class made inside a function may use types that are not visible here
            name = str(unknown.name)
            names[name] = vars(import_module(str(__package__))).get(name, Any)


def _check(name: str, kind: Any, value: Any) -> None:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        for refuse in filter(callable, kind.__metadata__):
            refuse(**{name: value})
    elif origin is Literal:
        one_of(parts, **{name: value})
    elif kind is bool and not isinstance(value, bool):
        raise UserError(f"{name} must be True or False. Received: {name}={value!r}")
    elif kind is float and callable(value):
        raise UserError(f"{name} is a number: give the field the type Rate for a schedule. Received: {name}={value!r}")
    elif kind in (str, str | None) and value is not None:
        a_text(**{name: value})
    elif kind is Path and not isinstance(value, str | os.PathLike):
        raise UserError(f"{name} must be a path, a text in quotes. Received: {name}={value!r}")
    elif origin in (Union, UnionType) and value is not None:
        for part in parts:
            if part not in (NoneType, str):
                _check(name, part, value)
    elif origin is tuple and Ellipsis in parts:
        if not isinstance(value, tuple) or not value:
            raise UserError(f"{name} must be a tuple of numbers. Received: {value}")
        for element in value:
            _check(name, parts[0], element)


def _check_period(**given: Any) -> None:
    from .periods import check_period  # not at the top: rounds have codecs, which this module does not need

    check_period(**given)


def _check_graph(value: Any) -> None:
    if not isinstance(value, str):
        raise UserError(f"topology must be the name of a graph, such as ring. Received: {value!r}")
    Topology(value)
