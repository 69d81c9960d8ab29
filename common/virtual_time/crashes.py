"""Crashes: each worker works and is away in turn, for exponential times of its own."""

from __future__ import annotations

import math

from .draws import uniforms

NO_CRASH = 1 << 63  # after all that can happen


class Failures:
    """When workers crash, and for how long they are away.

    Args:
        means: nanoseconds of work and of absence; None if nothing fails.
        workers: W.
        seed: of what is drawn.

    Attributes:
        crash_at: when each worker will crash next, [W], once `begin` has said so.
        crashes: that each has had, [W].
    """

    def __init__(self, means: tuple[int, int] | None, workers: int, seed: int):
        self.means, self.seed = means, seed
        self.crash_at, self.crashes = [NO_CRASH] * workers, [0] * workers

    def begin(self, worker: int, now: int) -> int:
        """A worker is there from now on; returns when it will crash."""
        if self.means is not None:
            self.crash_at[worker] = now + self._draw("crash", worker, self.means[0])
        return self.crash_at[worker]

    def crash(self, worker: int, now: int) -> int:
        """A worker crashes; returns when it is back."""
        assert self.means is not None  # noqa: S101
        back = now + self._draw("repair", worker, self.means[1])
        self.crashes[worker] += 1
        return back

    def _draw(self, purpose: str, worker: int, mean: int) -> int:
        u = uniforms(self.seed, purpose, [worker], [self.crashes[worker]])[0, 0]
        return max(1, round(-mean * math.log1p(-u)))
