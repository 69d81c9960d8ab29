"""What a run does about faults: checkpoints, restarts, messages that are not finite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import at_least, one_of, positive

RESTART_CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What a run does about faults.

    Attributes:
        checkpoint_steps: updates of the center between two checkpoints, if given.
        checkpoint_seconds: seconds between two checkpoints; a minute if nothing else is said.
        keep_checkpoints: the last so many are kept.
        max_restarts: dead tasks are started again so many times in all (local processes).
        min_workers: a run goes on with so many workers if the others do not come back; all by default.
        on_nan: a message that is not finite is always refused; then the run stops, or goes on without it.
        resume: a run directory to go on from, if it is not this run's own.
    """

    checkpoint_steps: int | None = None
    checkpoint_seconds: float | None = None
    keep_checkpoints: int = 3
    max_restarts: int = 0
    min_workers: int | None = None
    on_nan: Literal["stop", "drop"] = "stop"
    resume: Path | None = None

    def __post_init__(self):
        at_least(1, keep_checkpoints=self.keep_checkpoints)
        at_least(0, max_restarts=self.max_restarts)
        one_of(("stop", "drop"), on_nan=self.on_nan)
        if self.checkpoint_steps is not None:
            at_least(1, checkpoint_steps=self.checkpoint_steps)
        if self.checkpoint_seconds is not None:
            positive(checkpoint_seconds=self.checkpoint_seconds)
        if self.min_workers is not None:
            at_least(1, min_workers=self.min_workers)

    @property
    def seconds(self) -> float:
        """Between two checkpoints."""
        if self.checkpoint_seconds is not None:
            return self.checkpoint_seconds
        if self.checkpoint_steps is not None:
            return float("inf")
        return RESTART_CHECKPOINT_SECONDS if self.max_restarts else 60.0
