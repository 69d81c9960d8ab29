"""What a scheme sees: the views of workers and of the server are built from these functions, in all executors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from ..messages.stand_in import Row
from .decay import decayed_of
from .fragments import fragments_of
from .scheme import Scheme
from .seeded import uniform
from .views import Server, Worker


def of_slices(
    shapes: Sequence[tuple[int, ...]], without_decay: Collection[int], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the attributes `shapes`, `fragments` and `decayed` of the views of each slice of the vector [P].

    Args:
        shapes: shapes of the model's variables.
        without_decay: positions of the variables that weight decay leaves as they are.
        sizes: sizes of the slices, P together.
    """
    parts = zip(fragments_of(sizes), decayed_of(shapes, without_decay, sizes), strict=True)
    return [{"shapes": shapes, "fragments": fragments, "decayed": decayed} for fragments, decayed in parts]


def of_workers(
    shapes: Sequence[tuple[int, ...]], without_decay: Collection[int], size: int, workers: int, seed: int
) -> dict[str, Any]:
    """Return the attributes of a worker's view that are the same for all workers; `size` is P, `seed` the run's."""
    (of_all,) = of_slices(shapes, without_decay, [size])
    return {"num_workers": workers, "uniform": partial(uniform, seed, size), **of_all}


def worker_view(common: Mapping[str, Any], index: Any, variables: Mapping[str, Any], **more: Any) -> Worker:
    """Build the view of a worker.

    Args:
        common: what `of_workers` returns.
        index: its index, a whole number or a scalar tensor.
        variables: its parameters and its local variables, by name.
        more: the attributes of the round that `of_round` returns, if it has begun; and for `message` those that
            `for_message` names, with `mean`.
    """
    return Worker(index=index, **{**variables, **common, **more})


def of_round(kind: str, steps: Any, number: Any, step: Any) -> dict[str, Any]:
    """Return the attributes of a worker's view that say where it is.

    Args:
        kind: name of the kind of the round.
        steps: its local steps.
        number: rounds before this one.
        step: local steps before this one.
    """
    cast = {"round": tf.cast(number, tf.int64), "step": tf.cast(step, tf.int64)}
    return {"kind": kind, "steps": tf.cast(steps, tf.float32), **cast}


def for_message(scheme: Scheme) -> list[str]:
    """Return which attributes of `MESSAGE_ONLY` the rounds of a scheme have."""
    if scheme.overlap:  # the message leaves before the last steps
        return []
    has = {"gradient_sum": scheme.sends == "gradient_sum", "gradient": scheme.period == 1, "loss": True}
    return [name for name, is_there in has.items() if is_there]


def server_view(
    constants: Mapping[str, Any],
    center: Any,
    global_variables: Mapping[str, Any],
    by_worker: Mapping[str, Any],
    pulled: Mapping[str, Any],
    *,
    num_workers: int,
    sender: Any,
    sent: Any,
    completes: Any,
) -> Server:
    """Build the view of a slice of the center, for a message of a worker or for the mean of a set.

    Args:
        constants: what `of_slices` returns for the slice.
        center: the slice [n], a variable.
        global_variables: the scheme's global variables.
        by_worker: its variables of each worker, [W, n] and [W]; of a sender the view has the own ones alone.
        pulled: the centers that the workers have pulled, [W, n], by their name for the scheme; empty if it reads none.
        num_workers: W.
        sender: number of the worker that sent the message; None for a mean.
        sent: the scalars of the message, as attributes.
        completes: True if the message completes an update.
    """
    if sender is not None:
        by_worker = {name: Row(rows, sender) for name, rows in by_worker.items()}
        constants = {**constants, **{name: Row(centers, sender).read_value() for name, centers in pulled.items()}}
    event = {"num_workers": num_workers, "sender": sender, "sent": sent, "completes": tf.convert_to_tensor(completes)}
    return Server(center=center, **event, **constants, **global_variables, **by_worker)
