"""The exchanges of a recorded elastic run, which an earlier version made before the steps of a round."""

from __future__ import annotations

from typing import Any

from .recorded import Hyperparameters, RecordedRun

NAMES = "easgd", "aeasgd", "aeamsgd"


def exchanged_at_once(run: RecordedRun, scheme: Hyperparameters) -> bool:
    """Return True for a run of an earlier version: a worker that was started again exchanged before its next step.

    Its workers made steps after their last exchange, which its record counts.
    """
    period = scheme.communication_period
    return run.result.get("steps", 0) > run.workers * (1 + (run.steps - 1) // period * period)


OPTIONS: dict[str, Any] = {"alpha": lambda run, s: s.beta / run.workers, "at_once": exchanged_at_once}
