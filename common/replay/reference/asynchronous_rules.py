"""The asynchronous schemes: each message is applied when it arrives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .one_worker import Gradient, window


def async_sgd(
    start: np.ndarray, gradient: Gradient, order: Sequence[int], workers: int, *, eta: float
) -> list[np.ndarray]:
    """Execute on worker k: u = g_k(x_k), push; server: θ ← θ − η u; worker: x_k ← θ.

    `order` lists the pushing workers; ~k stands for a lost worker k that starts anew: x_k ← θ.
    """
    theta, x, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    for k in order:
        if k < 0:
            x[~k] = theta.copy()
            continue
        u = gradient(x[k], k, t[k])
        t[k] += 1
        theta = theta - eta * u
        x[k] = theta.copy()
        path.append(theta.copy())
    return path


def async_sgd_reading_apart(
    start: np.ndarray, gradient: Gradient, events: Sequence[tuple[int, int]], workers: int, *, eta: float
) -> list[np.ndarray]:
    """Execute θ ← θ − η g_k(θ_r), where r is the number of updates in the θ that worker k read; `events` are (k, r)."""
    path, t = [start.copy()], [0] * workers
    for k, read in events:
        path.append(path[-1] - eta * gradient(path[read], k, t[k]))
        t[k] += 1
    return path[1:]


def downpour(
    start: np.ndarray,
    gradient: Gradient,
    events: Sequence[tuple[int, str]],
    workers: int,
    *,
    eta: float,
    n_push: int,
    n_fetch: int,
    runs: Sequence[int],
    dean: bool = False,
    gamma: float | None = None,
    accumulator: float = 0.1,
    first: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Execute the loop of Dean et al. on each worker, as written in their appendix, with s from 0.

        if s mod n_fetch = 0:  x ← θ
        g = g_k(x);  A ← A + g;  x ← x − η g
        if s mod n_push = 0:  push A;  A ← 0
        s ← s + 1

    At the end of a run (of each of its `runs`, in steps, if it was resumed) the rest of A is pushed, and θ fetched.
    This is `dean`; otherwise windows are whole: a push if s + 1 mod n_push = 0.

    Server: Adagrad with step γ, S ← S + A², θ ← θ − γ A/√S; without γ plain SGD, θ ← θ − η A ("easy").
    `events` lists (worker, event) in order: "push", "pull" (a fetch), or "exchange" (a push, then a pull).
    `first[k]` is the number of updates that worker k waited for before its first fetch. A lost worker starts anew
    ("join"): x ← θ, A ← 0.

    Raises:
        ValueError: the loop does not produce these `events`.
    """
    path, squares, history = [], np.full_like(start, accumulator), [start.copy()]
    x, a = [start] * workers, [np.zeros_like(start) for _ in range(workers)]

    def push(u: np.ndarray) -> None:
        nonlocal squares
        squares = squares + u * u
        history.append(history[-1] - (eta * u if gamma is None else gamma * u / np.sqrt(squares)))

    def loop(k: int) -> Iterator[str]:
        x[k], t = history[first[k] if first else 0], 0
        for steps in runs:
            for s in range(steps):
                if s > 0 and s % n_fetch == 0:
                    x[k] = history[-1]
                    yield "pull"
                g = gradient(x[k], k, t)
                a[k], x[k], t = a[k] + g, x[k] - eta * g, t + 1
                if (s if dean else s + 1) % n_push == 0 or s == steps - 1:
                    push(a[k])
                    a[k] = np.zeros_like(start)
                    yield "push"
            x[k] = history[-1]
            yield "pull"

    loops = [loop(k) for k in range(workers)]
    for k, event in events:
        if event == "join":
            x[k], a[k] = history[-1], np.zeros_like(start)
            continue
        for contact in ("push", "pull") if event == "exchange" else (event,):
            if (expected := next(loops[k], "nothing")) != contact:
                raise ValueError(f"worker {k} has to {expected}, by the rule, where the record has a {contact}")
        path.append(history[-1])
    return path


def agn(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    period: int,
    steps: int,
    gamma: float | None = None,
    distance_scale: float = np.inf,
) -> list[np.ndarray]:
    """Execute on a worker: x ← pull; H times a ← a + η g, x ← x − η g; push a/H. Server: θ ← θ − a/H.

    With γ, a rate of the server's own, θ ← θ − γ (1/H) Σ g. With a finite `distance_scale` c the thesis' ADAG:
    θ ← θ − u / ((θ − m_k)²/c + 1), elementwise, where m_k is the θ that worker k pulled. ~k in `order` is a
    lost worker k that starts anew: x_k, m_k ← θ.
    """
    theta, x, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    anchor = [start.copy() for _ in range(workers)]
    for k in order:
        if k < 0:
            x[~k], anchor[~k] = theta.copy(), theta.copy()
            continue
        length = min(period, steps - t[k])
        _, a = window(x[k], gradient, k, t[k], length, eta)
        t[k] += length
        u = (eta if gamma is None else gamma) * a / length
        theta = theta - u / ((theta - anchor[k]) ** 2 / distance_scale + 1)
        x[k], anchor[k] = theta.copy(), theta.copy()
        path.append(theta.copy())
    return path


def dynsgd(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    period: int,
    steps: int,
) -> list[np.ndarray]:
    """Execute on a worker: as DOWNPOUR; push (Σ η g, c_k). Server: θ ← θ − u/(τ + 1), τ = c − c_k; c ← c + 1.

    ~k in `order` is a lost worker k that starts anew: x_k ← θ, c_k ← c.
    """
    theta, x, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    pulled = [0] * workers
    for k in order:
        c = len(path)
        if k < 0:
            x[~k], pulled[~k] = theta.copy(), c
            continue
        length = min(period, steps - t[k])
        _, a = window(x[k], gradient, k, t[k], length, eta)
        t[k] += length
        theta = theta - eta * a / (c - pulled[k] + 1)
        pulled[k] = c + 1
        x[k] = theta.copy()
        path.append(theta.copy())
    return path


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
    """Execute Algorithm 1 of the paper, each worker with its own clock t_k.

    x ← x_k;  if τ divides t_k: x_k ← x_k − α(x − θ), θ ← θ + α(x − θ);  x_k ← x_k − η g(x);  t_k ← t_k + 1.
    ~k in `order` is a lost worker k that starts anew: x_k ← θ.
    """
    theta, x_k, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    for k in order:
        if k < 0:
            x_k[~k] = theta.copy()
            continue
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


def aeamsgd(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    alpha: float,
    delta: float,
    period: int,
    steps: int,
) -> list[np.ndarray]:
    """Execute Algorithm 2 of the paper: as `aeasgd`, with the last line v ← δ v − η g(x + δ v), x_k ← x_k + v.

    ~k in `order` is a lost worker k that starts anew: x_k ← θ, v ← 0.
    """
    theta, x_k, v, path = start.copy(), [start.copy() for _ in range(workers)], [0 * start for _ in range(workers)], []
    t = [0] * workers
    for k in order:
        if k < 0:
            x_k[~k], v[~k] = theta.copy(), 0 * start
            continue
        for h in range(min(period, steps - t[k])):
            x = x_k[k].copy()
            if h == 0:
                force = alpha * (x - theta)
                x_k[k] = x_k[k] - force
                theta = theta + force
                path.append(theta.copy())
            v[k] = delta * v[k] - eta * gradient(x + delta * v[k], k, t[k])
            x_k[k] = x_k[k] + v[k]
            t[k] += 1
    return path
