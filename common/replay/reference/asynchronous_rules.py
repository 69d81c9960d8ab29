"""The asynchronous schemes, each of whose messages is applied as it arrives, and a single worker's steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .gradients import Gradient
from .inner_steps import Period, length_at
from .sending import Send, as_it_is


def serial(start: np.ndarray, gradient: Gradient, steps: int, *, eta: float) -> list[np.ndarray]:
    """Execute θ ← θ − η g(θ)."""
    theta, path = start.copy(), []
    for t in range(steps):
        theta = theta - eta * gradient(theta, 0, t)
        path.append(theta.copy())
    return path


def window(x: np.ndarray, gradient: Gradient, k: int, t: int, length: int, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """Execute `length` local steps from x: x ← x − η g, A ← A + g. Returns x and A."""
    a = np.zeros_like(x)
    for h in range(length):
        g = gradient(x, k, t + h)
        x, a = x - eta * g, a + g
    return x, a


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
    send: Send = as_it_is,
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
                    push(send(a[k], k))
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
    period: Period,
    steps: int,
    gamma: float | None = None,
    distance_scale: float = np.inf,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute on a worker: x ← pull; H times a ← a + η g, x ← x − η g; push a/H. Server: θ ← θ − a/H.

    With γ, a rate of the server's own, θ ← θ − γ (1/H) Σ g. With a finite `distance_scale` c the thesis' ADAG:
    θ ← θ − u / ((θ − m_k)²/c + 1), elementwise, where m_k is the θ that worker k pulled. ~k in `order` is a
    lost worker k that starts anew: x_k, m_k ← θ.
    """
    theta, x, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    pulled_center = [start.copy() for _ in range(workers)]
    for k in order:
        if k < 0:
            x[~k], pulled_center[~k] = theta.copy(), theta.copy()
            continue
        length = length_at(period, t[k], steps)
        _, a = window(x[k], gradient, k, t[k], length, eta)
        t[k] += length
        if distance_scale < np.inf:
            u = send(eta * a / length, k)
        else:
            u = (eta if gamma is None else gamma) * send(a / length, k)
        theta = theta - u / ((theta - pulled_center[k]) ** 2 / distance_scale + 1)
        x[k], pulled_center[k] = theta.copy(), theta.copy()
        path.append(theta.copy())
    return path


def dynsgd(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    period: Period,
    steps: int,
    send: Send = as_it_is,
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
        length = length_at(period, t[k], steps)
        _, a = window(x[k], gradient, k, t[k], length, eta)
        t[k] += length
        theta = theta - eta * send(a, k) / (c - pulled[k] + 1)
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
    at_once: bool = False,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute Algorithm 1 of the paper, each worker with its own clock t_k.

    x ← x_k;  if τ divides t_k: x_k ← x_k − α(x − θ), θ ← θ + α(x − θ);  x_k ← x_k − η g(x);  t_k ← t_k + 1.
    A script, which may end at any step, exchanges in its last one, too. ~k in `order` is a lost worker k that starts
    anew after its last exchange: x_k ← θ; `at_once` if it then exchanges without a step before.
    """
    elastic = {"eta": eta, "alpha": alpha, "period": period, "steps": steps, "at_once": at_once, "send": send}
    return aeamsgd(start, gradient, order, workers, delta=0.0, **elastic)  # v is then the step −η g(x)


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
    at_once: bool = False,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute Algorithm 2 of the paper: as `aeasgd`, with the last line v ← δ v − η g(x + δ v), x_k ← x_k + v.

    ~k in `order` is a lost worker k that starts anew: x_k ← θ, v ← 0.
    """
    theta, x_k, v, path = start.copy(), [start.copy() for _ in range(workers)], [0 * start for _ in range(workers)], []
    exchanges, t = [0] * workers, [0] * workers
    for k in order:
        if k < 0:
            x_k[~k], v[~k] = theta.copy(), 0 * start
            if at_once:
                t[~k] = period * exchanges[~k]
            continue
        last = min(period * exchanges[k], steps - 1)
        for s in range(t[k], last + 1):
            x = x_k[k].copy()
            if s == last:
                force = alpha * (send(x, k) - theta)
                x_k[k] = x_k[k] - force
                theta = theta + force
                path.append(theta.copy())
            v[k] = delta * v[k] - eta * gradient(x + delta * v[k], k, s)
            x_k[k] = x_k[k] + v[k]
        exchanges[k], t[k] = exchanges[k] + 1, last + 1
    return path


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
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    threshold: int,
    beta: float = 0.0,
    direction: Callable[[np.ndarray], np.ndarray] = lambda m: m,
) -> tuple[list[np.ndarray], list[bool]]:
    """Apply a gradient of delay τ < R, m ← β m + (1 − β) g;  θ ← θ − η φ(m), and ignore it otherwise.

    A gradient that is applied adds one to the delays of all others. In both cases its worker continues from θ, and its
    delay is 0. `order` as in `async_sgd`; a gradient that is stopped as its delay is R, is in it like one that is
    ignored. `direction` is φ. Returns θ after each message, and for each message whether it was applied.
    """
    theta, m, x, t = start.copy(), 0 * start, [start.copy() for _ in range(workers)], [0] * workers
    delay, path, used = [0] * workers, [], []
    for k in order:
        if k >= 0:
            g = gradient(x[k], k, t[k])
            t[k] += 1
            used.append(delay[k] < threshold)
            if used[-1]:
                m = beta * m + (1 - beta) * g
                theta = theta - eta * direction(m)
                delay = [d + 1 for d in delay]
            path.append(theta.copy())
        j = k if k >= 0 else ~k
        x[j], delay[j] = theta.copy(), 0
    return path, used


