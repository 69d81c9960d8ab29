"""How long computing takes: for each worker and each of its rounds, whatever else happens."""

from __future__ import annotations

from ..contract.rounds import Rounds
from .platform import MILLISECOND, Platform


class Durations:
    """The times that workers compute.

    Args:
        platform: with the model of a step.
        rounds: of each worker.
        workers: W.
        seed: of what is drawn.
    """

    def __init__(self, platform: Platform, rounds: Rounds, workers: int, seed: int):
        del seed
        factors = platform.factors
        self.step = [round(platform.step_ms * MILLISECOND * factors[k % len(factors)]) for k in range(workers)]
        self.steps = [steps for steps, _ in rounds]

    def of(self, worker: int, round_: int) -> int:
        """Nanoseconds that a worker computes in one of its rounds."""
        return self.steps[round_] * self.step[worker]
