"""What a replay needs of a run on a problem of theory: its gradients, from data set and model of config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..data.models import PROBLEMS
from ..data.problems import quadratic_noise
from ..data.recipes import Dataset
from ..errors import UserError
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
    dataset = load(config["dataset"])
    if dataset.model != config["model"]:
        raise UserError(f"the model {name} is not for the data set {config['dataset']}")
    on_rows, loss, shape = _linear(dataset) if name == "linear" else _quadratic(config["model"])
    return {
        "steps": config["steps_per_worker"],
        "gradient": on_batches(config, dataset.train[1], on_rows, _no_labels),
        "shapes": [shape],
        "losses": recorded_losses(run_dir) if jumps and config["ema_decay"] is None else {},
        "loss": loss,
    }


Problem = tuple[gradients.GradientOnRows, objectives.Loss, tuple[int, ...]]  # gradient, test loss, shape of x


def _linear(dataset: Dataset) -> Problem:
    (x, y), test = dataset.train, dataset.test
    return objectives.least_squares_gradient(x, y), objectives.least_squares_loss(*test), (x.shape[1], 1)


def _quadratic(model: str) -> Problem:
    options = parse("model", model, PROBLEMS)[1]  # all of them are in the name, see `quadratic`
    gradient = objectives.quadratic_gradient(lambda n, d: options["noise"] * quadratic_noise(n, d), options["minima"])
    return gradient, objectives.quadratic_loss, (options["dim"],)


def _no_labels(labels: Any) -> Any:
    raise UserError(
        "replay follows label-flip only where y has classes: the reference has no such labels for this data set"
    )
