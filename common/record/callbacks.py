"""Hooks: code of the user that is told how a run goes on, and may end it; and summaries for TensorBoard.

Callbacks live in the process that called `train`, not in the tasks, and are called one after the other in a thread of
their own: one that is slow stops no training. If it falls behind, reports of progress (of workers, of the center) are
left out, but for the newest, and a warning names it; `train` waits until all have been told everything. What a callback
raises ends the run. The names are those of Keras where Keras has them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import writing

STOP = "stop"  # a file of this name in the run directory asks the evaluator to end the run


class Callback:
    """Override what you need. Setting `stop_training` ends the run, with what it has reached as its result.

    Example:
        >>> class Enough(Callback):
        ...     def on_test_end(self, logs):
        ...         self.stop_training = logs["test_loss"] < 0.01
        >>> data = {"validation_data": (x, y), "verbose": False}
        >>> result = train(model, (x, y), Downpour(), epochs=2, callbacks=[Enough()], **data)
    """

    stop_training = False

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        """Before anything is started; `logs` is the configuration."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """A worker has done `batch` local steps; `logs` has `worker`, `loss`.

        Not at each step: a few times a second, in a long run every two seconds.
        """

    def on_test_end(self, logs: dict[str, Any]) -> None:
        """The center has been evaluated; `logs` has `version`, `examples`, `test_loss`, ..."""

    def on_event(self, event: dict[str, Any]) -> None:
        """Anything that a task reports, also `restarted`, `restored`, `checkpoint`."""

    def on_train_end(self, logs: dict[str, Any]) -> None:
        """The result is there."""


class CallbackList:
    """Calls all callbacks of a run."""

    def __init__(self, callbacks: Sequence[Callback], config: dict[str, Any], run_dir: Path):
        self.callbacks, self.stop = callbacks, run_dir / STOP
        with writing(self.stop):
            self.stop.unlink(missing_ok=True)  # left by the run that is resumed
        self.spent = [0.0] * len(callbacks)  # seconds that each has taken
        self.current: tuple[int, float] | None = None  # which is at work, and since when
        for callback in callbacks:
            callback.on_train_begin(config)

    def slowest(self) -> str:
        """The name of the callback that has taken the most time so far."""
        spent, current = list(self.spent), self.current
        if current is not None:
            spent[current[0]] += time.monotonic() - current[1]
        return f"callback {type(self.callbacks[spent.index(max(spent))]).__name__}"

    def on_event(self, event: dict[str, Any]) -> None:
        """Tell everybody; then see whether somebody wants to stop."""
        kind = event["event"]
        logs = {name: value for name, value in event.items() if name not in ("event", "task")}
        for number, callback in enumerate(self.callbacks):
            began = time.monotonic()
            self.current = number, began
            callback.on_event(event)
            if kind == "worker":
                callback.on_train_batch_end(event["steps"], logs)
            elif kind == "center":
                callback.on_test_end(logs)
            elif kind == "result":
                callback.on_train_end(logs)
            if callback.stop_training:
                self.stop.touch()
            self.current = None
            self.spent[number] += time.monotonic() - began
