"""The callback of an `Optimizer` in `fit`, with guards: an exception in `fit`, or Ctrl-C, leaves the center."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

ENDS_OF_DATA = (StopIteration, tf.errors.OutOfRangeError)  # with which a step ends an epoch of unknown length

CALLS = ("on_train_batch_begin", "on_train_batch_end", "on_epoch_begin", "on_epoch_end")


class Guards:
    """The guards of one `fit`, which has no place of its own for code after an exception.

    Args:
        write_center: writes the center into the model.
    """

    def __init__(self, write_center: Callable[[], None]):
        self.write_center = write_center
        self._set: list[tuple[Any, str, Any]] = []  # object, name, and its own attribute of that name, or None

    def set(self, model: Any) -> None:
        """Guard the steps of the model and all callbacks; a callback that saves between two epochs gets the center."""
        callbacks = _callbacks_of_fit()
        self._guard(model, "train_function")
        for name in CALLS if callbacks is not None else ():
            self._guard(callbacks, name)
        for other in getattr(callbacks, "callbacks", ()):
            if hasattr(other, "save_freq") and hasattr(other, "_save_model"):
                self._guard(other, "_save_model", first=self.write_center)

    def take_off(self) -> None:
        """Remove all guards."""
        while self._set:
            owner, name, original = self._set.pop()
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    def _guard(self, owner: Any, name: str, first: Callable[[], None] = lambda: None) -> None:
        """Replace a function of this object by one that calls `first` before it."""
        call = getattr(owner, name)

        def guarded(*positional: Any, **named: Any) -> Any:
            try:
                first()
                return call(*positional, **named)
            except BaseException as error:
                if not isinstance(error, ENDS_OF_DATA):
                    self.take_off()
                    self.write_center()
                raise

        self.replace(owner, name, guarded)

    def replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        """Replace a function of this object until the guards are taken off."""
        self._set.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, by)


class TurnsInFit(keras.callbacks.Callback):
    """The callback of an `Optimizer`: it writes points and center into the model, and sets the guards.

    Args:
        optimizer: the optimizer.
        warning: returns for a model its `compute_loss` that warns of losses which the optimizer does not weigh.
    """

    def __init__(self, optimizer: Any, warning: Callable[[Any], Callable[..., Any]]):
        super().__init__()
        self.optimizer, self.warning = optimizer, warning
        self.guards = Guards(optimizer._write_center)

    def on_train_begin(self, logs: Any = None) -> None:
        """Let the optimizer begin."""
        self.optimizer._begin_fit(self.model)
        self.model.make_train_function()
        self.guards.set(self.model)
        self.guards.replace(self.model, "compute_loss", self.warning(self.model))

    def on_train_end(self, logs: Any = None) -> None:
        """Take the guards off."""
        self.guards.take_off()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Write the first point into the model."""
        if self.optimizer.built:
            self.optimizer._prepare()
            self.optimizer._write_point()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Plan more turns if needed; after an evaluation, write the next point into the model."""
        if self.optimizer.built:
            self.optimizer._prepare()
            if self.optimizer._has_center:
                self.optimizer._write_point()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write the center into the model after the last batch, before any callback sees the end of the epoch."""
        if batch + 1 == self.params["steps"]:
            self.optimizer._write_center()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the center into the model, if the epoch has ended early or had no known length."""
        self.optimizer._see()
        self.optimizer._write_center()

    def on_test_begin(self, logs: Any = None) -> None:
        """Write the center into the model."""
        self.optimizer._write_center()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Write the center into the model."""
        self.optimizer._write_center()


def _callbacks_of_fit() -> Any:
    """Return the list of callbacks that calls one of them now; `fit` gives a callback no other way to the list."""
    frame = sys._getframe()
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), keras.callbacks.CallbackList):
            return found
        frame = frame.f_back
    return None
