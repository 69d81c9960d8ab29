"""The synchronous schemes with compressed messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .one_worker import Gradient

Compressor = Callable[[np.ndarray], np.ndarray]


def signsgd_mv(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    steps: int,
    beta: float = 0.0,
    weight_decay: float = 0.0,
) -> list[np.ndarray]:
    """Execute v_k ← (1 − β) g_k + β v_k;  x ← x − η (sign(Σ sign(v_k)) + λ x), with sign(0) = 0."""
    theta, v, path = start.copy(), [0 * start for _ in range(workers)], []
    for t in range(steps):
        v = [(1 - beta) * gradient(theta, k, t) + beta * v[k] for k in range(workers)]
        theta = theta - eta * (np.sign(sum(np.sign(v_k) for v_k in v)) + weight_decay * theta)
        path.append(theta.copy())
    return path


def largest(kept: int) -> Compressor:
    """Keep that many elements, the largest in magnitude; the others become zero."""

    def compress(p: np.ndarray) -> np.ndarray:
        q, where = 0 * p, np.argsort(-np.abs(p), kind="stable")[:kept]
        q[where] = p[where]
        return q

    return compress


def scaled_sign(layers: Sequence[int]) -> Compressor:
    """Return p ↦ (‖p‖₁/d) sign(p) for each layer separately; `layers` are their sizes d."""

    def compress(p: np.ndarray) -> np.ndarray:
        parts = np.split(p, np.cumsum(layers)[:-1])
        return np.concatenate([np.abs(part).sum() / len(part) * np.sign(part) for part in parts])

    return compress


def ef_sgd(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, compress: Compressor, steps: int
) -> list[np.ndarray]:
    """Execute p = η g_k + e_k;  q = C(p);  e_k ← p − q;  θ ← θ − mean q."""
    theta, memory, path = start.copy(), [0 * start for _ in range(workers)], []
    for t in range(steps):
        sent = []
        for k in range(workers):
            p = eta * gradient(theta, k, t) + memory[k]
            q = compress(p)
            memory[k] = p - q
            sent.append(q)
        theta = theta - np.mean(sent, axis=0)
        path.append(theta.copy())
    return path
