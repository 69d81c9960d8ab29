"""The rules for clients that take turns, unequal data, unequal numbers of steps, and hostile workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from .gradients import Gradient
from .inner_steps import Period, inner_window, length_at, lengths, sgd_step
from .sending import Send, as_it_is
from .synchronous_rules import after_steps, no_states


def by_turns(
    gradient: Gradient, clients: int, workers: int, seed: int, period: int, first: int | None = None
) -> Gradient:
    """Return the gradient of the client that worker k plays in the round of its step t, on that client's next batch.

    McMahan et al. 2017: a random set of the clients takes part in each round, here the first W of a permutation. The
    first round has `first` steps if that is given, the others have a period.
    """
    first = period if first is None else first
    turns, done = list[list[tuple[int, int]]](), defaultdict[int, int](int)

    def of_client(x: np.ndarray, k: int, t: int) -> np.ndarray:
        number = (t + period - first) // period
        while len(turns) <= number:
            order = np.random.default_rng([seed, 0, 1 + len(turns)]).permutation(clients)
            turns.append([(client, done[client]) for client in order[:workers].tolist()])
            for client, _ in turns[-1]:
                done[client] += period if len(turns) > 1 else first
        client, before = turns[number][k]
        return gradient(x, client, before + ((t - first) % period if number else t))

    return of_client


def scaffold(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, epsilon: float, period: Period, steps: int
) -> list[np.ndarray]:
    """Execute y_k ← θ; H times y_k ← y_k − η (g − c_k + c); c_k⁺ = c_k − c + (θ − y_k)/(H η), option II.

    Then θ ← θ + ε mean_k (y_k − θ); c ← c + mean_k (c_k⁺ − c_k); c_k ← c_k⁺.
    """
    theta, c, path = start.copy(), [np.zeros_like(start) for _ in range(workers)], []
    common = np.zeros_like(start)
    for t, length in lengths(period, steps):
        y = after_steps(
            theta, no_states(workers), plus(gradient, [common - c_k for c_k in c]), t, length, eta, sgd_step
        )
        new = [c_k - common + (theta - y_k) / (length * eta) for c_k, y_k in zip(c, y, strict=True)]
        theta = theta + epsilon * np.mean([y_k - theta for y_k in y], axis=0)
        common = common + np.mean([n - c_k for n, c_k in zip(new, c, strict=True)], axis=0)
        c = new
        path.append(theta.copy())
    return path


def proxskip(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    p: float,
    ends: Sequence[int],
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute x_k ← x_k − η (g − h_k); after the steps `ends`, counted from 1: θ ← mean_k x_k.

    There h_k ← h_k + (p/η) (θ − x_k); x_k ← θ. Return θ after each of them.
    """
    x, h, path = [start.copy() for _ in range(workers)], [np.zeros_like(start) for _ in range(workers)], []
    last = set(ends)
    for t in range(max(ends, default=0)):
        x = [x[k] - eta * (gradient(x[k], k, t) - h[k]) for k in range(workers)]
        if t + 1 in last:
            theta = np.mean([send(x[k], k) for k in range(workers)], axis=0)
            h = [h[k] + p / eta * (theta - x[k]) for k in range(workers)]
            x = [theta.copy() for _ in range(workers)]
            path.append(theta)
    return path


def plus(gradient: Gradient, corrections: Sequence[np.ndarray]) -> Gradient:
    """Return the gradient of each worker plus its correction."""
    return lambda x, k, t: gradient(x, k, t) + corrections[k]


