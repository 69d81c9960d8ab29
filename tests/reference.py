"""Every scheme in NumPy, float64, straight from the paper's equations. Imports nothing from the code under test.

A recorded run is a total order of events on the server: (version, worker, staleness, accepted). Each function here
executes the paper's equations in a given order and returns the center after every event.

`gradient(x, k, t)` is the gradient of worker k's t-th batch at x: a function, so the same code serves a neural
network on recorded batches, a quadratic, or a gradient drawn from a list.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

Gradient = Callable[[np.ndarray, int, int], np.ndarray]


def serial(start: np.ndarray, gradient: Gradient, steps: int, *, eta: float) -> list[np.ndarray]:
    """θ ← θ − η g(θ)."""
    theta, path = start.copy(), []
    for t in range(steps):
        theta = theta - eta * gradient(theta, 0, t)
        path.append(theta.copy())
    return path


def async_sgd(
    start: np.ndarray, gradient: Gradient, order: Sequence[int], workers: int, *, eta: float
) -> list[np.ndarray]:
    """Worker k: u = g_k(x_k), push; server: θ ← θ − η u; worker: x_k ← θ. `order` is who pushed when."""
    theta, x, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    for k in order:
        u = gradient(x[k], k, t[k])
        t[k] += 1
        theta = theta - eta * u
        x[k] = theta.copy()
        path.append(theta.copy())
    return path


def downpour(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    period: int,
    steps: int,
    gamma: float | None = None,
    accumulator: float = 0.1,
) -> list[np.ndarray]:
    """Window form. Worker: x ← x − η g, A ← A + g; after `period` steps push A, x ← θ.

    Server: Adagrad with step γ, S ← S + A², θ ← θ − γ A/√S; without γ plain SGD, θ ← θ − η A ("easy").
    A worker does `steps` local steps in all; its last window may be shorter.
    """
    theta, x, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    squares = np.full_like(start, accumulator)
    for k in order:
        a = np.zeros_like(start)
        for _ in range(min(period, steps - t[k])):
            g = gradient(x[k], k, t[k])
            t[k] += 1
            x[k] = x[k] - eta * g
            a = a + g
        if gamma is None:
            theta = theta - eta * a
        else:
            squares = squares + a * a
            theta = theta - gamma * a / np.sqrt(squares)
        x[k] = theta.copy()
        path.append(theta.copy())
    return path


def sync_sgd(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[tuple[int, int]],
    workers: int,
    *,
    eta: float,
    updates: int,
    backup: int = 0,
) -> tuple[list[np.ndarray], list[bool]]:
    """The server keeps the first R = W − b gradients computed at the present θ, averages, steps, releases all.

    `order` holds (worker, version of θ that it had pulled): a released worker may read late, when θ has moved on.
    After `updates` updates everything is dropped. Returns θ after each update, and which messages were kept.
    """
    thetas, t, inbox, kept = [start.copy()], [0] * workers, [], []
    for k, pulled in order:
        u = gradient(thetas[pulled], k, t[k])
        t[k] += 1
        kept.append(pulled == len(thetas) - 1 < updates)
        if kept[-1]:
            inbox.append(u)
        if len(inbox) == workers - backup:
            thetas.append(thetas[-1] - eta * np.mean(inbox, axis=0))
            inbox = []
    return thetas[1:], kept


def aeasgd(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    alpha: float,
    period: int,
    steps: int,
) -> list[np.ndarray]:
    """Algorithm 1 of the paper, per worker with its own clock t_k.

    x ← x_k;  if τ divides t_k: x_k ← x_k − α(x − θ), θ ← θ + α(x − θ);  x_k ← x_k − η g(x);  t_k ← t_k + 1.
    """
    theta, x_k, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    for k in order:
        first = True
        while t[k] < steps and (first or t[k] % period != 0):
            x = x_k[k].copy()
            if t[k] % period == 0:
                force = alpha * (x - theta)
                x_k[k] = x_k[k] - force
                theta = theta + force
                path.append(theta.copy())
            x_k[k] = x_k[k] - eta * gradient(x, k, t[k])
            t[k] += 1
            first = False
    return path


# Problems.


def mlp_gradient(x: np.ndarray, y: np.ndarray, sizes: Sequence[int]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Gradient of the mean softmax cross-entropy of a tanh network on the rows given, by hand.

    The flat vector holds W_1, b_1, W_2, b_2, ... with W_i of shape [in, out].
    """
    x = x.astype(np.float64)
    shapes = list(itertools.pairwise(sizes))

    def gradient(params: np.ndarray, rows: np.ndarray) -> np.ndarray:
        layers, start = [], 0
        for n, m in shapes:
            layers.append((params[start : start + n * m].reshape(n, m), params[start + n * m : start + n * m + m]))
            start += n * m + m
        activations = [x[rows]]
        for i, (w, b) in enumerate(layers):
            z = activations[-1] @ w + b
            activations.append(z if i == len(layers) - 1 else np.tanh(z))
        logits = activations[-1] - activations[-1].max(axis=1, keepdims=True)
        delta = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        delta[np.arange(len(rows)), y[rows]] -= 1
        delta /= len(rows)
        parts: list[np.ndarray] = []
        for i in range(len(layers) - 1, -1, -1):
            parts = [(activations[i].T @ delta).ravel(), delta.sum(axis=0), *parts]
            if i:
                delta = (delta @ layers[i][0].T) * (1 - activations[i] ** 2)
        return np.concatenate(parts)

    return gradient
