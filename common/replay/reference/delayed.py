"""The asynchronous schemes that compensate or limit delay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .one_worker import Gradient, adamw_window


def dc_asgd(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    compensation: float,
    m: float | None = None,
) -> list[np.ndarray]:
    """Execute a push θ ← θ − η (g + λ g ⊙ g ⊙ (θ − w_k)), then a pull by worker k, w_k ← θ. `order` as in `async_sgd`.

    With `m` (DC-ASGD-a): MeanSquare ← m MeanSquare + (1 − m) g ⊙ g first, and λ = λ₀/√(MeanSquare + 10⁻⁷).
    """
    theta, backup, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    mean_square = 0 * start
    for k in order:
        if k < 0:
            backup[~k] = theta.copy()
            continue
        g = gradient(backup[k], k, t[k])  # the backup equals the worker's parameters
        t[k] += 1
        lam = compensation
        if m is not None:
            mean_square = m * mean_square + (1 - m) * g**2
            lam = compensation / np.sqrt(mean_square + 1e-7)
        theta = theta - eta * (g + lam * g**2 * (theta - backup[k]))
        backup[k] = theta.copy()
        path.append(theta.copy())
    return path


def ringmaster(
    start: np.ndarray, gradient: Gradient, order: Sequence[int], workers: int, *, eta: float, threshold: int
) -> tuple[list[np.ndarray], list[bool]]:
    """Apply a gradient of delay τ < R, θ ← θ − η g, which adds one to the delays of all others; ignore it otherwise.

    In both cases its worker continues from θ, and its delay is 0. `order` as in `async_sgd`. Returns θ after each
    message, and for each message whether it was applied.
    """
    theta, x, t = start.copy(), [start.copy() for _ in range(workers)], [0] * workers
    delay, path, used = [0] * workers, [], []
    for k in order:
        if k >= 0:
            g = gradient(x[k], k, t[k])
            t[k] += 1
            used.append(delay[k] < threshold)
            if used[-1]:
                theta = theta - eta * g
                delay = [d + 1 for d in delay]
            path.append(theta.copy())
        j = k if k >= 0 else ~k
        x[j], delay[j] = theta.copy(), 0
    return path, used


def ssp(
    start: np.ndarray, gradient: Gradient, events: Sequence[tuple[int, int]], workers: int, *, eta: float, slack: int
) -> tuple[list[np.ndarray], bool]:
    """Execute θ ← θ − (η/W) g_k(x), where x is θ as worker k read it, and check the staleness bound.

    `events` holds (worker, updates in the θ that it had read). Returns θ after each update, and True if each read saw
    all updates of its worker, and those of the first c − s clocks of all workers, c being the clocks of its worker.
    """
    thetas, clocks, lawful = [start.copy()], [0] * workers, True
    seen = [[0] * workers]  # clocks of all, after each update
    for k, read in events:
        lawful &= seen[read][k] == clocks[k] and min(seen[read]) >= clocks[k] - slack
        thetas.append(thetas[-1] - eta / workers * gradient(thetas[read], k, clocks[k]))
        clocks[k] += 1
        seen.append(list(clocks))
    return thetas[1:], lawful


def async_diloco(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    epsilon: float,
    beta: float,
    c: float,
    period: int,
    steps: int,
    weight_decay: float,
) -> list[np.ndarray]:
    """Execute Delayed Nesterov, with N = W, for the n-th pseudo-gradient g = (θ as pulled) − x.

        always          D ← D + g
        N divides n     m ← β m + D/N;  θ ← θ − ε ((1 − cN + c) β m + g/N);  D ← 0
        otherwise       θ ← θ − ε (c β m + g/N)

    Worker: H AdamW steps from the θ that it pulled; its moments persist.
    """
    theta, m, buffer, path = start.copy(), 0 * start, 0 * start, []
    pulled, t = [start.copy() for _ in range(workers)], [0] * workers
    moments = [(0 * start, 0 * start) for _ in range(workers)]
    for n, k in enumerate(order, 1):
        length = min(period, steps - t[k])
        x, moments[k] = adamw_window(pulled[k], moments[k], gradient, k, t[k], length, eta, weight_decay)
        t[k] += length
        g = pulled[k] - x
        buffer = buffer + g
        if n % workers == 0:
            m = beta * m + buffer / workers
            theta = theta - epsilon * ((1 - c * workers + c) * beta * m + g / workers)
            buffer = 0 * start
        else:
            theta = theta - epsilon * (c * beta * m + g / workers)
        pulled[k] = theta.copy()
        path.append(theta.copy())
    return path
