"""Crashes: each worker works and is down in turn, for exponential times of its own."""

from __future__ import annotations

import math

from .draws import uniforms

NO_CRASH = 1 << 63  # later than every event


class Failures:
    """The times at which workers crash and return.

    Args:
        means: mean nanoseconds that a worker works and is down; None if no worker fails.
        workers: W.
        seed: seed of the random times.

    Attributes:
        crash_at: time of the next crash of each worker, [W], set by `begin`.
        crashes: number of crashes of each worker so far, [W].
    """

    def __init__(self, means: tuple[int, int] | None, workers: int, seed: int):
        self.means, self.seed = means, seed
        self.crash_at, self.crashes = [NO_CRASH] * workers, [0] * workers

    def begin(self, worker: int, now: int) -> int:
        """Start the life of a worker; return the time at which it will crash."""
        if self.means is not None:
            self.crash_at[worker] = now + self._draw("crash", worker, self.means[0])
        return self.crash_at[worker]

    def crash(self, worker: int, now: int) -> int:
        """Count a crash of a worker; return the time at which it is back."""
        assert self.means is not None  # noqa: S101
        back = now + self._draw("repair", worker, self.means[1])
        self.crashes[worker] += 1
        return back

    def _draw(self, purpose: str, worker: int, mean: int) -> int:
        u = uniforms(self.seed, purpose, [worker], [self.crashes[worker]])[0, 0]
        return max(1, round(-mean * math.log1p(-u)))