def fedprox(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    mu: float,
    period: Period,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H steps of SGD from θ on f_k(x) + μ/2 ‖x − θ‖²; θ ← mean_k x_k."""
    theta, path = start.copy(), []
    for t, length in lengths(period, steps):
        x = after_steps(theta, no_states(workers), proximal(gradient, theta, mu), t, length, eta, sgd_step, send)
        theta = np.mean(x, axis=0)
        path.append(theta.copy())
    return path


def feddyn(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    alpha: float,
    period: Period,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H steps of SGD from θ on f_k(x) − ⟨λ_k, x⟩ + α/2 ‖x − θ‖²; λ_k ← λ_k − α (x_k − θ).

    Then s ← s − α mean_k (x_k − θ); θ ← mean_k x_k − s/α.
    """
    theta, s, path = start.copy(), np.zeros_like(start), []
    slopes = [np.zeros_like(start) for _ in range(workers)]
    for t, length in lengths(period, steps):
        near = proximal(plus(gradient, [-slope for slope in slopes]), theta, alpha)
        x = after_steps(theta, no_states(workers), near, t, length, eta, sgd_step)
        slopes = [slope - alpha * (x_k - theta) for slope, x_k in zip(slopes, x, strict=True)]
        sent = np.mean([send(x_k, k) for k, x_k in enumerate(x)], axis=0)
        s = s - alpha * (sent - theta)
        theta = sent - s / alpha
        path.append(theta.copy())
    return path


def fedexp(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    period: Period,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H steps of SGD from θ; Δ_k = θ − x_k; Δ = mean_k Δ_k.

    Then θ ← θ − max(1, mean_k ‖Δ_k‖²/(2 (‖Δ‖² + ε))) Δ.
    """
    theta, path = start.copy(), []
    for t, length in lengths(period, steps):
        x = after_steps(theta, no_states(workers), gradient, t, length, eta, sgd_step)
        moves = [theta - x_k for x_k in x]
        move = np.mean([send(delta_k, k) for k, delta_k in enumerate(moves)], axis=0)
        square = np.mean([delta_k @ delta_k for delta_k in moves])
        theta = theta - np.maximum(1, square / (2 * (move @ move + epsilon))) * move
        path.append(theta.copy())
    return path


def fedasync(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    rho: float,
    alpha: float,
    weight: str,
    exponent: float,
    patience: int,
    slope: float,
    period: Period,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute on a worker: H steps x ← x − η (g(x) + ρ (x − a)) from the pulled center a; push x.

    Server, τ updates after the pull: θ ← (1 − α s(τ)) θ + α s(τ) x, where s is 1, (τ + 1)^−exponent, or 1 if τ is at
    most the patience b and else 1/(slope (τ − b) + 1). ~k in `order` is a lost worker k that starts anew at θ.
    """
    theta, path, t = start.copy(), [], [0] * workers
    pulled, versions = [start.copy() for _ in range(workers)], [0] * workers
    for k in order:
        if k >= 0:
            length = length_at(period, t[k], steps)
            near = proximal(gradient, pulled[k], rho)
            x = send(inner_window(pulled[k], {}, near, k, t[k], length, eta, sgd_step), k)
            t[k] += length
            tau = len(path) - versions[k]
            s = {
                "constant": 1.0,
                "polynomial": (tau + 1.0) ** -exponent,
                "hinge": 1.0 if tau <= patience else 1 / (slope * (tau - patience) + 1),
            }[weight]
            theta = (1 - alpha * s) * theta + alpha * s * x
            path.append(theta.copy())
        k = max(k, ~k)
        pulled[k], versions[k] = theta.copy(), len(path)
    return path


def proximal(gradient: Gradient, theta: np.ndarray, mu: float) -> Gradient:
    """Return the gradient of f_k(x) + μ/2 ‖x − θ‖²."""
    return lambda x, k, t: gradient(x, k, t) + mu * (x - theta)


def fednova(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    work: Sequence[float],
    period: Period,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H_k local steps from θ; d_k = (θ − x_k)/H_k; θ ← θ − mean_k(H_k) mean_k(d_k)."""
    theta, done, path = start.copy(), [0] * workers, []
    for _, length in lengths(period, steps):
        d = []
        h = [max(1, round(work[k % len(work)] * length)) for k in range(workers)]
        for k in range(workers):
            x = inner_window(theta, {}, gradient, k, done[k], h[k], eta, sgd_step)
            done[k] += h[k]
            d.append(send((theta - x) / h[k], k))
        theta = theta - sum(h) / workers * np.mean(d, axis=0)
        path.append(theta.copy())
    return path
