"""The schemes without a center, in which each worker hears its neighbours alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gradients import Gradient

Mixing = Callable[[int], np.ndarray]  # the mixing matrix of a round, [W, W]


def d_psgd(
    start: np.ndarray, gradient: Gradient, workers: int, *, weights: Mixing, eta: float, steps: int
) -> list[np.ndarray]:
    """Execute x_i ← Σ_j W_ij x_j − η g_i(x_i) on all workers at once; returns the mean of the workers after each step.

    `weights` returns W of a step.
    """
    x, path = np.tile(start, (workers, 1)), []
    for t in range(steps):
        moves = np.array([gradient(own, k, t) for k, own in enumerate(x)])
        x = weights(t) @ x - eta * moves
        path.append(x.mean(axis=0))
    return path
