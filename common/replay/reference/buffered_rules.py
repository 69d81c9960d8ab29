"""The asynchronous schemes of which several messages, of whichever workers, make one update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .asynchronous_rules import window
from .gradients import Gradient
from .inner_steps import Period, length_at
from .sending import Send, as_it_is


def fedbuff(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    epsilon: float,
    size: int,
    p: float,
    period: Period,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute Algorithm 1 of the paper: returns w after each step of the server.

    Client: y ← w as pulled, H times y ← y − η g(y); send Δ = w − y. Server: Δ̄ ← Δ̄ + Δ/(1 + τ)^p, k ← k + 1; if k = K:
    w ← w − ε Δ̄/K, Δ̄ ← 0, k ← 0. ~k in `order` is a lost client k that starts anew from w.
    """
    w, t, pulled = [start.copy()], [0] * workers, [0] * workers
    total, received = np.zeros_like(start), 0
    for k in order:
        if k < 0:
            pulled[~k] = len(w) - 1
            continue
        began, length = w[pulled[k]], length_at(period, t[k], steps)
        y, _ = window(began, gradient, k, t[k], length, eta)
        t[k] += length
        tau = len(w) - 1 - pulled[k]
        total, received = total + send(began - y, k) / (1 + tau) ** p, received + 1
        if received == size:
            w.append(w[-1] - epsilon * total / size)
            total, received = np.zeros_like(start), 0
        pulled[k] = len(w) - 1
    return w[1:]


def softsync(
    start: np.ndarray, gradient: Gradient, order: Sequence[int], workers: int, *, alpha: float, c: int
) -> list[np.ndarray]:
    """Execute θ ← θ − (1/c) Σ α(τ_l) g_l with every c gradients, where α(τ) is α₀/τ, and α₀ if τ = 0.

    Returns θ after each update. ~l in `order` is a lost learner l that starts anew from θ.
    """
    theta, t, timestamp, steps = [start.copy()], [0] * workers, [0] * workers, []
    for learner in order:
        if learner >= 0:
            tau = len(theta) - 1 - timestamp[learner]
            rate = alpha / tau if tau else alpha
            steps.append(rate * gradient(theta[timestamp[learner]], learner, t[learner]))
            t[learner] += 1
            if len(steps) == c:
                theta.append(theta[-1] - np.mean(steps, axis=0))
                steps = []
        timestamp[max(learner, ~learner)] = len(theta) - 1
    return theta[1:]


def ringleader(
    start: np.ndarray, gradient: Gradient, order: Sequence[int], workers: int, *, eta: float
) -> list[np.ndarray]:
    """Execute Algorithm 1 of the paper: returns x after each gradient, whether or not it makes a step.

    Phase 1 collects gradients until each worker has one in the table. Phase 2 makes one step of each worker: with the
    one that has filled the table, and when a gradient of another arrives; further gradients are for the next table.
    A worker gets x with its step, and computes there until the next. ~k in `order` is a lost worker k that starts anew
    from x.
    """
    x, t, path = start.copy(), [0] * workers, []
    given, at = [start.copy()] * workers, [start.copy()] * workers
    table: list[list[np.ndarray]] = [[] for _ in range(workers)]
    later: list[list[np.ndarray]] = [[] for _ in range(workers)]
    left: set[int] = set()  # workers whose step is to come, in phase 2
    for k in order:
        if k < 0:
            at[~k] = x
            continue
        in_phase_2, g = bool(left), gradient(at[k], k, t[k])
        t[k] += 1
        (later if in_phase_2 and k not in left else table)[k].append(g)
        if not in_phase_2 and all(table):
            left = set(range(workers))
        if k in left:
            x = x - eta * np.mean([np.mean(gradients, axis=0) for gradients in table], axis=0)
            given[k] = x
            left.remove(k)
            if not left:
                table, later = later, [[] for _ in range(workers)]
        at[k] = given[k]
        path.append(x)
    return path


def malenia(
    start: np.ndarray, gradient: Gradient, order: Sequence[int], workers: int, *, eta: float, s: float
) -> list[np.ndarray]:
    """Execute method 6 of the paper, with S = s n: returns x after each gradient, whether or not it makes a step.

    A gradient that was asked for at the present x is kept, another ignored; its worker is asked again. While
    (1/n Σ 1/B_i)^−1 < S/n, wait for the next; then x ← x − η 1/n Σ g_i/B_i. ~k in `order` is a lost worker k that
    starts anew from x, unasked.
    """
    x, t, path, iteration = start.copy(), [0] * workers, [], 0
    at, asked = [start.copy()] * workers, [0] * workers
    kept: list[list[np.ndarray]] = [[] for _ in range(workers)]
    for k in order:
        if k < 0:
            at[~k] = x
            continue
        g = gradient(at[k], k, t[k])
        t[k] += 1
        if asked[k] == iteration:
            kept[k].append(g)
            if all(kept) and workers / sum(1 / len(gradients) for gradients in kept) > s * (1 - 1e-5):
                x = x - eta * np.mean([np.mean(gradients, axis=0) for gradients in kept], axis=0)
                kept, iteration = [[] for _ in range(workers)], iteration + 1
        at[k], asked[k] = x, iteration
        path.append(x)
    return path
