"""Every scheme in NumPy, float64, straight from the paper's equations. Imports nothing from the code under test.

A recorded run is a total order of events on the server: (version, worker, staleness, accepted). Each function here
executes the paper's equations in a given order and returns the center after every event.

`gradient(x, k, t)` is the gradient of worker k's t-th batch at x: a function, so the same code serves a neural
network on recorded batches, a quadratic, or a gradient drawn from a list.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

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
    """Worker k: u = g_k(x_k), push; server: θ ← θ − η u; worker: x_k ← θ.

    `order` is who pushed when; ~k for worker k, who was lost and starts anew: x_k ← θ.
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


def window(x: np.ndarray, gradient: Gradient, k: int, t: int, length: int, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """`length` local steps from x: x ← x − η g, A ← A + g. Returns x and A."""
    a = np.zeros_like(x)
    for h in range(length):
        g = gradient(x, k, t + h)
        x, a = x - eta * g, a + g
    return x, a


def downpour(
    start: np.ndarray,
    gradient: Gradient,
    events: Sequence[tuple[int, str]],
    workers: int,
    *,
    eta: float,
    n_push: int,
    n_fetch: int,
    legs: Sequence[int],
    dean: bool = False,
    gamma: float | None = None,
    accumulator: float = 0.1,
    first: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Each worker runs the loop of Dean et al., as written in their appendix, with s from 0:

        if s mod n_fetch = 0:  x ← θ
        g = g_k(x);  A ← A + g;  x ← x − η g
        if s mod n_push = 0:  push A;  A ← 0
        s ← s + 1

    and at the end of a run (of each of its `legs`, in steps, if it was resumed) what is left is pushed, and θ fetched.
    That is `dean`; otherwise windows are whole: a push if s + 1 mod n_push = 0.

    Server: Adagrad with step γ, S ← S + A², θ ← θ − γ A/√S; without γ plain SGD, θ ← θ − η A ("easy").
    `events` is who pushed ("push"), fetched ("pull"), or did one right after the other ("exchange"), in which order.
    `first[k]` is the number of updates that worker k waited for before its first fetch. A worker that was lost starts
    anew ("join"): x ← θ, A ← 0.
    """
    path, squares, history = [], np.full_like(start, accumulator), [start.copy()]
    x, a = [None] * workers, [np.zeros_like(start) for _ in range(workers)]

    def push(u: np.ndarray) -> None:
        nonlocal squares
        squares = squares + u * u
        history.append(history[-1] - (eta * u if gamma is None else gamma * u / np.sqrt(squares)))

    def loop(k: int) -> Iterator[str]:
        x[k], t = history[first[k] if first else 0], 0
        for steps in legs:
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
            assert next(loops[k]) == contact
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
    """Worker: x ← pull; H times a ← a + η g, x ← x − η g; push a/H. Server: θ ← θ − a/H.

    With γ, a rate of the server's own, θ ← θ − γ (1/H) Σ g. With a finite `distance_scale` c the thesis' ADAG:
    θ ← θ − u / ((θ − m_k)²/c + 1), elementwise, where m_k is what worker k pulled.
    """
    theta, x, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    anchor = [start.copy() for _ in range(workers)]
    for k in order:
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
    """Worker: as DOWNPOUR; push (Σ η g, c_k). Server: θ ← θ − u/(τ + 1), τ = c − c_k; c ← c + 1."""
    theta, x, t, path = start.copy(), [start.copy() for _ in range(workers)], [0] * workers, []
    pulled = [0] * workers
    for c, k in enumerate(order):
        length = min(period, steps - t[k])
        _, a = window(x[k], gradient, k, t[k], length, eta)
        t[k] += length
        theta = theta - eta * a / (c - pulled[k] + 1)
        pulled[k] = c + 1
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
    sizes: Sequence[int] = (),
) -> tuple[list[np.ndarray], list[bool]]:
    """The server keeps the first R = W − b gradients computed at the present θ, averages, steps, releases all.

    `order` holds (worker, version of θ that it had pulled): a released worker may read late, when θ has moved on.
    After `updates` updates everything is dropped. `sizes`: messages in each update, where workers were lost. Returns θ
    after each update, and which messages were kept.
    """
    thetas, t, inbox, kept = [start.copy()], [0] * workers, [], []
    for k, pulled in order:
        u = gradient(thetas[pulled], k, t[k])
        t[k] += 1
        kept.append(pulled == len(thetas) - 1 < updates)
        if kept[-1]:
            inbox.append(u)
        if len(inbox) == (sizes[len(thetas) - 1] if len(thetas) <= len(sizes) else workers - backup):
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
    ~k in `order` is worker k, who was lost and starts anew: x_k ← θ.
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
    """Algorithm 2 of the paper: as `aeasgd`, with the last line v ← δ v − η g(x + δ v), x_k ← x_k + v."""
    theta, x_k, v, path = start.copy(), [start.copy() for _ in range(workers)], [0 * start for _ in range(workers)], []
    t = [0] * workers
    for k in order:
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


def easgd(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, beta: float, period: int, steps: int
) -> list[np.ndarray]:
    """All right-hand sides old: x_k ← x_k − η g(x_k) − α (x_k − θ); θ ← (1 − β) θ + β mean x_k; elastic if τ | t."""
    theta, x, path = start.copy(), [start.copy() for _ in range(workers)], []
    for t in range(steps):
        old, center = [x_k.copy() for x_k in x], theta.copy()
        for k in range(workers):
            x[k] = old[k] - eta * gradient(old[k], k, t)
            if t % period == 0:
                x[k] = x[k] - beta / workers * (old[k] - center)
        if t % period == 0:
            theta = (1 - beta) * center + beta * np.mean(old, axis=0)
            path.append(theta.copy())
    return path


def sync_sgd_lr(
    start: np.ndarray, gradient: Gradient, workers: int, *, etas: Sequence[float], mean: bool, steps: int
) -> list[np.ndarray]:
    """θ ← θ − Σ η_k g_k(θ), or the mean."""
    theta, path = start.copy(), []
    for t in range(steps):
        pushed = [eta * gradient(theta, k, t) for k, eta in enumerate(etas)]
        theta = theta - (np.mean(pushed, axis=0) if mean else np.sum(pushed, axis=0))
        path.append(theta.copy())
    return path


def sagn(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    gamma: float,
    period: int,
    steps: int,
) -> list[np.ndarray]:
    """Workers as AGN; server as synchronous SGD on the window means: θ ← θ − γ (1/W) Σ ḡ_k."""
    theta, path = start.copy(), []
    for t in range(0, steps, period):
        length = min(period, steps - t)
        means = [window(theta, gradient, k, t, length, eta)[1] / length for k in range(workers)]
        theta = theta - gamma * np.mean(means, axis=0)
        path.append(theta.copy())
    return path


def local_sgd(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, period: int, steps: int, synchronous: int = 0
) -> list[np.ndarray]:
    """H(t) SGD steps from θ on every worker; θ ← mean_k x_k. Post-local: H(t) = 1 for the first steps, then H."""
    theta, path, t = start.copy(), [], 0
    while t < steps:
        length = 1 if t < synchronous else min(period, steps - t)
        theta = np.mean([window(theta, gradient, k, t, length, eta)[0] for k in range(workers)], axis=0)
        path.append(theta.copy())
        t += length
    return path


def diloco(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    period: int,
    steps: int,
    weight_decay: float | None,
) -> list[np.ndarray]:
    """x_k ← θ; H inner steps; Δ = mean_k(θ − x_k); m ← μ m + Δ; θ ← θ − ε (Δ + μ m).

    Inner: AdamW (β₁ = .9, β₂ = .999, 1e-8), its moments kept over rounds; plain SGD without `weight_decay`.
    """
    theta, m, path = start.copy(), np.zeros_like(start), []
    first, second = ([np.zeros_like(start) for _ in range(workers)] for _ in range(2))
    for t in range(0, steps, period):
        x = [theta.copy() for _ in range(workers)]
        for k in range(workers):
            for h in range(t, min(t + period, steps)):
                g = gradient(x[k], k, h)
                if weight_decay is None:
                    x[k] = x[k] - eta * g
                    continue
                first[k] = 0.9 * first[k] + 0.1 * g
                second[k] = 0.999 * second[k] + 0.001 * g * g
                x[k] = x[k] - eta * weight_decay * x[k]
                corrected = first[k] / (1 - 0.9 ** (h + 1)), second[k] / (1 - 0.999 ** (h + 1))
                x[k] = x[k] - eta * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
        delta = np.mean([theta - x_k for x_k in x], axis=0)
        m = mu * m + delta
        theta = theta - epsilon * (delta + mu * m)
        path.append(theta.copy())
    return path


def bmuf_nesterov(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, zeta: float, mu: float, period: int, steps: int
) -> list[np.ndarray]:
    """Chen and Huo 2016: from B: H local steps; D ← μ D + ζ (mean_k x_k − B); θ ← θ + D; B = θ + μ D. Returns B."""
    theta, b, d, path = start.copy(), start.copy(), np.zeros_like(start), []
    for t in range(0, steps, period):
        length = min(period, steps - t)
        moved = np.mean([window(b, gradient, k, t, length, eta)[0] for k in range(workers)], axis=0) - b
        d = mu * d + zeta * moved
        theta = theta + d
        b = theta + mu * d
        path.append(b.copy())
    return path


# Batches: a function of the seed of the run, the worker and its step.


def rows(seed: int, k: int, examples: int, workers: int) -> np.ndarray:
    """The shard of worker k: the k-th of W equal parts of a permutation of all examples; the rest is unused."""
    size = examples // workers
    return np.random.default_rng([seed, 0]).permutation(examples)[k * size : (k + 1) * size]


@functools.cache
def epoch(seed: int, k: int, number: int, shard: int) -> np.ndarray:
    """The order in which worker k goes through its shard in that epoch."""
    return np.random.default_rng([seed, 1 + k, number]).permutation(shard)


def batch(seed: int, k: int, t: int, shard: int, size: int) -> np.ndarray:
    """Worker k's t-th batch, as positions in its shard; what does not fill a batch at the end of an epoch is unused."""
    number, place = divmod(t, shard // size)
    return epoch(seed, k, number, shard)[place * size : (place + 1) * size]


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


# Sparse problems.


def sparse_logistic_gradient(
    indices: np.ndarray, values: np.ndarray, y: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Gradient of the mean logistic loss log(1 + exp(-s z)), s = ±1, z = Σ values x[indices], on the rows given."""

    def gradient(params: np.ndarray, rows: np.ndarray) -> np.ndarray:
        g = np.zeros_like(params)
        for row in rows:
            sign = 2.0 * y[row] - 1
            z = sum(v * params[i] for i, v in zip(indices[row], values[row].astype(np.float64), strict=True))
            for i, v in zip(indices[row], values[row].astype(np.float64), strict=True):
                g[i] -= sign * v / (1 + np.exp(sign * z)) / len(rows)
        return g

    return gradient


def async_sgd_reading_apart(
    start: np.ndarray, gradient: Gradient, events: Sequence[tuple[int, int]], workers: int, *, eta: float
) -> list[np.ndarray]:
    """θ ← θ − η g_k(θ_r), where r is how many updates were in what worker k read; events are (k, r)."""
    path, t = [start.copy()], [0] * workers
    for k, read in events:
        path.append(path[-1] - eta * gradient(path[read], k, t[k]))
        t[k] += 1
    return path[1:]
