"""Keras' own callbacks in a run: each evaluation of the center is the end of an epoch.

The evaluator writes the evaluated center into the run directory, reports its metrics, and waits. The process that
called `train` loads that center into the model, calls the callbacks, and deletes the file, so the evaluator continues.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import writing
from ..lazy import keras
from ..worker.flat_model import FlatModel
from .callbacks import STOP, Callback
from .run_directory import load_center

EVALUATED = "evaluated.npz"  # the evaluated center in the run directory, until the callbacks have been called

# Callbacks of Keras that need Keras' loop or its optimizer, with the alternative.
INSTEAD = {
    "ReduceLROnPlateau": "the model's optimizer is not used: give the algorithm a schedule, learning_rate=...",
    "LearningRateScheduler": "the model's optimizer is not used: give the algorithm a schedule, learning_rate=...",
    "BackupAndRestore": "use run_dir=... and recovery=Recovery(checkpoint_seconds=..., resume=...)",
    "SwapEMAWeights": "use ema_decay=...",
    "ProgbarLogger": "use verbose=True",
    "TerminateOnNaN": "use recovery=Recovery(on_nan=...)",
}

CALLED = ("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end")


def check_keras_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise `UserError` for a callback that cannot do its work in a run, naming the alternative."""
    for callback in callbacks:
        for name, instead in INSTEAD.items():
            if isinstance(callback, getattr(keras.callbacks, name)):
                raise UserError(f"callbacks: {type(callback).__name__} needs Keras' own training loop; {instead}")
        if isinstance(callback, keras.callbacks.TensorBoard) and find_spec("tensorboard") is None:
            raise UserError("callbacks: TensorBoard needs the package tensorboard: install it, or use tensorboard=True")


class KerasCallbacks(Callback):
    """Calls Keras' callbacks in the process of the caller.

    Args:
        callbacks: the callbacks, in order.
        model: the caller's model; a callback sees it with the weights of the evaluated center.
        run_dir: folder of the run.
        params: `Callback.params` of Keras.
    """

    def __init__(self, callbacks: Sequence[Any], model: FlatModel, run_dir: Path, params: dict[str, Any]):
        self.callbacks, self.model, self.run_dir, self.params = list(callbacks), model, run_dir, params
        self.losses: dict[int, float] = {}  # newest loss of each worker
        self.epoch = 0
        self.logs: dict[str, Any] = {}

    def warnings(self, counts_updates: bool, can_stop: bool) -> Iterator[str]:
        """Yield a line for each limit of a callback."""
        for callback in self.callbacks:
            name, hooks = type(callback).__name__, ", ".join(_not_called(callback))
            if hooks:
                yield f"callback {name}: {hooks} is not called; epochs end at evaluations of the center, on_epoch_end"
            if hasattr(callback, "patience") and not counts_updates:
                yield f"callback {name}: patience counts evaluations, at times that vary: set evaluate_every"
            if hasattr(callback, "patience") and not can_stop:
                yield f"callback {name}: a run without a parameter server cannot be stopped early"

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        """Give the callbacks their model, and begin the first epoch."""
        with writing(self.run_dir / EVALUATED):
            (self.run_dir / EVALUATED).unlink(missing_ok=True)  # of a run that is resumed
        self.model.model.stop_training = False
        for callback in self.callbacks:
            callback.set_params(self.params)
            callback.set_model(self.model.model)
        self._call("on_train_begin", {})
        self._call("on_epoch_begin", 0, {})

    def on_event(self, event: dict[str, Any]) -> None:
        """Note the losses of workers; end an epoch at each evaluation for which the evaluator waits."""
        if event["event"] == "worker":
            self.losses[event["worker"]] = event["loss"]
        path = self.run_dir / EVALUATED
        if event["event"] != "center" or not path.exists():
            return
        try:
            if event["version"] and not self.stop_training:
                load_center(self.model, self.run_dir, EVALUATED)
                self._end_epoch(event)
            if self.stop_training:
                (self.run_dir / STOP).touch()  # before the evaluator continues
        finally:
            path.unlink(missing_ok=True)

    def _end_epoch(self, event: dict[str, Any]) -> None:
        losses = [event["loss"]] if "loss" in event else list(self.losses.values())
        self.logs = {"loss": np.mean(losses, dtype=float).item() if losses else math.nan}  # None becomes NaN
        for name, value in event.items():
            if name.startswith("test_"):
                self.logs[f"val_{name.removeprefix('test_')}"] = math.nan if value is None else value
        self.logs["version"] = event["version"]
        self._call("on_epoch_end", self.epoch, self.logs)
        self.epoch += 1
        self.stop_training = bool(self.model.model.stop_training)
        if not self.stop_training:
            self._call("on_epoch_begin", self.epoch, {})

    def end(self) -> None:
        """Call `on_train_end`, when the model has the final center: a callback may change the weights."""
        self._call("on_train_end", self.logs)

    def _call(self, method: str, *values: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(*values)


def _not_called(callback: Any) -> list[str]:
    """Return the methods of batches and tests that a callback defines; none for Keras' classes that save at epochs."""
    standard = keras.callbacks
    if (isinstance(callback, standard.ModelCheckpoint) and callback.save_freq == "epoch") or (
        isinstance(callback, standard.TensorBoard) and callback.update_freq == "epoch"
    ):
        return []
    hooks = [name for name in dir(standard.Callback) if name.startswith("on_") and name not in CALLED]
    return [name for name in hooks if not getattr(getattr(callback, name), "_is_default", False)]
