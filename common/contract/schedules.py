"""Learning-rate schedules by name, for the command line; from Python, any `keras.optimizers.schedules` will do."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UserError
from ..lazy import keras
from .adapting import check_rates
from .hyperparameters import declared, rates_of
from .periods import rule_of
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

    def value(self, step: int) -> float:
        """Return the rate after `step` local steps, a number, without TensorFlow."""
        done = min(step / self.steps, 1.0)
        shares = {
            "linear": 1 - done,
            "cosine": (1 + math.cos(math.pi * done)) / 2,
            "exponential": LAST ** (step / self.steps),
        }
        return self.initial * shares[self.shape]

    def __call__(self, step: Any) -> Any:
        """Return the rate after `step` local steps, a scalar tensor."""
        kinds = keras.optimizers.schedules
        schedule = {
            "linear": lambda: kinds.PolynomialDecay(self.initial, self.steps, end_learning_rate=0.0),
            "cosine": lambda: kinds.CosineDecay(self.initial, self.steps),
            "exponential": lambda: kinds.ExponentialDecay(self.initial, self.steps, LAST),
        }[self.shape]()
        return schedule(step)


SCHEDULE = re.compile(r"Schedule\(shape='(\w+)', initial=([-+.\de]+), steps=(\d+)\)")


def schedule_of(text: Any) -> Schedule | None:
    """Return the schedule that config.json has as a text; None if it is none of those with a name."""
    found = SCHEDULE.fullmatch(text) if isinstance(text, str) else None
    return Schedule(found[1], float(found[2]), int(found[3])) if found else None  # pyright: ignore[reportArgumentType]


def ruled(scheme: Scheme, rule: str) -> Scheme:
    """Return the scheme with this rule for its period, which is `communication_period` at least.

    Raises:
        UserError: the scheme has no period, or there is no such rule.
    """
    if rule == "constant":
        return scheme
    if (period := declared(scheme, "communication_period", None)) is None:
        raise UserError(f"{scheme.name} has no communication_period that a rule could change: leave out --period-rule")
    return scheme.but(communication_period=str(rule_of(rule, period)))


def shaped(scheme: Scheme, shape: Shape, steps: int) -> Scheme:
    """Return the scheme with a schedule of this shape over `steps` local steps for each of its learning rates.

    Raises:
        UserError: the scheme has no learning rate, or rounds that need a constant one.
    """
    if shape == "constant":
        return scheme
    rates = rates_of(scheme)
    if not rates:
        raise UserError(f"{scheme.name} has no learning_rate that a schedule could change: use --lr-schedule constant")
    scheme = scheme.but(**{name: Schedule(shape, rate, steps) for name, rate in rates.items()})
    check_rates(scheme)
    return scheme
