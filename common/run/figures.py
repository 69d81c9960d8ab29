"""What the record of a run adds up to: examples, bytes, staleness."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contract.codec import FLOAT_BYTES
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
        self.job, self.size, self.state_size = job, size, state_size
        workers = range(job.cluster.workers)
        self.plans = [job.rounds(k) for k in workers] if job.options.schedule else [job.rounds(0)]

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
        if self.job.sparse:  # up: the coordinates to read, then coordinates and gradient; down: values
            rounds = int(seen.rounds.sum())
            entries = FLOAT_BYTES * self.job.batch_size * self.job.train[0][0].shape[1] * rounds
            return {"bytes_pushed": 3 * entries, "bytes_pulled": entries}
        scheme, state = self.job.scheme, FLOAT_BYTES * self.state_size
        up, down = scheme.gate.traffic(self.job.cluster.workers)
        number = dict(zip(EVENTS, seen.kinds.tolist(), strict=True))
        centers = number["pull"] + number["join"]
        centers += self.job.cluster.workers if self.job.uses_ps else 0  # what each began with
        message, reply = scheme.codec.bytes(self.size), scheme.reply_codec.bytes(self.size)
        pushed = up * (number["exchange"] + number["push"]) * (message + state)
        pulled = down * number["exchange"] * reply + centers * FLOAT_BYTES * self.size
        return {"bytes_pushed": int(pushed), "bytes_pulled": int(pulled)}
