"""The back end `simulation`: what it refuses, and the functions that `common/` calls by `Placement.back_end`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..common.cluster.cluster import Cluster
from ..common.cluster.platform import Machines, Platform
from ..common.contract.scheme import Scheme
from ..common.errors import UserError
from ..common.lazy import keras
from ..common.record import checkpoint
from ..common.tasks.options import Recovery, RunOptions
from .execution.virtual_run import simulate
from .fitting.like import fitted
from .virtual_time.schedule import check

__all__ = ["fitted", "refuse", "refuse_loops", "simulate"]


def refuse(scheme: Scheme, train: Any, cluster: Cluster, options: RunOptions) -> None:
    """Raise `UserError` for the first option or input that a simulation does not support."""
    check(scheme, Machines(cluster.simulated or Platform()), cluster.workers)
    for reason in _reasons(train, cluster, options):
        raise UserError(f"in a simulation {reason}")


def refuse_loops(model: Any) -> None:
    """Raise `UserError` for a model with a loop: TensorFlow cannot compute it for many workers at once."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and not layer.unroll:
            raise UserError(
                f"in a simulation all workers are computed at once, and not in a loop: give layer {layer.name} "
                f"({type(layer).__name__}) unroll=True"
            )


def _reasons(train: Any, cluster: Cluster, options: RunOptions) -> Iterator[str]:
    if callable(train):
        yield "data must be arrays: the data of a function are not known before the run. Received: a data function"
    if options.schedule:
        yield "the order comes from the machines that are described: leave schedule out, or use backend='threads'"
    for field in fields(Recovery):
        if (value := getattr(options.recovery, field.name)) != field.default:
            why = "a message that is not finite ends the run" if field.name == "on_nan" else "no task can be lost"
            setting = f"{field.name}={value or repr(value)}"  # an empty text is shown, too
            yield f"{why}, and the seed repeats all of it: leave {field.name} out. Received: {setting}"
    if options.run_dir is not None and _holds_checkpoints(Path(options.run_dir)):
        yield f"a run cannot be resumed: choose another run directory. Received: {options.run_dir}"
    if options.jit == "on":
        yield "the gradients of all workers are computed at once, without XLA: leave jit out. Received: jit='on'"
    if cluster.isolation != "auto":
        yield f"there is no network: leave isolation out. Received: isolation={cluster.isolation!r}"


def _holds_checkpoints(run_dir: Path) -> bool:
    try:
        return bool(checkpoint.found(run_dir))
    except OSError:
        return False  # a later check reports that the folder cannot be used
