"""Gradients and losses of problems of theory, written from their equations: a quadratic, and least squares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gradients import GradientOnRows, product

Loss = Callable[[np.ndarray], float]


def times_a(x: np.ndarray) -> np.ndarray:
    """Return A x, with A = ¼ tridiag(−1, 2, −1)."""
    left, right = np.append(0, x[:-1]), np.append(x[1:], 0)
    return (2 * x - left - right) / 4


def quadratic_gradient(noise: Callable[[int, int], np.ndarray], minima: int) -> GradientOnRows:
    """Return the mean of A (x − s 1) − b + ξ_n over rows n, with s = n mod M − (M − 1) / 2 for M minima.

    b = ¼ (−1, 0, ...); `noise` is a function of n and d that returns ξ_n, [d].
    """

    def gradient(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        total = 0 * x
        for n in rows.tolist():
            s = n % minima - (minima - 1) / 2
            total += times_a(x - s) + noise(n, len(x)).astype(x.dtype)
        mean = total / len(rows)
        mean[0] += 1 / 4
        return mean

    return gradient


def quadratic_loss(x: np.ndarray) -> float:
    """Return f(x) − f*, where f(x) = ½ xᵀA x − bᵀx with b = ¼ (−1, 0, ...) is least at xᵢ = i / (d + 1) − 1."""
    least = np.arange(1, len(x) + 1) / (len(x) + 1) - 1
    f, f_least = (v @ times_a(v) / 2 + v[0] / 4 for v in (x, least))
    return float(f - f_least)


def least_squares_gradient(x: np.ndarray, y: np.ndarray) -> GradientOnRows:
    """Return the gradient of the mean of (xᵀw − y)² over rows."""

    def gradient(w: np.ndarray, rows: np.ndarray) -> np.ndarray:
        some = x[rows].astype(w.dtype)
        return 2 * product(some.T, product(some, w) - y[rows]) / len(rows)

    return gradient


def least_squares_loss(x: np.ndarray, y: np.ndarray) -> Loss:
    """Return the mean of (xᵀw − y)² over all rows."""
    return lambda w: float(np.mean((product(x, w) - y) ** 2))
