"""The schemes without a center, in which each worker hears its neighbours alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .gradients import Gradient
from .inner_steps import InnerStep, Period, State, inner_window, lengths, sgd_step
from .sending import Codec, Send, as_it_is
from .synchronous_rules import no_states

Mixing = Callable[[int], np.ndarray]  # the mixing matrix of a round, [W, W]

NEVER = 1 << 62  # a round that no run reaches


@dataclass(frozen=True)
class Lost:
    """A worker that was lost in a run.

    Attributes:
        worker: its index.
        out_from: round from which on the others have the graph without it.
        in_center_until: the last number of rounds after which the mean has its parameters.
        missed_from: for each worker, the first round whose message of the lost one it has not heard, [W].
        returned_at: number of rounds after which it began anew from the mean of the others.
        times: how often it was lost; the others are of the last time.
    """

    worker: int
    out_from: int
    in_center_until: int
    missed_from: Sequence[int]
    returned_at: int = NEVER
    times: int = 1


@dataclass(frozen=True)
class Members:
    """The workers that take part in each round; without lost ones all of them."""

    lost: Sequence[Lost] = field(default=())

    def mixing(self, weights: np.ndarray, t: int, dtype: np.dtype) -> np.ndarray:
        """Return the matrix of round t, of this type, given that of all workers, [W, W].

        With L the workers that are not out and D those that are, it is W_LL + W_LD (1 − W_DD)⁻¹ W_DL, the stochastic
        complement, and 1 for D. A worker that has not heard a message before that has its weight itself.
        """
        mixed = np.array(weights, np.float64)
        out = np.array([lost.worker for lost in self.lost if lost.out_from <= t < lost.returned_at], int)
        if out.size:
            left = np.delete(np.arange(len(mixed)), out)
            (among, to_out), (from_out, inside) = ([mixed[a][:, b] for b in (left, out)] for a in (left, out))
            whole = among + to_out @ np.linalg.pinv(np.eye(out.size) - inside) @ from_out
            mixed = np.eye(len(mixed))
            mixed[left[:, None], left] = whole
        for lost in self.lost:
            if t < min(lost.out_from, lost.returned_at):
                missing = [i for i, first in enumerate(lost.missed_from) if first <= t and i != lost.worker]
                mixed[missing, missing] += mixed[missing, lost.worker]
                mixed[missing, lost.worker] = 0
        return mixed.astype(dtype)

    def mean(self, rows: np.ndarray, rounds: int) -> np.ndarray:
        """Return the mean of rows [W, P] over the workers in the center after that many rounds."""
        absent = [lost.worker for lost in self.lost if lost.in_center_until < rounds <= lost.returned_at]
        return np.delete(rows, absent, axis=0).mean(axis=0)

    def anew(self, t: int) -> list[int]:
        """Return the workers that begin anew with round t, at the mean of the others."""
        return [lost.worker for lost in self.lost if lost.returned_at == t]

    def changes(self, t: int) -> bool:
        """Return True if a worker is out, or back, from round t on."""
        return any(t in (min(lost.out_from, lost.returned_at), lost.returned_at) for lost in self.lost)

    def rounds(self, workers: int, updates: int) -> np.ndarray:
        """Return the recorded rounds of each worker in a run of so many rounds, [W]."""
        numbers = np.full(workers, updates)
        for lost in self.lost:
            numbers[lost.worker] -= min(lost.returned_at, updates) - lost.in_center_until
        return numbers


ALL = Members()


def members_of(entries: Any, workers: int, updates: int) -> Members:
    """Return the members of a run from the lost workers in its record; `ValueError` if these cannot be."""
    try:
        lost = [_lost(entry, workers, updates) for entry in entries]
        fits = len({entry.worker for entry in lost}) == len(lost) < workers
    except (KeyError, TypeError):
        fits, lost = False, []
    if not fits:
        raise ValueError("the rule and the record differ: which workers were lost, and when")
    return Members(lost)


def _lost(entry: Mapping[str, Any], workers: int, updates: int) -> Lost:
    missed, back = entry["missed_from"], entry["returned_at"]
    worker, out_from, until, times = (entry[name] for name in ("worker", "out_from", "in_center_until", "times"))
    rounds = [NEVER if number is None else number for number in (back, *missed)]
    lost = Lost(worker, out_from, until, rounds[1:], rounds[0], times)
    whole = all(type(number) is int and 0 <= number <= NEVER for number in (worker, out_from, until, times, *rounds))
    if not (whole and lost.worker < workers == len(missed) and lost.in_center_until <= min(lost.returned_at, updates)):
        raise TypeError
    return lost


def heard(mixing: np.ndarray, messages: np.ndarray, send: Send) -> np.ndarray:
    """Return m_i + Σ_j W_ij (s_j − s_i) for messages m, [W, P], of which s arrives: W m if all of them arrives."""
    arrive = np.array([send(message, k) for k, message in enumerate(messages)])
    return mixing @ arrive + (messages - arrive)


def choco_sgd(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    gamma: float,
    order: str,
    compress: Codec,
    steps: int,
    members: Members = ALL,
) -> list[np.ndarray]:
    """Execute x ← x − η g;  q = Q(x − x̂);  x̂ ← x̂ + q;  s ← s + W q;  x ← x + γ (s − x̂); returns the means of x.

    With the order `authors`, the last of these comes before q. `weights` returns W of a step, `compress` is Q. With the
    step from which on there are other workers, x̂ and s begin anew at zero.
    """
    x, path = np.tile(start, (workers, 1)), []
    hat = s = np.zeros_like(x)
    for t in range(steps):
        x[members.anew(t)] = path[-1] if path else start
        if members.changes(t):
            hat = s = np.zeros_like(x)
        x = x - eta * np.array([gradient(x_k, k, t) for k, x_k in enumerate(x)])
        if order == "authors":
            x = x + gamma * (s - hat)
        q = np.array([compress(part, k, t) for k, part in enumerate(x - hat)])
        hat, s = hat + q, s + members.mixing(weights(t), t, start.dtype) @ q
        if order == "paper":
            x = x + gamma * (s - hat)
        path.append(members.mean(x, t + 1))
    return path


def d_psgd(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    steps: int,
    members: Members = ALL,
    send: Send = as_it_is,
    momentum: float = 0.0,
) -> list[np.ndarray]:
    """Execute m_i ← β m_i + g_i(x_i);  x_i ← Σ_j W_ij x_j − η m_i; returns the mean of the workers after each step.

    `weights` returns W of a step.
    """
    x, path = np.tile(start, (workers, 1)), []
    m = np.zeros_like(x)
    for t in range(steps):
        x[members.anew(t)] = path[-1] if path else start
        m[members.anew(t)] = 0
        m = momentum * m + np.array([gradient(x_k, k, t) for k, x_k in enumerate(x)])
        x = heard(members.mixing(weights(t), t, start.dtype), x, send) - eta * m
        path.append(members.mean(x, t + 1))
    return path


def ad_psgd(
    start: np.ndarray,
    gradient: Gradient,
    contacts: Sequence[int],
    workers: int,
    *,
    peer: Callable[[int, int], int],
    eta: float,
) -> list[np.ndarray]:
    """Execute x_k, x_j ← ½ (x_k + x_j);  x_k ← x_k − η g_k(x̂_k);  x̂_k ← x_k; returns the mean of x after each event.

    `contacts` has the worker k of each event, `peer` returns the neighbour j of a worker in a step, or k itself.
    """
    x, path, steps = np.tile(start, (workers, 1)), [], [0] * workers
    x_hat = x.copy()
    for k in contacts:
        g, j = gradient(x_hat[k], k, steps[k]), peer(k, steps[k])
        x[k] = x[j] = (x[k] + x[j]) / 2
        x[k] -= eta * g
        x_hat[k] = x[k]
        steps[k] += 1
        path.append(x.mean(axis=0))
    return path


def dsgd_tracking(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    steps: int,
    members: Members = ALL,
) -> list[np.ndarray]:
    """Execute x ← W (x − η y);  y ← W y + g(x) − g'; g' ← g(x), from y_i = g'_i = g_i(x_i); returns the means of x.

    `weights` returns W of a step. With the step from which on there are other workers, y and g' begin anew.
    """
    x, path = np.tile(start, (workers, 1)), []
    y = before = np.zeros_like(x)  # W y, and the gradients in it
    for t in range(steps):
        x[members.anew(t)] = path[-1] if path else start
        if members.changes(t):
            y = before = np.zeros_like(x)
        now = np.array([gradient(x_k, k, t) for k, x_k in enumerate(x)])
        y, before = y + now - before, now
        mixing = members.mixing(weights(t), t, start.dtype)
        x, y = mixing @ (x - eta * y), mixing @ y
        path.append(members.mean(x, t + 1))
    return path


def sgp(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    steps: int,
    members: Members = ALL,
    send: Send = as_it_is,
    momentum: float = 0.0,
) -> list[np.ndarray]:
    """Execute x ← x − η (g + β m), m ← β m + g;  x ← P x;  w ← P w;  z_i = x_i/w_i; returns the means of z.

    `weights` returns P of a step, whose columns sum to one.
    """
    x, w, path = np.tile(start, (workers, 1)), np.ones((workers, 1), start.dtype), []
    m = np.zeros_like(x)
    for t in range(steps):
        x[members.anew(t)] = path[-1] if path else start
        m[members.anew(t)] = 0
        g = np.array([gradient(z_k, k, t) for k, z_k in enumerate(x / w)])
        m = momentum * m + g
        x = x - eta * (g + momentum * m)
        mixing = members.mixing(weights(t), t, start.dtype)
        x, w = heard(mixing, x, send), mixing @ w
        path.append(members.mean(x / w, t + 1))
    return path


def exact_diffusion(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    form: str,
    steps: int,
    members: Members = ALL,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute ψ' = x − η g;  φ = ψ' + x − ψ;  x ← V φ, from ψ = x, on all workers; returns the means of x.

    V = (1 + W)/2, with the form `d2` W. With the step from which on there are other workers, ψ is x again.
    """
    x, path = np.tile(start, (workers, 1)), []
    psi = x
    for t in range(steps):
        x[members.anew(t)] = path[-1] if path else start
        if members.changes(t):
            psi = x
        after = x - eta * np.array([gradient(x_k, k, t) for k, x_k in enumerate(x)])
        phi, psi = after + x - psi, after
        mixed = heard(members.mixing(weights(t), t, start.dtype), phi, send)
        x = mixed if form == "d2" else (phi + mixed) / 2
        path.append(members.mean(x, t + 1))
    return path


