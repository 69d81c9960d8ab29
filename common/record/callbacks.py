"""Callbacks: user code that receives the events of a run, and may end it.

Callbacks run in the process that called `train`, not in the tasks, one after the other in a thread of their own: a slow
callback does not delay training. If it falls behind, progress reports (of workers, of the center) are dropped except
the newest, and a warning names the callback; `train` returns when all callbacks have received all other events. An
exception in a callback ends the run. Methods have Keras' names where Keras has them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..files import writing

STOP = "stop"  # a file of this name in the run directory asks the evaluator to end the run


class Callback:
    """A user's hooks: override what you need. Setting `stop_training` ends the run, with the result so far.

    Example:
        >>> class Enough(Callback):
        ...     def on_test_end(self, logs):
        ...         self.stop_training = logs["test_loss"] < 0.01
        >>> data = {"validation_data": (x, y), "verbose": False}
        >>> result = train(model, (x, y), Downpour(), epochs=2, callbacks=[Enough()], **data)
    """

    stop_training = False

    def warnings(self, counts_updates: bool, can_stop: bool) -> Iterable[str]:
        """Return a line for each limit of the callback in a run.

        Args:
            counts_updates: True if evaluations come at known updates.
            can_stop: True if the run can be ended early.
        """
        return ()

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        """Run before any task starts; `logs` is the configuration."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Run when a worker reports `batch` local steps; `logs` has `worker`, `loss`.

        A worker reports a few times a second, in a long run every two seconds; not at each step.
        """

    def on_test_end(self, logs: dict[str, Any]) -> None:
        """Run after an evaluation of the center; `logs` has `version`, `examples`, `test_loss`, ..."""

    def on_event(self, event: dict[str, Any]) -> None:
        """Run for every event of a task, also `restarted`, `restored`, `checkpoint`."""

    def on_train_end(self, logs: dict[str, Any]) -> None:
        """Run at the end; `logs` is the result."""

    def close(self, error: str | None) -> None:
        """Run last, where `train` was called, also after a failure; `error` is its message, None after a success."""


class CallbackList:
    """All callbacks of a run, called in order."""

    def __init__(self, callbacks: Sequence[Callback], config: dict[str, Any], run_dir: Path):
        self.callbacks, self.stop = callbacks, run_dir / STOP
        with writing(self.stop):
            self.stop.unlink(missing_ok=True)  # a stop request to the run that is resumed
        self.spent = [0.0] * len(callbacks)  # seconds that each callback has taken
        self.current: tuple[int, float] | None = None  # the running callback, and its start
        for callback in callbacks:
            callback.on_train_begin(config)

    def slowest(self) -> str:
        """Return the name of the callback that has taken the most time so far."""
        spent, current = list(self.spent), self.current
        if current is not None:
            spent[current[0]] += time.monotonic() - current[1]
        return f"callback {type(self.callbacks[spent.index(max(spent))]).__name__}"

    def on_event(self, event: dict[str, Any]) -> None:
        """Pass an event to each callback, and request the end of the run if one has set `stop_training`."""
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

    def close(self, error: BaseException | None) -> None:
        """Tell each callback that the run has ended."""
        for callback in self.callbacks:
            callback.close(None if error is None else str(error))
