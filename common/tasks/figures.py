"""Aggregate statistics of the record of a run: examples, bytes, staleness."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..record.event_log import Tally
from ..server.trace import EVENTS
from ..server.traffic import Traffic
from .plan import Plan


class Figures:
    """Figures of a run, computed from the totals of its events.

    Args:
        plan: rounds of each worker.
        traffic: bytes that events move.
    """

    def __init__(self, plan: Plan, traffic: Traffic):
        self.plan, self.traffic = plan, traffic
        plans = plan.all_rounds
        self.plans = plans[:1] if all(own is plans[0] for own in plans) else plans

    def of(self, seen: Tally) -> dict[str, Any]:
        """Return the figures of the run so far."""
        return {
            "examples": self.plan.options.batch_size * self.steps(seen.rounds),
            **self._bytes(seen),
            "staleness_mean": seen.staleness_mean,
            "staleness_max": seen.staleness_max,
        }

    def steps(self, rounds: np.ndarray) -> int:
        """Return the local steps of all workers, given the rounds of each, [W]."""
        if len(self.plans) > 1:
            return sum(plan.steps(int(n)) for plan, n in zip(self.plans, rounds, strict=True))
        (plan,) = self.plans  # the same for all workers
        return sum(
            plan.steps(int(n)) * int(times) for n, times in zip(*np.unique(rounds, return_counts=True), strict=True)
        )

    def _bytes(self, seen: Tally) -> dict[str, int]:
        """Return the bytes that workers have pushed and pulled so far."""
        number: dict[str, int] = dict(zip(EVENTS, seen.kinds.tolist(), strict=True))
        moved = [[number[kind] * size for size in sizes] for kind, sizes in self.traffic.of_events.items()]
        pushed, pulled = (sum(sizes) for sizes in zip(*moved, strict=True))
        begun = self.plan.workers * self.traffic.center if self.plan.scheme.gate.uses_ps else 0
        return {"bytes_pushed": int(pushed), "bytes_pulled": int(begun + pulled)}
