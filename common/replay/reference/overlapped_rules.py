"""The synchronous schemes whose workers compute while their messages travel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gradients import Gradient
from .inner_steps import InnerStep, inner_window, sgd_step
from .sending import Send, as_it_is
from .synchronous_rules import after_steps, no_states


def streaming_diloco(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    alpha: float,
    tau: int,
    fragments: int,
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H/F − τ inner steps, send the fragment p of x_k, τ inner steps more, and x_k ← α x_k + (1 − α) θ on it.

    Meanwhile  Δ = mean_k(θ − x_k) of the x_k that were sent;  m ← μ m + Δ;  θ ← θ − ε (Δ + μ m), on p alone, which is
    0, 1, ... F − 1 in turn: the coordinates j with ⌊j F / P⌋ = p. First x_k = θ. `period` is H/F.
    """
    theta, m, path, states = start.copy(), np.zeros_like(start), [], no_states(workers)
    x = [theta] * workers
    part = np.arange(len(start)) * fragments // len(start)
    for number, first in enumerate(range(0, steps, period)):
        due = part == number % fragments
        end = min(first + period, steps)
        leaves = max(first, end - tau)
        x = [inner_window(x[k], states[k], gradient, k, first, leaves - first, eta, inner) for k in range(workers)]
        delta = np.mean([theta - send(x[k], k) for k in range(workers)], axis=0)
        m = np.where(due, mu * m + delta, m)
        theta = np.where(due, theta - epsilon * (delta + mu * m), theta)
        x = [inner_window(x[k], states[k], gradient, k, leaves, end - leaves, eta, inner) for k in range(workers)]
        x = [np.where(due, alpha * x_k + (1 - alpha) * theta, x_k) for x_k in x]
        path.append(theta.copy())
    return path


def eager_diloco(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Send each Δ_k of the round before, make H inner steps from θ_k, and then a step of D_k = Δ̄ + (Δ'_k − Δ_k)/W.

    Δ̄ is the mean of what was sent, Δ'_k = θ_k − x_k the new move;  m_k ← μ m_k + D_k;  θ_k ← θ_k − ε (D_k + μ m_k).
    The same step of  D = Δ̄_old + (Δ̄ − Δ̄_old)/W  makes θ.
    """
    theta, m, old = start.copy(), np.zeros_like(start), np.zeros_like(start)
    path, states, outer = [], no_states(workers), [start.copy() for _ in range(workers)]
    m_k, moved = [np.zeros_like(start)] * workers, [np.zeros_like(start)] * workers
    for first in range(0, steps, period):
        length = min(period, steps - first)
        mean = np.mean([send(moved[k], k) for k in range(workers)], axis=0)
        d = old + (mean - old) / workers
        m = mu * m + d
        theta, old = theta - epsilon * (d + mu * m), mean
        path.append(theta.copy())
        for k in range(workers):
            x = inner_window(outer[k], states[k], gradient, k, first, length, eta, inner)
            new = outer[k] - x
            d = mean + (new - moved[k]) / workers
            m_k[k], moved[k] = mu * m_k[k] + d, new
            outer[k] = outer[k] - epsilon * (d + mu * m_k[k])
    return path


def co2(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    gap: float,
    clip: float,
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Send each Δ_k = θ − x_k of the round before, first 0, and make H inner steps from θ, which give the next Δ_k.

    Then  m ← μ m + (1/Λ) mean_k Δ_k of what was sent,  m ← min(max(m, −φ), φ),  θ ← θ − ε m. `gap` is Λ, `clip` is φ.
    """
    theta, m, path = start.copy(), np.zeros_like(start), []
    states, moved = no_states(workers), [np.zeros_like(start)] * workers
    for first in range(0, steps, period):
        length = min(period, steps - first)
        mean = np.mean([send(moved[k], k) for k in range(workers)], axis=0)
        moved = [theta - x for x in after_steps(theta, states, gradient, first, length, eta, inner)]
        m = np.clip(mu * m + mean / gap, -clip, clip)
        theta = theta - epsilon * m
        path.append(theta.copy())
    return path


def cocod_sgd(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Send each x_k, make H inner steps from it, and add their move to θ = mean_k of what was sent: x_k ← θ + Δ_k."""
    path, states, x = [], no_states(workers), [start] * workers
    for first in range(0, steps, period):
        length = min(period, steps - first)
        theta = np.mean([send(x[k], k) for k in range(workers)], axis=0)
        path.append(theta)
        x = [
            theta + inner_window(x[k], states[k], gradient, k, first, length, eta, inner) - x[k] for k in range(workers)
        ]
    return path


def loscar(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    drawn: Callable[[int], np.ndarray],
    tau: int,
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
) -> list[np.ndarray]:
    """Execute H − τ inner steps of each worker from its own x_k to y_k, and τ more to z_k.

    Then θ_j ← mean y_kj,  x_kj ← θ_j + z_kj − y_kj  for j drawn in the round;  x_kj ← z_kj  for the others.
    """
    theta, path, states, x = start, [], no_states(workers), [start] * workers
    for number, first in enumerate(range(0, steps, period)):
        end = min(first + period, steps)
        leaves = max(first, end - tau)
        y = [inner_window(x[k], states[k], gradient, k, first, leaves - first, eta, inner) for k in range(workers)]
        z = [inner_window(y[k], states[k], gradient, k, leaves, end - leaves, eta, inner) for k in range(workers)]
        chosen = drawn(number)
        theta = np.where(chosen, np.mean(y, axis=0), theta)
        x = [np.where(chosen, theta + z_k - y_k, z_k) for y_k, z_k in zip(y, z, strict=True)]
        path.append(theta)
    return path


def delayed_all_reduce(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, period: int, steps: int
) -> list[np.ndarray]:
    """Take the gradients of step t at x_t, and then the step  x_{t+1} = x_t − η ḡ_{t−1}  along those of the one before.

    ḡ is the mean over the workers, and ḡ_{−1} = 0. `period` is 1.
    """
    x, mean, path = start, np.zeros_like(start), []
    for t in range(0, steps, period):
        previous, mean = mean, np.mean([gradient(x, k, t) for k in range(workers)], axis=0)
        x = x - eta * previous
        path.append(x)
    return path
