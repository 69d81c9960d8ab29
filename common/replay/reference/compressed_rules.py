"""The synchronous schemes whose workers send a compressed vector, and keep the rest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gradients import Gradient
from .inner_steps import InnerStep, inner_window, sgd_step
from .synchronous_rules import Compressor, after_steps, no_states


def ef21_sgdm(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, beta: float, compress: Compressor, steps: int
) -> list[np.ndarray]:
    """Execute v_k ← β v_k + (1 − β) g_k;  c_k = C(v_k − h_k);  h_k ← h_k + c_k;  h ← h + mean c_k;  θ ← θ − η h."""
    theta, h, path = start.copy(), 0 * start, []
    v, own = [0 * start for _ in range(workers)], [0 * start for _ in range(workers)]
    for t in range(steps):
        sent = []
        for k in range(workers):
            v[k] = beta * v[k] + (1 - beta) * gradient(theta, k, t)
            sent.append(compress(v[k] - own[k]))
            own[k] = own[k] + sent[k]
        h = h + np.mean(sent, axis=0)
        theta = theta - eta * h
        path.append(theta.copy())
    return path


def sparseloco(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    beta: float,
    compress: Compressor,
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
) -> list[np.ndarray]:
    """Execute H inner steps from θ;  e_k ← β e_k + θ − x_k;  q_k = C(e_k);  e_k ← e_k − q_k;  θ ← θ − ε mean q_k."""
    theta, path, states, memory = start.copy(), [], no_states(workers), [0 * start for _ in range(workers)]
    for t in range(0, steps, period):
        sent = []
        for k, x in enumerate(after_steps(theta, states, gradient, t, min(period, steps - t), eta, inner)):
            total = beta * memory[k] + theta - x
            sent.append(compress(total))
            memory[k] = total - sent[k]
        theta = theta - epsilon * np.mean(sent, axis=0)
        path.append(theta.copy())
    return path


def sparta(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    drawn: Callable[[int], np.ndarray],
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
) -> list[np.ndarray]:
    """Execute inner steps of each worker from its own x_k;  θ_j ← mean x_kj,  x_kj ← θ_j, for j drawn in the round."""
    theta, path, states = start.copy(), [], no_states(workers)
    own = [start.copy() for _ in range(workers)]
    for number, t in enumerate(range(0, steps, period)):
        length = min(period, steps - t)
        own = [inner_window(x, states[k], gradient, k, t, length, eta, inner) for k, x in enumerate(own)]
        mean, chosen = np.mean(own, axis=0), drawn(number)
        theta, *own = (np.where(chosen, mean, x) for x in (theta, *own))
        path.append(theta)
    return path


def demo(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    beta: float,
    compress: Compressor,
    steps: int,
) -> list[np.ndarray]:
    """Execute m_k ← β m_k + g_k;  q_k = C(m_k);  m_k ← m_k − q_k;  θ ← θ − η sign(mean q_k)."""
    theta, path, memory = start.copy(), [], [0 * start for _ in range(workers)]
    for t in range(steps):
        sent = []
        for k in range(workers):
            total = beta * memory[k] + gradient(theta, k, t)
            sent.append(compress(total))
            memory[k] = total - sent[k]
        theta = theta - eta * np.sign(np.mean(sent, axis=0))
        path.append(theta.copy())
    return path