def qg_dsgdm(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    beta: float,
    mu: float,
    form: str,
    steps: int,
    members: Members = ALL,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute m ← β m̂ + g;  x' ← W (x − η m);  m̂ ← μ m̂ + (1 − μ)(x − x')/η;  x ← x'; returns the means of x.

    With Nesterov's form x' ← W (x − η (g + β m)). `weights` returns W of a step.
    """
    x, path = np.tile(start, (workers, 1)), []
    hat = np.zeros_like(x)
    for t in range(steps):
        x[members.anew(t)] = path[-1] if path else start
        hat[members.anew(t)] = 0
        g = np.array([gradient(x_k, k, t) for k, x_k in enumerate(x)])
        m = beta * hat + g
        if form == "nesterov":
            m = g + beta * m
        mixed = heard(members.mixing(weights(t), t, start.dtype), x - eta * m, send)
        hat, x = mu * hat + (1 - mu) * (x - mixed) / eta, mixed
        path.append(members.mean(x, t + 1))
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
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    members: Members = ALL,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute x_i ← a_i; H inner steps; m ← μ m + ε W (x − a) + γ (W a − a);  a ← a + m; returns the means of a.

    `weights` returns W of a round. What is sent is ε (x − a) + γ a.
    """
    a, path, states = np.tile(start, (workers, 1)), [], no_states(workers)
    m = np.zeros_like(a)
    for number, (t, length) in enumerate(lengths(period, steps)):
        for k in members.anew(number):
            a[k], m[k], states[k] = path[-1], 0, {}
        x = _after_steps(a, states, gradient, t, length, eta, inner)
        mixing = members.mixing(weights(number), number, start.dtype)
        m = mu * m + heard(mixing, epsilon * (x - a) + gamma * a, send) - gamma * a
        a = a + m
        path.append(members.mean(a, number + 1))
    return path


