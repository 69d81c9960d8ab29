"""What the record of a run adds up to: examples, bytes, staleness."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.trace import EVENTS
from ..record.event_log import Tally
from .job import Job


class Figures:
    """Figures of a run from what its events add up to.

    Args:
        job: the run.
        size: parameters of the model, P.
        state_size: length of its non-trainable state, S.
    """

    def __init__(self, job: Job, size: int, state_size: int):
        self.job, self.traffic = job, job.traffic(size, state_size)
        workers = range(job.cluster.workers)
        self.plans = [job.plan.rounds(k) for k in workers] if job.options.schedule else [job.plan.rounds(0)]

    def of(self, seen: Tally) -> dict[str, Any]:
        """What the record says about the run so far."""
        return {
            "examples": self.job.batch_size * self.steps(seen.rounds),
            **self._bytes(seen),
            "staleness_mean": seen.staleness_mean,
            "staleness_max": seen.staleness_max,
        }

    def steps(self, rounds: np.ndarray) -> int:
        """Local steps of all workers, given the rounds of each, [W]."""
        if self.job.options.schedule:
            return sum(plan.steps(int(n)) for plan, n in zip(self.plans, rounds, strict=True))
        (plan,) = self.plans  # that of all
        return sum(
            plan.steps(int(n)) * int(times) for n, times in zip(*np.unique(rounds, return_counts=True), strict=True)
        )

    def _bytes(self, seen: Tally) -> dict[str, int]:
        """What has travelled to the center and back so far."""
        number: dict[str, int] = dict(zip(EVENTS, seen.kinds.tolist(), strict=True))
        moved = [[number[kind] * size for size in sizes] for kind, sizes in self.traffic.of_events.items()]
        pushed, pulled = (sum(sizes) for sizes in zip(*moved, strict=True))
        begun = self.job.cluster.workers * self.traffic.center if self.job.uses_ps else 0
        return {"bytes_pushed": int(pushed), "bytes_pulled": int(begun + pulled)}
