"""What a run leaves behind at its end: files that stand each for itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.flat_model import FlatModel
from ..errors import CannotWrite
from ..files import PART, replacing, writing


def unwritten(writes: Iterable[Callable[[], object]]) -> list[str]:
    """Write all; returns why some of it is not there: one that cannot be written is no reason to lose the others."""
    reasons = []
    for write in writes:
        try:
            write()
        except CannotWrite as error:
            reasons.append(str(error))
    return reasons


def write_center(run_dir: Path, arrays: Mapping[str, Any]) -> None:
    """The center, [P], its average if there is one, and the state, [S]; raises `CannotWrite`."""
    with replacing(run_dir / "center.npz") as file:
        np.savez(file, **arrays)


def write_model(run_dir: Path, model: FlatModel, arrays: Mapping[str, Any]) -> None:
    """The Keras model with the center (or its average) as its weights; raises `CannotWrite`."""
    load(model, arrays)
    part = run_dir / f".model{PART}.keras"  # Keras goes by how the name ends
    with writing(run_dir / "model.keras"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lambdas, which a loader must allow
        part.unlink(missing_ok=True)
        try:
            model.model.save(part)
            part.replace(run_dir / "model.keras")
        finally:
            part.unlink(missing_ok=True)


def load(model: FlatModel, arrays: Mapping[str, Any]) -> None:
    """Put what is evaluated into the Keras model: the average of the center if there is one."""
    model.load(arrays.get("average", arrays["center"]), arrays["state"])
