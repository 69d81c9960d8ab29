"""The synchronous schemes whose workers send a compressed vector, and keep the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .gradients import Gradient, product
from .inner_steps import InnerStep, Period, State, adamw_step, inner_window, lengths, sgd_step
from .sending import Codec
from .synchronous_rules import Compressor, after_steps, no_states


def sent_change(
    theta: np.ndarray, state: State, gradient: Gradient, k: int, t: int, beta: float, compress: Compressor
) -> np.ndarray:
    """Execute v ← β v + (1 − β) g_k(θ);  c = C(v − h);  h ← h + c; `state` has v and h of worker k. Returns c."""
    state["v"] = beta * state.get("v", 0 * theta) + (1 - beta) * gradient(theta, k, t)
    h = state.get("h", 0 * theta)
    sent = compress(state["v"] - h)
    state["h"] = h + sent
    return sent


def ef21_sgdm(
    start: np.ndarray, gradient: Gradient, workers: int, *, eta: float, beta: float, compress: Compressor, steps: int
) -> list[np.ndarray]:
    """Execute v_k ← β v_k + (1 − β) g_k;  c_k = C(v_k − h_k);  h_k ← h_k + c_k;  h ← h + mean c_k;  θ ← θ − η h."""
    theta, h, path = start.copy(), 0 * start, []
    states = no_states(workers)
    for t in range(steps):
        sent = [sent_change(theta, state, gradient, k, t, beta, compress) for k, state in enumerate(states)]
        h = h + np.mean(sent, axis=0)
        theta = theta - eta * h
        path.append(theta.copy())
    return path


def ef21_muon(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    beta: float,
    compress: Compressor,
    compress_reply: Compressor,
    direction: Compressor,
    steps: int,
) -> list[np.ndarray]:
    """Execute v_k ← β v_k + (1 − β) g_k(θ);  c_k = C(v_k − h_k);  h_k ← h_k + c_k;  h ← h + mean c_k.

    Then y ← y − η O(h);  θ ← θ + C'(y − θ).

    Args:
        start: the initial center, [P].
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        workers: number of workers.
        eta: step size.
        beta: momentum.
        compress: C, of a worker.
        compress_reply: C', of the server.
        direction: O.
        steps: number of steps.
    """
    theta, y, h, path = start.copy(), start.copy(), 0 * start, []
    states = no_states(workers)
    for t in range(steps):
        sent = [sent_change(theta, state, gradient, k, t, beta, compress) for k, state in enumerate(states)]
        h = h + np.mean(sent, axis=0)
        y = y - eta * direction(h)
        theta = theta + compress_reply(y - theta)
        path.append(theta)
    return path


def diana(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    alpha: float,
    compress: Codec,
    steps: int,
) -> list[np.ndarray]:
    """Execute q_k = Q(g_k − h_k);  h_k ← h_k + α q_k;  θ ← θ − η (h + mean q_k);  h ← h + α mean q_k."""
    theta, h, hs, path = start.copy(), 0 * start, [0 * start for _ in range(workers)], []
    for t in range(steps):
        sent = [compress(gradient(theta, k, t) - hs[k], k, t) for k in range(workers)]
        hs = [h_k + alpha * q for h_k, q in zip(hs, sent, strict=True)]
        mean = np.mean(sent, axis=0)
        theta, h = theta - eta * (h + mean), h + alpha * mean
        path.append(theta.copy())
    return path


def marina(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    coin: Callable[[int], bool],
    compress: Codec,
    steps: int,
) -> list[np.ndarray]:
    """Execute G = mean g_k(θ) in the first step and where the coin says so, else G ← G + mean Q(g_k(θ) − g_k(θ')).

    Then θ ← θ − η G. g_k(θ') is the gradient of worker k in the step before.
    """
    theta, total, before, path = start.copy(), 0 * start, [0 * start] * workers, []
    for t in range(steps):
        now = [gradient(theta, k, t) for k in range(workers)]
        if t == 0 or coin(t):
            total = np.mean(now, axis=0)
        else:
            changes = [g - old for g, old in zip(now, before, strict=True)]
            total = total + np.mean([compress(change, k, t) for k, change in enumerate(changes)], axis=0)
        theta, before = theta - eta * total, now
        path.append(theta)
    return path


def sparseloco(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    epsilon: float,
    beta: float,
    compress: Compressor,
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    senders: bool = False,
) -> list[np.ndarray]:
    """Execute H inner steps from θ;  e_k ← β e_k + θ − x_k;  q_k = C(e_k);  e_k ← e_k − q_k;  θ ← θ − ε mean q_k.

    With `senders`, the mean of an element is that of the workers for which it is not zero.
    """
    theta, path, states, memory = start.copy(), [], no_states(workers), [0 * start for _ in range(workers)]
    for t, length in lengths(period, steps):
        sent = []
        for k, x in enumerate(after_steps(theta, states, gradient, t, length, eta, inner)):
            total = beta * memory[k] + theta - x
            sent.append(compress(total))
            memory[k] = total - sent[k]
        theta = theta - epsilon * mean_of(sent, senders)
        path.append(theta.copy())
    return path


def mean_of(sent: Sequence[np.ndarray], senders: bool) -> np.ndarray:
    """Return the mean over the workers; with `senders` of each element over those that have sent it."""
    total, number = np.sum(sent, axis=0), len(sent)
    return total / (np.maximum(np.count_nonzero(sent, axis=0), 1).astype(total.dtype) if senders else number)


def sparta(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    drawn: Callable[[int], np.ndarray],
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
) -> list[np.ndarray]:
    """Execute inner steps of each worker from its own x_k;  θ_j ← mean x_kj,  x_kj ← θ_j, for j drawn in the round."""
    theta, path, states = start.copy(), [], no_states(workers)
    xs = [start.copy() for _ in range(workers)]
    for number, (t, length) in enumerate(lengths(period, steps)):
        xs = [inner_window(x, states[k], gradient, k, t, length, eta, inner) for k, x in enumerate(xs)]
        mean, chosen = np.mean(xs, axis=0), drawn(number)
        theta, *xs = (np.where(chosen, mean, x) for x in (theta, *xs))
        path.append(theta)
    return path


def demo(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    beta: float,
    alpha: float,
    largest: Compressor,
    inverse: Compressor,
    direction: Compressor,
    steps: int,
    senders: bool = False,
) -> list[np.ndarray]:
    """Execute m_k ← β m_k + g_k;  q_k = C(D m_k);  m_k ← m_k − α Dᵀ q_k;  θ ← θ − η φ(Dᵀ mean q_k).

    Args:
        start: the initial center, [P].
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        workers: number of workers.
        eta: step size.
        beta: decay of the momentum.
        alpha: fraction of what was sent that leaves the momentum.
        largest: C(D m), the largest coefficients of the cosine transform of each chunk.
        inverse: Dᵀ, the inverse transform.
        direction: φ.
        steps: number of steps.
        senders: the mean of a coefficient is that of the workers for which it is not zero.
    """
    theta, path, memory = start.copy(), [], [0 * start for _ in range(workers)]
    for t in range(steps):
        sent = []
        for k in range(workers):
            total = beta * memory[k] + gradient(theta, k, t)
            sent.append(largest(total))
            memory[k] = total - alpha * inverse(sent[k])
        theta = theta - eta * direction(inverse(mean_of(sent, senders)))
        path.append(theta.copy())
    return path


def one_bit_adam(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    early: int,
    beta_1: float,
    beta_2: float,
    compress: Compressor,
    compress_mean: Compressor,
    steps: int,
) -> list[np.ndarray]:
    """Execute Adam on mean gradients in the first steps; then v stays.

    p_k = β₁ m + (1 − β₁) g_k + e_k;  q_k = C(p_k);  e_k ← p_k − q_k;  p = mean q_k + e;  m ← C'(p);  e ← p − m;
    θ ← θ − η (m/(1 − β₁ᵗ)) / (√v̂ + ε), where v is not zero.

    Args:
        start: the initial center, [P].
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        workers: number of workers.
        eta: step size.
        early: number of first steps, in which v changes and nothing is compressed.
        beta_1: decay of the momentum.
        beta_2: decay of the variance.
        compress: C, of a worker.
        compress_mean: C', of the server.
        steps: number of steps.
    """
    theta, m, v, error, path = start.copy(), 0 * start, 0 * start, 0 * start, []
    errors = [0 * start for _ in range(workers)]
    for t in range(steps):
        gradients = [gradient(theta, k, t) for k in range(workers)]
        if t < early:
            mean = np.mean(gradients, axis=0)
            m, v = beta_1 * m + (1 - beta_1) * mean, beta_2 * v + (1 - beta_2) * mean**2
        else:
            totals = [beta_1 * m + (1 - beta_1) * g + e for g, e in zip(gradients, errors, strict=True)]
            sent = [compress(p) for p in totals]
            errors = [p - q for p, q in zip(totals, sent, strict=True)]
            total = np.mean(sent, axis=0) + error
            m = compress_mean(total)
            error = total - m
        variance = v / (1 - beta_2 ** min(t + 1, early))
        moved = m / (1 - beta_1 ** (t + 1)) / (np.sqrt(variance) + 1e-8)
        theta = theta - eta * np.where(v > 0, moved, 0)
        path.append(theta.copy())
    return path


def zero_one_adam(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    kappa: int,
    freeze: int,
    double: int,
    longest: int,
    beta_1: float,
    beta_2: float,
    compress: Compressor,
    compress_mean: Compressor,
    steps: int,
) -> list[np.ndarray]:
    """Execute local steps m_k ← β₁ m_k + (1 − β₁) g_k;  x_k ← x_k − η m_k/(√v̂ + ε);  u_k ← u_k + η m_k.

    Then, in rounds of T_v,  m ← β₁ m + (1 − β₁) ḡ;  v ← β₂ v + (1 − β₂) ḡ²;  u = η m;  in others
    p_k = u_k + e_k;  q_k = C(p_k);  e_k ← p_k − q_k;  p = mean q_k + e;  u = C'(p);  e ← p − u;  m ← u/(η steps);
    and in all of them  θ ← θ − u/(√v̂ + ε), where v is not zero;  x_k ← θ;  m_k ← m;  u_k ← 0.

    Args:
        start: the initial center, [P].
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        workers: number of workers.
        eta: step size.
        kappa: changes of v with one distance.
        freeze: number of first steps, in which v changes and a round is one step.
        double: steps with one length of the rounds, later.
        longest: the most steps of a round.
        beta_1: decay of the momentum.
        beta_2: decay of the variance.
        compress: C, of a worker.
        compress_mean: C', of the server.
        steps: number of steps.
    """
    theta, m, v, error, path = start.copy(), 0 * start, 0 * start, 0 * start, []
    errors, changes, next_change = [0 * start for _ in range(workers)], 0, 0

    def scaled(momentum: np.ndarray) -> np.ndarray:
        power = 1 - beta_2 ** max(changes, 1)
        return np.where(v > 0, momentum / (np.sqrt(v / power) + 1e-8), 0)

    t = 0
    while t < steps:
        phase = 0 if t < freeze else 1 + (t - freeze) // double
        length = min(2**phase, longest)
        end = freeze + phase * double  # of this length
        count = min(length, steps - t, *([end - t] if length < longest else []))
        sent, gradients = [], []
        for k in range(workers):
            x, m_k, u = theta, m, 0 * start
            for h in range(t, t + count):
                gradients.append(gradient(x, k, h))
                m_k = beta_1 * m_k + (1 - beta_1) * gradients[-1]
                x, u = x - eta * scaled(m_k), u + eta * m_k
            sent.append(u)
        if t == next_change and t < freeze:
            next_change += 2 ** (changes // kappa)
            changes += 1
            mean = np.mean(gradients, axis=0)
            m, v = beta_1 * m + (1 - beta_1) * mean, beta_2 * v + (1 - beta_2) * mean**2
        else:
            totals = [u + e for u, e in zip(sent, errors, strict=True)]
            compressed = [compress(p) for p in totals]
            errors = [p - q for p, q in zip(totals, compressed, strict=True)]
            total = np.mean(compressed, axis=0) + error
            u = compress_mean(total)
            error, m = total - u, u / (eta * count)
        theta = theta - eta * count * scaled(m)
        path.append(theta.copy())
        t += count
    return path


def powersgd(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    mu: float,
    rank: int,
    shapes: Sequence[Sequence[int]],
    first: np.ndarray,
    steps: int,
) -> list[np.ndarray]:
    """Execute M_k = g_k + e_k;  P = O(mean M_k Q);  Q ← mean M_kᵀ P;  e_k ← M_k − P Qᵀ  for each matrix [n, m].

    v ← μ v + d;  x ← x − η (d + v),  where d is P Qᵀ, or the mean gradient of a variable with n m ≤ r (n + m).

    Args:
        start: the initial center, [P].
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        workers: number of workers.
        eta: step size.
        mu: momentum.
        rank: r.
        shapes: shapes of the model's variables.
        first: numbers of the first message, [P]: each Q, [m, r], or a variable, one after the other.
        steps: number of steps.
    """
    x, v, path, cuts = start.copy(), 0 * start, [], np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    matrices: dict[int, tuple[int, int]] = {}
    qs, begin = {}, 0
    for i, shape in enumerate(shapes):
        n, m = math.prod(shape[:-1]), math.prod(shape[-1:])
        if rank * (n + m) < n * m:
            matrices[i], qs[i] = (n, m), first[begin : begin + m * rank].reshape(m, rank)
        begin += m * rank if i in matrices else n * m
    errors = [{i: np.zeros(sides, x.dtype) for i, sides in matrices.items()} for _ in range(workers)]
    for t in range(steps):
        gradients = [np.split(gradient(x, k, t), cuts) for k in range(workers)]
        moves = [np.mean(parts, axis=0) for parts in zip(*gradients, strict=True)]
        for i, sides in matrices.items():
            sums = [g_k[i].reshape(sides) + errors[k][i] for k, g_k in enumerate(gradients)]
            p = orthonormal(product(np.mean(sums, axis=0), qs[i]))
            qs[i] = product(np.mean(sums, axis=0).T, p)
            sent = product(p, qs[i].T)
            for k, m_k in enumerate(sums):
                errors[k][i] = m_k - sent
            moves[i] = sent.ravel()
        d = np.concatenate(moves)
        v = mu * v + d
        x = x - eta * (d + v)
        path.append(x.copy())
    return path


def dion(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    eta: float,
    mu: float,
    rank: int,
    adam: Mapping[str, Any],
    shapes: Sequence[Sequence[int]],
    first: np.ndarray,
    steps: int,
) -> list[np.ndarray]:
    """Execute B_k = M_k + g_k;  P = O(mean B_k Q);  R = mean B_kᵀ P;  M_k ← B_k − (1 − μ) P Rᵀ  for a matrix [n, m].

    There Q ← R with columns of length one;  x ← (1 − η λ) x − η √(m/n) P Qᵀ. A variable with n m ≤ r (n + m) makes a
    step of AdamW with the mean gradient.

    Args:
        start: the initial center, [P].
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        workers: number of workers.
        eta: step size.
        mu: momentum.
        rank: r.
        adam: the decays, λ and the parameters that it applies to, of `adamw_step`.
        shapes: shapes of the model's variables.
        first: numbers of the first message, [P]: each Q, [m, r], or a variable, one after the other.
        steps: number of steps.
    """
    x, path, states, begin = np.split(start, np.cumsum([math.prod(shape) for shape in shapes])[:-1]), [], [], 0
    decays = np.broadcast_to(adam["decays"], start.shape)
    for shape in shapes:
        n, m = math.prod(shape[:-1]), math.prod(shape[-1:])
        if rank * (n + m) < n * m:
            q = first[begin : begin + m * rank].reshape(m, rank).astype(start.dtype)
            states.append({"q": q, "m": [np.zeros((n, m), start.dtype) for _ in range(workers)]})
        else:
            states.append({})
        begin += m * rank if states[-1] else n * m
    cuts = np.cumsum([len(part) for part in x])[:-1]
    decayed = np.split(decays, cuts)
    for t in range(steps):
        parts = [np.split(gradient(np.concatenate(x), k, t), cuts) for k in range(workers)]
        for i, state in enumerate(states):
            gradients = [g_k[i] for g_k in parts]
            if "q" not in state:
                x[i] = adamw_step(x[i], np.mean(gradients, axis=0), eta, state, **{**adam, "decays": decayed[i]})
                continue
            b = [m + g.reshape(m.shape) for m, g in zip(state["m"], gradients, strict=True)]
            p = orthonormal(product(np.mean(b, axis=0), state["q"]))
            r = product(np.mean(b, axis=0).T, p)
            state["m"] = [b_k - (1 - mu) * product(p, r.T) for b_k in b]
            state["q"] = r / np.maximum(np.sqrt(np.sum(r * r, axis=0)), 1e-30)
            n, m = b[0].shape
            moved = math.sqrt(m / n) * product(p, state["q"].T).ravel()
            x[i] = x[i] - eta * (moved + adam["weight_decay"] * (decayed[i] * x[i]))
        path.append(np.concatenate(x))
    return path


def orthonormal(matrix: np.ndarray) -> np.ndarray:
    """Return orthonormal columns with the same span, by Gram and Schmidt."""
    columns: list[np.ndarray] = []
    for column in matrix.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / max(np.linalg.norm(column), 1e-300))
    return np.stack(columns, axis=1)
