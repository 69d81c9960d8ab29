"""The machines of a simulated run: how long computing and sending take, and what fails."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UserError, positive

MILLISECOND = 10**6  # nanoseconds


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What the machines of a run are like.

    Raises:
        UserError: machines that cannot be.
    """

    step_ms: float = 10.0
    """Milliseconds that a local step takes on the average worker."""
    step_factors: str = "1"
    """How workers differ: factors on that, as in 0.58,0.75,1.51,3.33, for one worker after the other."""

    def __post_init__(self):
        positive(step_ms=self.step_ms)
        self.factors  # noqa: B018

    @property
    def factors(self) -> list[float]:
        """Of the workers, in turn."""
        try:
            found = [float(text) for text in self.step_factors.split(",")]
        except ValueError:
            found = [math.nan]
        if not all(factor > 0 and math.isfinite(factor) for factor in found):
            raise UserError(
                f"step_factors must be positive numbers, as in 0.58,0.75,1.51. Received: {self.step_factors!r}"
            )
        return found
