"""One worker by itself: serial SGD, and the local steps between two exchanges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Gradient = Callable[[np.ndarray, int, int], np.ndarray]


def serial(start: np.ndarray, gradient: Gradient, steps: int, *, eta: float) -> list[np.ndarray]:
    """θ ← θ − η g(θ)."""
    theta, path = start.copy(), []
    for t in range(steps):
        theta = theta - eta * gradient(theta, 0, t)
        path.append(theta.copy())
    return path


def window(x: np.ndarray, gradient: Gradient, k: int, t: int, length: int, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """`length` local steps from x: x ← x − η g, A ← A + g. Returns x and A."""
    a = np.zeros_like(x)
    for h in range(length):
        g = gradient(x, k, t + h)
        x, a = x - eta * g, a + g
    return x, a
