"""The machines of a simulated run: how long computing and sending take, and what fails."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import positive


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What the machines of a run are like.

    Raises:
        UserError: machines that cannot be.
    """

    step_ms: float = 10.0
    """Milliseconds that a local step takes on the average worker."""

    def __post_init__(self):
        positive(step_ms=self.step_ms)
