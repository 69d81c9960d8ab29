"""Callbacks that send a run to Weights & Biases or to MLflow, whose libraries are optional."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Literal

from ..errors import UserError
from ..files import finite
from ..packages import INSTALL
from .callbacks import Callback

LogTarget = Literal["wandb", "mlflow"]


class WandbLogger(Callback):
    """A logger for Weights & Biases: settings, metrics of the center by its version, and result.

    On several machines, use it only where `cluster.evaluates` is true.

    Args:
        **settings: arguments of `wandb.init`, such as project="digits".

    Example:
        >>> result = train(model, (x, y), Downpour(), callbacks=[WandbLogger(project="digits")])

    Raises:
        UserError: the library is not installed.
    """

    def __init__(self, **settings: Any):
        self.wandb, self.settings = _library("wandb"), settings

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        """Begin a run of Weights & Biases with the configuration."""
        self.run = self.wandb.init(**{"config": logs, **self.settings})

    def on_test_end(self, logs: dict[str, Any]) -> None:
        """Log the metrics of the center; the step is its version."""
        self.run.log(_metrics(logs), step=logs["version"])

    def on_train_end(self, logs: dict[str, Any]) -> None:
        """Write the figures of the result into the summary."""
        self.run.summary.update(_metrics(logs))

    def close(self, error: str | None) -> None:
        """Finish the run, as a failed one if there is an error."""
        self.run.finish(exit_code=int(error is not None))


class MLflowLogger(Callback):
    """A logger for MLflow: settings as parameters, metrics of the center by its version, and result.

    On several machines, use it only where `cluster.evaluates` is true.

    Args:
        **settings: arguments of `mlflow.start_run`, such as run_name="digits".

    Example:
        >>> result = train(model, (x, y), Downpour(), callbacks=[MLflowLogger(run_name="digits")])

    Raises:
        UserError: the library is not installed.
    """

    def __init__(self, **settings: Any):
        self.mlflow, self.settings = _library("mlflow"), settings

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        """Start a run of MLflow, and log the configuration as parameters."""
        self.run = self.mlflow.start_run(**self.settings).info.run_id
        from ..cluster.fingerprint import flat

        self.mlflow.log_params(flat(logs), run_id=self.run)

    def on_test_end(self, logs: dict[str, Any]) -> None:
        """Log the metrics of the center; the step is its version."""
        self.mlflow.log_metrics(_metrics(logs), step=logs["version"], run_id=self.run)

    def on_train_end(self, logs: dict[str, Any]) -> None:
        """Log the result as the file run.json."""
        self.mlflow.log_dict(finite(logs), "run.json", run_id=self.run)

    def close(self, error: str | None) -> None:
        """End the run, as a failed one if there is an error."""
        self.mlflow.end_run("FINISHED" if error is None else "FAILED")


LOGGERS: Mapping[LogTarget, type[Callback]] = {"wandb": WandbLogger, "mlflow": MLflowLogger}


def _library(name: str) -> Any:
    """Import an optional library."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"the logger needs the library {name}: {INSTALL} {name} ({error})") from None


def _metrics(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among the figures of an event by name, those of vectors as `name/0`, ...; without its time."""
    from .metrics import numbers

    return dict(numbers({name: value for name, value in logs.items() if name != "when"}))
