"""The schemes without a center, in which each worker hears its neighbours alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gradients import Gradient
from .inner_steps import InnerStep, State, inner_window, sgd_step
from .synchronous_rules import no_states

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


def dsgd_tracking(
    start: np.ndarray, gradient: Gradient, workers: int, *, weights: Mixing, eta: float, steps: int
) -> list[np.ndarray]:
    """Execute x ← W (x − η y);  y ← W y + g(x) − g'; g' ← g(x), from y_i = g'_i = g_i(x_i); returns the means of x.

    `weights` returns W of a step.
    """
    x, path = np.tile(start, (workers, 1)), []
    y = before = np.array([gradient(own, k, 0) for k, own in enumerate(x)])
    for t in range(steps):
        x = weights(t) @ (x - eta * y)
        path.append(x.mean(axis=0))
        if t + 1 < steps:
            now = np.array([gradient(own, k, t + 1) for k, own in enumerate(x)])
            y, before = weights(t) @ y + now - before, now
    return path


def sgp(
    start: np.ndarray, gradient: Gradient, workers: int, *, weights: Mixing, eta: float, steps: int
) -> list[np.ndarray]:
    """Execute x_i ← x_i − η g_i(z_i);  x ← P x;  w ← P w;  z_i = x_i/w_i; returns the mean of z after each step.

    `weights` returns P of a step, whose columns sum to one.
    """
    x, w, path = np.tile(start, (workers, 1)), np.ones((workers, 1)), []
    for t in range(steps):
        x = x - eta * np.array([gradient(z_k, k, t) for k, z_k in enumerate(x / w)])
        x, w = weights(t) @ x, weights(t) @ w
        path.append((x / w).mean(axis=0))
    return path


def noloco(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    epsilon: float,
    mu: float,
    gamma: float,
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
) -> list[np.ndarray]:
    """Execute x_i ← a_i; H inner steps; m ← μ m + ε W (x − a) + γ (W a − a);  a ← a + m; returns the means of a.

    `weights` returns W of a round.
    """
    a, path, states = np.tile(start, (workers, 1)), [], no_states(workers)
    m = np.zeros_like(a)
    for number, t in enumerate(range(0, steps, period)):
        x = _after_steps(a, states, gradient, t, min(period, steps - t), eta, inner)
        mixing = weights(number)
        m = mu * m + epsilon * (mixing @ (x - a)) + gamma * (mixing @ a - a)
        a = a + m
        path.append(a.mean(axis=0))
    return path


def gasloc(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    epsilon: float,
    mu: float,
    period: int,
    steps: int,
    inner: InnerStep = sgd_step,
) -> list[np.ndarray]:
    """Execute x_i ← θ_i; H inner steps; ψ = θ + ε (x − θ);  θ ← W (ψ + μ (ψ − ψ'));  ψ' ← ψ; returns the means of θ.

    `weights` returns W of a round.
    """
    theta, path, states = np.tile(start, (workers, 1)), [], no_states(workers)
    before = theta
    for number, t in enumerate(range(0, steps, period)):
        x = _after_steps(theta, states, gradient, t, min(period, steps - t), eta, inner)
        psi = theta + epsilon * (x - theta)
        theta, before = weights(number) @ (psi + mu * (psi - before)), psi
        path.append(theta.mean(axis=0))
    return path


def _after_steps(
    starts: np.ndarray, states: list[State], gradient: Gradient, t: int, length: int, eta: float, inner: InnerStep
) -> np.ndarray:
    """Return the parameters of each worker after `length` inner steps from its own start, [W, P]."""
    return np.array(
        [
            inner_window(own, state, gradient, k, t, length, eta, inner)
            for k, (own, state) in enumerate(zip(starts, states, strict=True))
        ]
    )
