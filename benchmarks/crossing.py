"""When a loss was reached: between two moments at which it was measured, on a straight line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Crossing:
    """A place between two measurements: after `part` of the way from the one before to that number."""

    number: int
    part: float

    def of(self, spent: Sequence[float]) -> float:
        """Return the expense at the crossing, given that at each measurement."""
        if self.number == 0:
            return spent[0]
        before = spent[self.number - 1]
        return before + self.part * (spent[self.number] - before)


def crossing(losses: Sequence[float], level: float) -> Crossing | None:
    """Find the first time at which the loss is at that level; None if it never is."""
    number = next((i for i, loss in enumerate(losses) if loss <= level), None)
    if not number:
        return None if number is None else Crossing(0, 1.0)
    before, after = losses[number - 1], losses[number]
    return Crossing(number, (before - level) / (before - after) if math.isfinite(before) else 1.0)
