"""Gradients and losses of problems of theory, written from their equations: a quadratic, and least squares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gradients import GradientOnRows

Loss = Callable[[np.ndarray], float]


def times_a(x: np.ndarray) -> np.ndarray:
    """Return A x, with A = ¼ tridiag(−1, 2, −1)."""
    left, right = np.append(0, x[:-1]), np.append(x[1:], 0)
    return (2 * x - left - right) / 4


def quadratic_gradient(b: np.ndarray, noise: Callable[[int], np.ndarray], minima: int) -> GradientOnRows:
    """Return the mean of A (x − s 1) − b + ξ_n over rows n, with s = n mod M − (M − 1) / 2 for M minima."""

    def gradient(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        total = 0 * x
        for n in rows.tolist():
            s = n % minima - (minima - 1) / 2
            total += times_a(x - s) - b.astype(x.dtype) + noise(n).astype(x.dtype)
        return total / len(rows)

    return gradient


def quadratic_loss(b: np.ndarray) -> Loss:
    """Return f(x) − f*, where f(x) = ½ xᵀA x − bᵀx with b = ¼ (−1, 0, ...) is least at xᵢ = i / (d + 1) − 1."""
    least = np.arange(1, len(b) + 1) / (len(b) + 1) - 1

    def f(x: np.ndarray) -> float:
        return float(x @ times_a(x) / 2 - b @ x)

    return lambda x: f(x) - f(least)


def least_squares_gradient(x: np.ndarray, y: np.ndarray) -> GradientOnRows:
    """Return the gradient of the mean of (xᵀw − y)² over rows."""
    return lambda w, rows: 2 * x[rows].astype(w.dtype).T @ (x[rows] @ w - y[rows]) / len(rows)


def least_squares_loss(x: np.ndarray, y: np.ndarray) -> Loss:
    """Return the mean of (xᵀw − y)² over all rows."""
    return lambda w: float(np.mean((x @ w - y) ** 2))
