"""The quadratic on which Ringmaster's authors compare: thousands of workers of very different speeds, in NumPy.

    f(x) = ½ xᵀA x − bᵀx,  A = ¼ tridiag(−1, 2, −1),  b = ¼ (−1, 0, ..., 0),  d = 1729,  x⁰ = (√d, 0, ...)

A gradient has noise of deviation 0.01 in each element. Worker i of 6174 takes 1 + √i + |N(0, i + 1)| seconds for each
of its gradients (i from 0, i + 1 is the variance, drawn once). Settings of the authors' published script for
arXiv:2501.16168; the code is ours.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from ..common.cluster.fingerprint import source_digest

SIZE, WORKERS, NOISE = 1729, 6174, 0.01

HORIZON = 2000  # seconds

STEP = 10  # seconds between two measurements

BLOCK = 256  # gradients whose noise is drawn at once


@dataclass(frozen=True, kw_only=True)
class QuadraticRun:
    """A run.

    Attributes:
        scheme: "ringmaster", "async_sgd" or "delay_adaptive".
        settings: `learning_rate`, and of ringmaster `delay_threshold` and `cancel_late`.
        seed: of durations and noise.
    """

    scheme: str
    settings: dict[str, Any]
    seed: int

    @property
    def key(self) -> str:
        """Return the key by which the outcome is kept."""
        return f"{_sources()} {json.dumps(asdict(self), sort_keys=True)}"

    @property
    def weight(self) -> float:
        """Return the expected duration, compared with other runs of this kind."""
        return -self.settings["learning_rate"]

    def execute(self) -> dict[str, list[float]]:
        """Return columns `seconds` and `loss`, f − f*; nothing if the run diverged."""
        gaps = run(self.scheme, self.seed, **self.settings)
        return {"seconds": [float(STEP * (i + 1)) for i in range(len(gaps))], "loss": gaps}


@cache
def _sources() -> str:
    return source_digest(within=("benchmarks/claims_quadratic.py",))


def gradient(x: np.ndarray) -> np.ndarray:
    """Return A x − b."""
    g = 0.5 * x
    g[1:] -= 0.25 * x[:-1]
    g[:-1] -= 0.25 * x[1:]
    g[0] += 0.25
    return g


def value(x: np.ndarray) -> float:
    """Return f(x), with b = ¼ (−1, 0, ...)."""
    without_b = gradient(x)
    without_b[0] -= 0.25
    return float(0.5 * x @ without_b + 0.25 * x[0])


@cache
def least() -> float:
    """Return f*: x* solves A x = b, which is x_i = −(1 − i / (d + 1))."""
    return value(-(1 - np.arange(1, SIZE + 1) / (SIZE + 1)))


def run(
    scheme: str,
    seed: int,
    *,
    learning_rate: float,
    delay_threshold: float = math.inf,
    cancel_late: bool = False,
    workers: int = WORKERS,
) -> list[float]:
    """Return F − f* every ten seconds; empty if the run diverged.

    A gradient of delay τ, the number of updates since its worker began: `ringmaster` ignores it if τ ≥ R, or with
    `cancel_late` stops it as soon as τ = R, and its worker begins anew; `delay_adaptive` (Mishchenko et al. 2022) takes
    the rate γ min(1, n/τ) for it, with n workers.
    """
    rng = np.random.default_rng(seed)
    index = np.arange(workers)
    each = 1 + np.sqrt(index) + np.abs(rng.normal(size=workers)) * np.sqrt(index + 1)
    x = np.zeros(SIZE)
    x[0] = math.sqrt(SIZE)
    begun = np.zeros((workers, SIZE))
    begun[:] = x
    version, pulled, until = 0, np.zeros(workers, int), each.copy()  # until: the end of each worker's gradient
    gaps: list[float] = []
    noise, used = rng.normal(scale=NOISE, size=(BLOCK, SIZE)), 0
    while len(gaps) < HORIZON // STEP:
        k = int(until.argmin())
        now = float(until[k])
        while now > STEP * (len(gaps) + 1) and len(gaps) < HORIZON // STEP:
            gaps.append(value(x) - least())
            if not gaps[-1] < 1e6:
                return []
        delay = version - int(pulled[k])
        if delay < delay_threshold:
            if used == BLOCK:
                noise, used = rng.normal(scale=NOISE, size=(BLOCK, SIZE)), 0
            rate = learning_rate * (min(1.0, workers / max(delay, 1)) if scheme == "delay_adaptive" else 1.0)
            x -= rate * (gradient(begun[k]) + noise[used])
            used, version = used + 1, version + 1
        anew = np.append(k, np.flatnonzero(version - pulled >= delay_threshold)) if cancel_late else k
        begun[anew], pulled[anew], until[anew] = x, version, now + each[anew]
    return gaps
