"""Marks of variables that belong to more than their own task.

Of those of `Scheme.global_variables`: a variable for each worker. Of those of `Scheme.local_variables`: what is cleared
when a worker is lost, and what describes the worker's own data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

from ..errors import UserError
from ..lazy import tf

FEW = 3  # parameters of the model for which a scheme is asked for its variables


@dataclass(frozen=True)
class EachWorker:
    """A variable that the ps keeps for each worker.

        return {"gradients": EachWorker(0 * center), "counts": EachWorker(0.0)}

    In `weighted`, and in an asynchronous `server_update`, `server.<name>` is that of the sender, used like a variable
    of the shape of `value`. In the `server_update` of a barrier it is that of all workers, a variable with one more
    dimension in front, [W, ...].

    Attributes:
        value: initial value: a vector [P], or a number. Every ps task keeps a copy of a number. Compute numbers from
            staleness, `server.sent`, `server.completes` and other numbers, never from a vector: the copies would
            differ.
    """

    value: Any


class PulledCenter:
    """The center that each worker pulled last: `server.<name>`, [P], is that of the message's sender, to be read."""


@dataclass(frozen=True)
class ClearedOnLoss:
    """A local variable that is set to zero on all workers when one of them is lost, without a ps.

    So are those of which only the sum over all workers matters, and those of what the others have summed up.

    Attributes:
        value: initial value.
    """

    value: Any


@dataclass(frozen=True)
class OfShard:
    """A local variable that describes the worker's own shard of the data: runs with `participation` are refused.

    Attributes:
        value: initial value.
    """

    value: Any


class Kept(NamedTuple):
    """The variables of a parameter server by what they belong to."""

    single: dict[str, Any]
    """Initial values of those that there are once, by name."""
    rows: dict[str, Any]
    """Initial values [P] of those of each worker that are vectors."""
    numbers: dict[str, float]
    """Initial values of those of each worker that are numbers."""
    pulled: tuple[str, ...]
    """Names of the center that each worker pulled last; none if the scheme does not read it."""


def kept(build: Callable[[Any], Mapping[str, Any]], center: Any) -> Kept:
    """Return the variables that `build`, such as `Scheme.global_variables`, makes of the center, a vector.

    Raises:
        UserError: a variable of each worker is neither a number nor such a vector.
    """
    found = Kept({}, {}, {}, ())
    for name, value in build(center).items():
        if isinstance(value, PulledCenter):
            found = found._replace(pulled=(*found.pulled, name))
        elif not isinstance(value, EachWorker):
            found.single[name] = unmarked(name, value)
        elif isinstance(value.value, Real):
            found.numbers[name] = float(value.value)
        elif getattr(value.value, "shape", None) is None or tuple(value.value.shape) != tuple(center.shape):
            raise UserError(
                f"{name} is kept for each worker: it must begin as a vector of the shape of the center, as in "
                f"EachWorker(0 * center), or as a number, as in EachWorker(0.0). Received: {value.value!r}"
            )
        else:
            found.rows[name] = value.value
    return found


def unmarked(name: str, value: Any) -> Any:
    """Return the initial value of a variable that there is once; `UserError` for a mark, which is none."""
    kind = value if isinstance(value, type) else type(value)
    if kind in (EachWorker, PulledCenter):
        usage = '{"rows": EachWorker(0 * center), "pulled": PulledCenter()}'
        raise UserError(f"{name} must be a value here; global_variables may return {usage}. Received: {value!r}")
    if kind in (ClearedOnLoss, OfShard):
        usage = f'{{"{name}": {kind.__name__}(0 * params)}}'
        raise UserError(f"{name} must be a value here; local_variables may return {usage}. Received: {value!r}")
    return value


def local_values(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the initial values of local variables without their marks."""
    return {
        name: value.value if type(value) in (ClearedOnLoss, OfShard) else value for name, value in variables.items()
    }


def marked(build: Callable[[Any], Mapping[str, Any]], mark: type) -> tuple[str, ...]:
    """Return the names of the variables that have this mark, of those that `build` makes of a vector."""
    with tf.Graph().as_default():
        return tuple(name for name, value in build(tf.zeros([FEW])).items() if isinstance(value, mark))


def first_values(build: Callable[[Any], Mapping[str, Any]], vector: Any) -> dict[str, Any]:
    """Return the initial values that a scheme builds from a vector: in a function, where `==` compares values."""
    return tf.function(build, autograph=False)(vector)


def first_kept(build: Callable[[Any], Mapping[str, Any]], center: Any) -> Kept:
    """Return the variables that `build` makes of the center, in a function as `first_values`."""
    constant: dict[str, Any] = {}

    def tensors(center: Any) -> Any:
        variables = kept(build, center)
        constant.update(numbers=variables.numbers, pulled=variables.pulled)
        return variables.single, variables.rows

    single, rows = tf.function(tensors, autograph=False)(center)
    return Kept(single, rows, **constant)