def k_batch(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    count: int,
    present: bool,
) -> tuple[list[np.ndarray], list[bool]]:
    """Collect K gradients, of any workers, and step with their mean: θ ← θ − (η/K) Σ g. `order` as in `async_sgd`.

    The sender continues at once, from the θ of that moment. `present`: ignore gradients not taken at the present θ.
    Returns θ after each step, and for each gradient whether it was used.
    """
    thetas, read, t, batch, used = [start.copy()], [0] * workers, [0] * workers, [], []
    for k in order:
        if k >= 0:
            g = gradient(thetas[read[k]], k, t[k])
            t[k] += 1
            used.append(not present or read[k] == len(thetas) - 1)
            batch += [g] * used[-1]
            if len(batch) == count:
                thetas.append(thetas[-1] - eta * np.mean(batch, axis=0))
                batch = []
        read[k if k >= 0 else ~k] = len(thetas) - 1
    return thetas[1:], used


def delay_adaptive(
    start: np.ndarray, gradient: Gradient, order: Sequence[int], workers: int, *, eta: float
) -> list[np.ndarray]:
    """Apply a gradient of delay τ, the updates since its worker pulled: θ ← θ − η min(1, W/τ) g; `order` as above."""
    path, t, pulled = [start.copy()], [0] * workers, [0] * workers
    for k in order:
        now = len(path) - 1
        if k < 0:
            pulled[~k] = now
            continue
        tau, g = now - pulled[k], gradient(path[pulled[k]], k, t[k])
        t[k] += 1
        path.append(path[-1] - eta * (1 if tau <= workers else workers / tau) * g)
        pulled[k] = now + 1
    return path[1:]


def rescaled_asgd(
    start: np.ndarray, gradient: Gradient, order: Sequence[int], workers: int, *, eta: float
) -> list[np.ndarray]:
    """Apply a gradient whose computation took n updates, its own among them: θ ← θ − η (n/W) g; `order` as above."""
    path, t, began = [start.copy()], [0] * workers, [0] * workers
    for k in order:
        if k >= 0:
            g = gradient(path[began[k]], k, t[k])
            t[k] += 1
            path.append(path[-1] - eta * (len(path) - began[k]) / workers * g)
        began[max(k, ~k)] = len(path) - 1
    return path[1:]


def ssp(
    start: np.ndarray, gradient: Gradient, events: Sequence[tuple[int, int]], workers: int, *, eta: float, slack: int
) -> tuple[list[np.ndarray], bool]:
    """Execute θ ← θ − (η/W) g_k(x), where x is θ as worker k read it, and check the staleness bound.

    `events` holds (worker, updates in the θ that it had read). Returns θ after each update, and True if each read saw
    all updates of its worker, and those of the first c − s clocks of all workers, c being the clocks of its worker.
    """
    thetas, clocks, lawful = [start.copy()], [0] * workers, True
    clocks_after = [[0] * workers]  # clocks of all, after each update
    for k, read in events:
        lawful &= clocks_after[read][k] == clocks[k] and min(clocks_after[read]) >= clocks[k] - slack
        thetas.append(thetas[-1] - eta / workers * gradient(thetas[read], k, clocks[k]))
        clocks[k] += 1
        clocks_after.append(list(clocks))
    return thetas[1:], lawful
