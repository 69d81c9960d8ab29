"""The synchronous schemes, in which the messages of all workers make one update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .asynchronous_rules import window
from .gradients import Gradient
from .inner_steps import Decays, InnerStep, Period, State, adamw_step, inner_window, lengths, sgd_step
from .sending import Send, as_it_is

Compressor = Callable[[np.ndarray], np.ndarray]


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
    """Average the first R = W − b gradients computed at the present θ, step, and release all workers.

    `order` holds (worker, version of θ that it had pulled): a released worker may read late, after further updates.
    After `updates` updates all messages are dropped. `sizes`: messages in each update, if workers were lost. Returns θ
    after each update, and for each message whether it was kept.
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


def easgd(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    beta: float,
    period: int,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute x_k ← x_k − η g(x_k) − α (x_k − θ); θ ← (1 − β) θ + β mean x_k; elastic if τ | t.

    All right-hand sides are old values. A script, which may end at any step, is elastic in its last one, too.
    """
    theta, x, path = start.copy(), [start.copy() for _ in range(workers)], []
    for t in range(steps):
        old, center = [x_k.copy() for x_k in x], theta.copy()
        for k in range(workers):
            x[k] = old[k] - eta * gradient(old[k], k, t)
            if t % period == 0 or t == steps - 1:
                x[k] = x[k] - beta / workers * (old[k] - center)
        if t % period == 0 or t == steps - 1:
            theta = (1 - beta) * center + beta * np.mean([send(x_k, k) for k, x_k in enumerate(old)], axis=0)
            path.append(theta.copy())
    return path


def sync_sgd_lr(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    etas: Sequence[float],
    mean: bool,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute θ ← θ − Σ η_k g_k(θ), or the mean."""
    theta, path = start.copy(), []
    for t in range(steps):
        pushed = [send(eta * gradient(theta, k, t), k) for k, eta in enumerate(etas)]
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
    period: Period,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute workers as in AGN, and the server as synchronous SGD on the window means: θ ← θ − γ (1/W) Σ ḡ_k."""
    theta, path = start.copy(), []
    for t, length in lengths(period, steps):
        means = [send(window(theta, gradient, k, t, length, eta)[1] / length, k) for k in range(workers)]
        theta = theta - gamma * np.mean(means, axis=0)
        path.append(theta.copy())
    return path


def local_sgd(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H inner steps from θ on each worker; θ ← mean_k x_k. `eta` and `period` may be functions of the step t.

    Here and below the state of each worker's inner optimizer persists over rounds.
    """
    theta, path, states = start.copy(), [], no_states(workers)
    for t, length in lengths(period, steps):
        theta = np.mean(after_steps(theta, states, gradient, t, length, eta, inner, send), axis=0)
        path.append(theta.copy())
    return path


def no_states(workers: int) -> list[State]:
    """Return the states of the workers' inner optimizers before the first step."""
    return [{} for _ in range(workers)]


def after_steps(
    start: np.ndarray,
    states: list[State],
    gradient: Gradient,
    t: int,
    length: int,
    eta: float,
    inner: InnerStep,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Return what arrives of x_k of each worker after `length` inner steps from the same point."""
    return [send(inner_window(start, state, gradient, k, t, length, eta, inner), k) for k, state in enumerate(states)]


def diloco(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute x_k ← θ; H inner steps; Δ = mean_k(θ − x_k); m ← μ m + Δ; θ ← θ − ε (Δ + μ m)."""
    theta, m, path, states = start.copy(), np.zeros_like(start), [], no_states(workers)
    for t, length in lengths(period, steps):
        x = after_steps(theta, states, gradient, t, length, eta, inner, send)
        delta = np.mean([theta - x_k for x_k in x], axis=0)
        m = mu * m + delta
        theta = theta - epsilon * (delta + mu * m)
        path.append(theta.copy())
    return path


def edit(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    temperature: float,
    clip: float,
    threshold: float,
    warmup: int,
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute x_k ← θ; H inner steps; Δ_k = θ − x_k; n_k = ‖Δ_k‖, an outlier if n_k > a_k + z √v_k, after the warm-up.

    a_k ← a_k + 0.02 (n_k − a_k);  v_k ← 0.98 v_k + 0.02 (n_k − a_k)²;  w_k = exp(−n_k/T), and 0 of outliers;
    Δ = Σ w_k Δ_k / Σ w_k;  Δ ← Δ min(1, c/‖Δ‖);  m ← μ m + Δ;  θ ← θ − ε (Δ + μ m), unless all are outliers.
    """
    theta, m, path, states = start.copy(), np.zeros_like(start), [], no_states(workers)
    mean, variance = np.zeros((2, workers), start.dtype)
    for number, (t, length) in enumerate(lengths(period, steps)):
        moves = [theta - x_k for x_k in after_steps(theta, states, gradient, t, length, eta, inner, send)]
        norms = np.array([np.linalg.norm(move) for move in moves])
        usual = (number < warmup) | (variance == 0) | (norms <= mean + threshold * np.sqrt(variance))
        mean = mean + 0.02 * (norms - mean)
        variance = 0.98 * variance + 0.02 * (norms - mean) ** 2
        if usual.any():
            weights = usual * np.exp(np.minimum(0, norms[usual].min() - norms) / temperature)
            delta = np.sum([w * move for w, move in zip(weights / weights.sum(), moves, strict=True)], axis=0)
            delta = delta * min(1, clip / max(np.linalg.norm(delta), 1e-30))
            m = mu * m + delta
            theta = theta - epsilon * (delta + mu * m)
        path.append(theta.copy())
    return path


def palsgd(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    p: float,
    gamma: float,
    drawn: Callable[[int, int], float],
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute x_k ← x_k − (η γ/p)(x_k − θ) if drawn(k, t) < p, else an inner step of rate η/(1 − p).

    After H of them DiLoCo's outer step:  Δ = mean_k(θ − x_k);  m ← μ m + Δ;  θ ← θ − ε (Δ + μ m).
    """
    theta, m, path, states = start.copy(), np.zeros_like(start), [], no_states(workers)
    for first, length in lengths(period, steps):
        moves = []
        for k in range(workers):
            x = theta
            for t in range(first, first + length):
                if drawn(k, t) < p:
                    x = x - eta * gamma / p * (x - theta)
                else:
                    x = inner(x, gradient(x, k, t), eta / (1 - p), states[k])
            moves.append(theta - send(x, k))
        delta = np.mean(moves, axis=0)
        m = mu * m + delta
        theta = theta - epsilon * (delta + mu * m)
        path.append(theta.copy())
    return path


def des_loc(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    period: int,
    a: int,
    b: int,
    adam: Mapping[str, Any],
    steps: int,
) -> list[np.ndarray]:
    """Execute AdamW on each worker;  after t steps, the mean over the workers of one of their three vectors.

    In period n of K steps, from 1:  of m after K/3 steps if a | n;  of v after 2 K/3 steps if b | n;  of x at its end,
    and after the last step of all. Returns θ, the last mean of x, after each of these means.
    """
    theta, path, states, x = start.copy(), [], no_states(workers), [start] * workers
    for t in range(1, steps + 1):
        x = [adamw_step(x[k], gradient(x[k], k, t - 1), eta, states[k], **adam) for k in range(workers)]
        n, place = t // period + 1, t % period
        if (place == period // 3 and n % a == 0) or (place == 2 * (period // 3) and n % b == 0):
            name = "m" if place == period // 3 else "v"
            mean = np.mean([state[name] for state in states], axis=0)
            for state in states:
                state[name] = mean
        elif place == 0 or t == steps:
            theta = np.mean(x, axis=0)
            x = [theta] * workers
        else:
            continue
        path.append(theta.copy())
    return path


def fedopt(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    beta_1: float,
    beta_2: float,
    tau: float,
    form: str,
    period: Period,
    steps: int,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H local steps from θ; Δ = mean_k x_k − θ; m ← β₁ m + (1 − β₁) Δ; v by its form; θ ← θ + ε m/(√v + τ)."""
    theta, m, v, path = start.copy(), np.zeros_like(start), np.full_like(start, tau**2), []
    for t, length in lengths(period, steps):
        x = after_steps(theta, no_states(workers), gradient, t, length, eta, sgd_step, send)
        delta = np.mean(x, axis=0) - theta
        m = beta_1 * m + (1 - beta_1) * delta
        v = {
            "adam": beta_2 * v + (1 - beta_2) * delta**2,
            "yogi": v - (1 - beta_2) * delta**2 * np.sign(v - delta**2),
            "adagrad": v + delta**2,
        }[form]
        theta = theta + epsilon * m / (np.sqrt(v) + tau)
        path.append(theta.copy())
    return path


def bmuf(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    zeta: float,
    mu: float,
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    nesterov: bool = True,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H local steps from B; D ← μ D + ζ (mean_k x_k − B); θ ← θ + D; B = θ + μ D, or θ. Returns θ."""
    theta, b, d, path, states = start.copy(), start.copy(), np.zeros_like(start), [], no_states(workers)
    for t, length in lengths(period, steps):
        x = after_steps(b, states, gradient, t, length, eta, inner)
        d = mu * d + zeta * np.mean([send(x_k - b, k) for k, x_k in enumerate(x)], axis=0)
        theta = theta + d
        b = theta + mu * d if nesterov else theta
        path.append(theta.copy())
    return path


def slowmo(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    alpha: float,
    beta: float,
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H steps of rate γ from θ; u ← β u + (θ − mean_k x_k)/γ; θ ← θ − α γ u. γ is `eta` here."""
    theta, u, path, states = start.copy(), np.zeros_like(start), [], no_states(workers)
    for t, length in lengths(period, steps):
        x = after_steps(theta, states, gradient, t, length, eta, inner, send)
        u = beta * u + (theta - np.mean(x, axis=0)) / eta
        theta = theta - alpha * eta * u
        path.append(theta.copy())
    return path


def signsgd_mv(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    steps: int,
    beta: float = 0.0,
    weight_decay: float = 0.0,
    decays: Decays = True,
) -> list[np.ndarray]:
    """Execute v_k ← (1 − β) g_k + β v_k;  x ← x − η (sign(Σ sign(v_k)) + λ x), with sign(0) = 0."""
    theta, v, path = start.copy(), [0 * start for _ in range(workers)], []
    for t in range(steps):
        v = [(1 - beta) * gradient(theta, k, t) + beta * v[k] for k in range(workers)]
        theta = theta - eta * (np.sign(sum(np.sign(v_k) for v_k in v)) + weight_decay * (decays * theta))
        path.append(theta.copy())
    return path


def dist_lion(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    steps: int,
    beta_1: float,
    beta_2: float,
    form: str,
    weight_decay: float,
    decays: Decays = True,
) -> list[np.ndarray]:
    """Execute δ = sign(β₁ m + (1 − β₁) g), m ← β₂ m + (1 − β₂) g;  x ← x − η (Δ + λ x), Δ the mean of δ or its sign."""
    theta, m, path = start.copy(), np.zeros((workers, len(start)), start.dtype), []
    for t in range(steps):
        g = np.array([gradient(theta, k, t) for k in range(workers)])
        mean = np.sign(beta_1 * m + (1 - beta_1) * g).mean(axis=0)
        m = beta_2 * m + (1 - beta_2) * g
        theta = theta - eta * ((np.sign(mean) if form == "vote" else mean) + weight_decay * (decays * theta))
        path.append(theta.copy())
    return path


def largest(kept: int) -> Compressor:
    """Keep that many elements, the largest in magnitude; the others become zero."""

    def compress(p: np.ndarray) -> np.ndarray:
        q, where = 0 * p, np.argsort(-np.abs(p), kind="stable")[:kept]
        q[where] = p[where]
        return q

    return compress


def scaled_sign(shapes: Sequence[Sequence[int]]) -> Compressor:
    """Return p ↦ (‖p‖₁/d) sign(p) for each variable separately; `shapes` are their shapes, of d elements each."""
    cuts = np.cumsum([math.prod(shape) for shape in shapes])[:-1]

    def compress(p: np.ndarray) -> np.ndarray:
        return np.concatenate([np.abs(part).sum() / len(part) * np.sign(part) for part in np.split(p, cuts)])

    return compress


def ef_sgd(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, compress: Compressor, steps: int
) -> list[np.ndarray]:
    """Execute p = η g_k + e_k;  q = C(p);  e_k ← p − q;  θ ← θ − mean q."""
    theta, memory, path = start.copy(), [0 * start for _ in range(workers)], []
    for t in range(steps):
        sent = []
        for k in range(workers):
            p = eta * gradient(theta, k, t) + memory[k]
            q = compress(p)
            memory[k] = p - q
            sent.append(q)
        theta = theta - np.mean(sent, axis=0)
        path.append(theta.copy())
    return path
