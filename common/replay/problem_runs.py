"""What a replay needs of a run on a problem of theory: its gradients, from data set and model of config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..data.models import PROBLEMS
from ..data.problems import quadratic_noise
from ..data.recipes import Dataset
from ..spec import parse
from .recorded import on_batches, recorded_losses
from .reference import gradients, objectives


def of_problem(run_dir: Path, config: Mapping[str, Any], jumps: bool, load: Callable[[str], Dataset]) -> dict[str, Any]:
    """Return the fields of a `RecordedRun` that follow from data and model; none if the model is no problem of theory.

    Args:
        run_dir: folder of the run.
        config: its configuration.
        jumps: True if the verdict needs the recorded losses, see `Transcription`.
        load: function of the name of a data set.

    Raises:
        UserError: data or model of the run are unknown.
    """
    name = config["model"].partition(":")[0]
    if name not in PROBLEMS:
        return {}
    dataset, options = load(config["dataset"]), parse("model", config["model"], PROBLEMS)[1]
    on_rows, loss, size = _linear(dataset) if name == "linear" else _quadratic(**options)
    if config["l2"] or config["clip_norm"] is not None:
        on_rows = gradients.regularized(on_rows, config["l2"], config["clip_norm"])
    return {
        "steps": config["steps_per_worker"],
        "gradient": on_batches(config, dataset.train[1], on_rows),
        "shapes": [(size,)] if name == "quadratic" else [(size, 1)],
        "losses": recorded_losses(run_dir) if jumps and config["ema_decay"] is None else {},
        "loss": loss,
    }


def _linear(dataset: Dataset) -> tuple[gradients.GradientOnRows, objectives.Loss, int]:
    x, y = dataset.train
    return objectives.least_squares_gradient(x, y), objectives.least_squares_loss(*dataset.test), x.shape[1]


def _quadratic(
    dim: int = 1729, noise: float = 0.0, minima: int = 1
) -> tuple[gradients.GradientOnRows, objectives.Loss, int]:
    b = -np.eye(1, dim)[0] / 4
    gradient = objectives.quadratic_gradient(b, lambda n: noise * quadratic_noise(n, dim), minima)
    return gradient, objectives.quadratic_loss(b), dim
