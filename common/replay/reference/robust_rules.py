"""The synchronous rules that look at the gradient of each worker, of which some may be hostile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .gradients import Gradient

Aggregate = Callable[[np.ndarray, int], np.ndarray]  # of rows [R, P], of which so many may be hostile


@dataclass
class Rows:
    """What a rule gets of the gradients of a step, [W, P]; an object serves one run.

    Attributes:
        momentum: β of m ← β m + (1 − β) g, the rows of the workers; 0 for m = g. What is not finite begins anew.
        bucket: rows of which the rule gets the mean, in the order of `drawn`.
        drawn: returns numbers of the workers, [W], in a step.
        attack: returns the rows after hostile workers have seen those of the others.
    """

    momentum: float = 0.0
    bucket: int = 1
    drawn: Callable[[int], np.ndarray] = lambda t: np.zeros(0)
    attack: Callable[[np.ndarray], np.ndarray] = lambda rows: rows

    def __post_init__(self) -> None:
        self.before: np.ndarray | None = None

    def of(self, g: np.ndarray, t: int) -> np.ndarray:
        """Return the rows of step t, [R, P]."""
        m = g
        if self.momentum:
            before = np.zeros_like(g) if self.before is None else np.where(np.isfinite(self.before), self.before, 0)
            m = self.momentum * before + (1 - self.momentum) * g
        self.before = m
        m = self.attack(m)
        if self.bucket == 1:
            return m
        order = np.argsort(self.drawn(t), kind="stable")
        return np.array([m[order[i : i + self.bucket]].mean(axis=0) for i in range(0, len(m), self.bucket)])


def forged(rows: np.ndarray, hostile: int, kind: str, strength: float) -> np.ndarray:
    """Return rows [W, P] whose last ones are the `forgery` of the others."""
    honest = rows[: len(rows) - hostile]
    return np.concatenate([honest, np.tile(forgery(honest, kind, strength), (hostile, 1))])


def forgery(honest: np.ndarray, kind: str, strength: float) -> np.ndarray:
    """Return μ − z σ of honest rows, or −ε μ for the kind `ipm`, [P]."""
    mean = honest.mean(axis=0)
    return -strength * mean if kind == "ipm" else mean - strength * honest.std(axis=0, ddof=1)


def _stepped(
    aggregate: Aggregate,
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    eta: float,
    share: float,
    steps: int,
    rows: Rows | None,
) -> list[np.ndarray]:
    """Execute θ ← θ − η a, a the aggregate; of f = ⌊share W⌋ rows, fewer than half of all, anything may come."""
    theta, path, rows = start.copy(), [], rows or Rows()
    most = min(int(share * workers + 1e-9), (workers - 1) // 2)
    for t in range(steps):
        found = rows.of(np.array([gradient(theta, k, t) for k in range(workers)]), t)
        theta = theta - eta * aggregate(found, min(most, (len(found) - 1) // 2))
        path.append(theta.copy())
    return path


def trimmed_mean(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    beta: float,
    steps: int,
    rows: Rows | None = None,
) -> list[np.ndarray]:
    """Step along the mean without the f = ⌊β W⌋ smallest and largest values; with β = 1/2 it is the median.

    A value that is not finite counts as the largest.
    """

    def trimmed(found: np.ndarray, hostile: int) -> np.ndarray:
        found = np.sort(np.where(np.isfinite(found), found, np.inf), axis=0)
        return np.median(found, axis=0) if beta == 0.5 else np.mean(found[hostile : len(found) - hostile], axis=0)

    return _stepped(trimmed, start, gradient, workers, eta, beta, steps, rows)


def krum(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    beta: float,
    chosen: int,
    steps: int,
    rows: Rows | None = None,
) -> list[np.ndarray]:
    """Step along the mean of the rows with the least sums of squared distances to the R − f − 2 nearest, one at least.

    A row that is not finite is infinitely far from all, and is not chosen. Of equal sums that of the lower index counts
    as less.
    """

    def nearest(found: np.ndarray, hostile: int) -> np.ndarray:
        number, near = len(found), max(1, len(found) - hostile - 2)
        finite = [bool(np.isfinite(row).all()) for row in found]
        distances = np.full((number, number), np.inf, found.dtype)
        for j in range(number):
            for k in range(j):  # each distance once, so that both ends have the same
                if finite[j] and finite[k]:
                    distances[j, k] = distances[k, j] = np.sum((found[k] - found[j]) ** 2)
        scores = np.where(finite, np.sort(distances, axis=1)[:, :near].sum(axis=1), distances.dtype.type(np.inf))
        best = np.argsort(scores, kind="stable")[: min(chosen, sum(finite))]
        return np.mean(found[best], axis=0)

    return _stepped(nearest, start, gradient, workers, eta, beta, steps, rows)


def rfa(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    beta: float,
    nu: float,
    iterations: int,
    steps: int,
    rows: Rows | None = None,
) -> list[np.ndarray]:
    """Step along z after w = 1/max(ν, ‖row − z‖);  z ← Σ w row/Σ w, from z = 0, over the finite rows."""

    def median(found: np.ndarray, hostile: int) -> np.ndarray:
        found = found[np.isfinite(found).all(axis=1)]
        z = np.zeros_like(found[0])
        for _ in range(iterations):
            w = 1 / np.maximum(nu, np.linalg.norm(found - z, axis=1))
            z = w @ found / w.sum()
        return z

    return _stepped(median, start, gradient, workers, eta, beta, steps, rows)


def centered_clipping(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    beta: float,
    tau: float,
    iterations: int,
    steps: int,
    rows: Rows | None = None,
) -> list[np.ndarray]:
    """Step along v ← v + mean (row − v) min(1, τ/‖row − v‖), so many times, over the finite rows; v begins at zero."""
    v = np.zeros_like(start)

    def clipped(found: np.ndarray, hostile: int) -> np.ndarray:
        nonlocal v
        found = found[np.isfinite(found).all(axis=1)]
        for _ in range(iterations):
            norms = np.linalg.norm(found - v, axis=1)
            shares = np.minimum(1, tau / np.where(norms > 0, norms, tau))
            v = v + np.mean(shares[:, None] * (found - v), axis=0)
        return v

    return _stepped(clipped, start, gradient, workers, eta, beta, steps, rows)
