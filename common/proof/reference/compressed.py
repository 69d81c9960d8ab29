"""Synchronous schemes whose messages are small."""

from __future__ import annotations

import numpy as np

from .alone import Gradient


def signsgd_mv(start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, steps: int) -> list[np.ndarray]:
    """θ ← θ − η sign(Σ sign(g_k)), with sign(0) = 0."""
    theta, path = start.copy(), []
    for t in range(steps):
        votes = sum(np.sign(gradient(theta, k, t)) for k in range(workers))
        theta = theta - eta * np.sign(votes)
        path.append(theta.copy())
    return path


def ef_sgd(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, kept: int, steps: int
) -> list[np.ndarray]:
    """p = η g_k + e_k; q = its `kept` largest elements by size; e_k ← p − q; θ ← θ − mean q."""
    theta, memory, path = start.copy(), [0 * start for _ in range(workers)], []
    for t in range(steps):
        sent = []
        for k in range(workers):
            p = eta * gradient(theta, k, t) + memory[k]
            q, largest = 0 * p, np.argsort(-np.abs(p), kind="stable")[:kept]
            q[largest] = p[largest]
            memory[k] = p - q
            sent.append(q)
        theta = theta - np.mean(sent, axis=0)
        path.append(theta.copy())
    return path
