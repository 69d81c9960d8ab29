"""Who has been silent for how long, as the evaluator sees it."""

from __future__ import annotations

import time

import numpy as np

from ..engine.trace import RECORD
from .worker_calls import SLOW


class LivenessTracker:
    """When each worker has sent something last, in the evaluator's own time.

    A worker may be on any machine, and a round may take a second or an hour: its own longest silence says how long is
    too long. Worker 1 sent every 5 s, so it is silent after `wait_seconds` + 10 s. (`waiting.LifeSigns` answers another
    question, if a process of this machine is stopped: by messages every second, and by the CPU time that it uses.)
    """

    def __init__(self, workers: int, wait_seconds: float):
        self.wait_seconds = wait_seconds
        self.gaps: list[float | None] = [None] * workers  # the longest silence so far
        self.begin_again()

    def begin_again(self) -> None:
        """All have time from now on: the ps was away, so nobody could send anything."""
        self.last = [time.monotonic()] * len(self.gaps)
        self.warnings = [0] * len(self.gaps)

    def note(self, events: np.ndarray) -> None:
        """Take notice of new events, [n, len(RECORD)]."""
        now = time.monotonic()
        for k in {int(k) for k in events[:, RECORD.index("worker")]}:
            self.gaps[k] = max(self.gaps[k] or 0.0, now - self.last[k])
            self.last[k], self.warnings[k] = now, 0

    def seconds(self, k: int) -> float:
        """How long that worker has been silent."""
        return time.monotonic() - self.last[k]

    def silent(self) -> list[int]:
        """Workers that have been silent for much longer than they ever were; a first round may be slow."""
        return [k for k in range(len(self.last)) if self.seconds(k) > self._limit(k) * (1 + self.warnings[k])]

    def _limit(self, k: int) -> float:
        gap = self.gaps[k]
        return self.wait_seconds + (SLOW * self.wait_seconds if gap is None else 2 * gap)

    def warned(self, k: int) -> bool:
        """Count a warning; True if it is not the first."""
        self.warnings[k] += 1
        return self.warnings[k] > 1
