"""A single worker: serial SGD, and the local steps between two exchanges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Gradient = Callable[[np.ndarray, int, int], np.ndarray]


def serial(start: np.ndarray, gradient: Gradient, steps: int, *, eta: float) -> list[np.ndarray]:
    """Execute θ ← θ − η g(θ)."""
    theta, path = start.copy(), []
    for t in range(steps):
        theta = theta - eta * gradient(theta, 0, t)
        path.append(theta.copy())
    return path


def window(x: np.ndarray, gradient: Gradient, k: int, t: int, length: int, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """Execute `length` local steps from x: x ← x − η g, A ← A + g. Returns x and A."""
    a = np.zeros_like(x)
    for h in range(length):
        g = gradient(x, k, t + h)
        x, a = x - eta * g, a + g
    return x, a


def adamw_window(
    x: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    gradient: Gradient,
    k: int,
    t: int,
    length: int,
    eta: float,
    weight_decay: float,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Execute `length` AdamW steps from x (β₁ = .9, β₂ = .999, 1e-8), with the `moments` after t steps.

    Returns x and the moments.
    """
    first, second = moments
    for h in range(t, t + length):
        g = gradient(x, k, h)
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g * g
        x = x - eta * weight_decay * x
        corrected = first / (1 - 0.9 ** (h + 1)), second / (1 - 0.999 ** (h + 1))
        x = x - eta * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    return x, (first, second)