def gasloc(
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    *,
    weights: Mixing,
    eta: float,
    epsilon: float,
    alpha: float,
    mu: float,
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    members: Members = ALL,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute x_i ← θ_i; H inner steps; ψ = θ + ε (x − θ);  θ ← ψ − α Λ ψ + μ (ψ − ψ');  ψ' ← ψ; return the means of θ.

    `weights` returns W of a round, Λ = 1 − W, and μ is the paper's γ. What is sent is ψ.
    """
    theta, path, states = np.tile(start, (workers, 1)), [], no_states(workers)
    before = theta.copy()
    for number, (t, length) in enumerate(lengths(period, steps)):
        for k in members.anew(number):
            theta[k], before[k], states[k] = path[-1], path[-1], {}
        x = _after_steps(theta, states, gradient, t, length, eta, inner)
        psi = theta + epsilon * (x - theta)
        mixed = heard(members.mixing(weights(number), number, start.dtype), psi, send)
        theta, before = psi - alpha * (psi - mixed) + mu * (psi - before), psi
        path.append(members.mean(theta, number + 1))
    return path


def _after_steps(
    starts: np.ndarray, states: list[State], gradient: Gradient, t: int, length: int, eta: float, inner: InnerStep
) -> np.ndarray:
    """Return the parameters of each worker after `length` inner steps from its own start, [W, P]."""
    return np.array(
        [
            inner_window(start, state, gradient, k, t, length, eta, inner)
            for k, (start, state) in enumerate(zip(starts, states, strict=True))
        ]
    )
