"""Learning-rate schedules by name, for the command line; from Python, any `keras.optimizers.schedules` will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UserError
from ..lazy import keras
from .hyperparameters import rates_of
from .scheme import Scheme

Shape = Literal["constant", "linear", "cosine", "exponential"]

LAST = 0.01  # final rate of an exponential decay, as a fraction of the initial rate


@dataclass(frozen=True)
class Schedule:
    """A rate that falls over the run: linearly or as a cosine to zero, or exponentially to a hundredth.

    Attributes:
        shape: shape of the curve.
        initial: the rate at the beginning.
        steps: local steps of a worker in the run.
    """

    shape: Shape
    initial: float
    steps: int

    def __call__(self, step: Any) -> Any:
        """Return the rate after `step` local steps, a scalar tensor."""
        kinds = keras.optimizers.schedules
        schedule = {
            "linear": lambda: kinds.PolynomialDecay(self.initial, self.steps, end_learning_rate=0.0),
            "cosine": lambda: kinds.CosineDecay(self.initial, self.steps),
            "exponential": lambda: kinds.ExponentialDecay(self.initial, self.steps, LAST),
        }[self.shape]()
        return schedule(step)


def shaped(scheme: Scheme, shape: Shape, steps: int) -> Scheme:
    """Return the scheme with a schedule of this shape over `steps` local steps for each of its learning rates.

    Raises:
        UserError: the scheme has no learning rate.
    """
    if shape == "constant":
        return scheme
    rates = rates_of(scheme)
    if not rates:
        raise UserError(f"{scheme.name} has no learning_rate that a schedule could change: use --lr-schedule constant")
    return scheme.but(**{name: Schedule(shape, rate, steps) for name, rate in rates.items()})
