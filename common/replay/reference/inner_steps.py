"""The inner optimizers: the rules of the local steps of a worker, whose state persists over its rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from .gradients import Gradient, product

Decays = np.ndarray | bool  # [P], or the same for all: False where weight decay leaves the parameter as it is

State = dict[Any, Any]  # variables of an inner optimizer, by name or by index of a tensor; empty at first

InnerStep = Callable[[np.ndarray, np.ndarray, float, State], np.ndarray]  # x, gradient, rate and state give the next x


Eta = float | Callable[[int], float]  # η, or η(t)

Period = int | Callable[[int], int]  # H, or H(t) of the round that begins with step t


def lengths(period: Period, steps: int) -> Iterator[tuple[int, int]]:
    """Yield t, the first step of each round, and its number of steps, H or what is left."""
    t = 0
    while t < steps:
        yield t, (length := length_at(period, t, steps))
        t += length


def length_at(period: Period, t: int, steps: int) -> int:
    """Return the steps of the round that begins with step t, H or what is left."""
    return min(period(t) if callable(period) else period, steps - t)


def sgd_step(x: np.ndarray, g: np.ndarray, eta: float, state: State) -> np.ndarray:
    """Execute x ← x − η g."""
    return x - eta * g


def momentum_step(x: np.ndarray, g: np.ndarray, eta: float, state: State, *, momentum: float = 0.9) -> np.ndarray:
    """Execute v ← β v + g;  x ← x − η v."""
    state["v"] = momentum * state.get("v", 0 * x) + g
    return x - eta * state["v"]


def adamw_step(
    x: np.ndarray,
    g: np.ndarray,
    eta: float,
    state: State,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
    decays: Decays = True,
) -> np.ndarray:
    """Execute t ← t + 1;  m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  x ← x − η λ x;  x ← x − η m̂/(√v̂ + ε).

    m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ). λ is zero where `decays` is False.
    """
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = beta_1 * state.get("m", 0 * x) + (1 - beta_1) * g
    state["v"] = beta_2 * state.get("v", 0 * x) + (1 - beta_2) * g * g
    x = x - eta * weight_decay * (decays * x)
    return x - eta * (state["m"] / (1 - beta_1**t)) / (np.sqrt(state["v"] / (1 - beta_2**t)) + epsilon)


def lion_step(
    x: np.ndarray,
    g: np.ndarray,
    eta: float,
    state: State,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    weight_decay: float = 0.0,
    decays: Decays = True,
) -> np.ndarray:
    """Execute c = sign(β₁ m + (1 − β₁) g);  x ← x − η (c + λ x);  m ← β₂ m + (1 − β₂) g, with sign(0) = 0.

    λ is zero where `decays` is False.
    """
    m = state.get("m", 0 * x)
    state["m"] = beta_2 * m + (1 - beta_2) * g
    return x - eta * (np.sign(beta_1 * m + (1 - beta_1) * g) + weight_decay * (decays * x))


def muon_step(
    x: np.ndarray,
    g: np.ndarray,
    eta: float,
    state: State,
    *,
    shapes: Sequence[tuple[int, ...]],
    momentum: float = 0.95,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.004,
    decays: Decays = True,
) -> np.ndarray:
    """Execute a step for each variable of these shapes: AdamW, or for a matrix [n, m] that of Muon.

    v ← μ v + g;  x ← x − η λ x;  x ← x − 0.2 η √max(n, m) O(g + μ v). λ is zero where `decays` is False.
    """
    cuts = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    adam = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "weight_decay": weight_decay}
    parts, of_parts = [], np.split(np.broadcast_to(decays, x.shape), cuts)
    for i, (w, u, d, shape) in enumerate(zip(np.split(x, cuts), np.split(g, cuts), of_parts, shapes, strict=True)):
        slot = state.setdefault(i, {})
        if len(shape) != 2:
            parts.append(adamw_step(w, u, eta, slot, decays=d, **adam))
            continue
        slot["v"] = v = momentum * slot.get("v", 0 * u) + u
        direction = orthogonal((u + momentum * v).reshape(shape)).ravel()
        parts.append(w - eta * weight_decay * (d * w) - 0.2 * eta * math.sqrt(max(shape)) * direction)
    return np.concatenate(parts)


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Execute O, by Newton and Schulz: X ← M/‖M‖, then five times X ← a X + (b A + c A²) X with A = X Xᵀ.

    The result is near U Vᵀ for M = U S Vᵀ: its singular values are about 1.
    O(M) = O(Mᵀ)ᵀ, where A is smaller if M is tall.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    x = matrix / (np.linalg.norm(matrix) + 1e-7)
    for _ in range(5):
        a = product(x, x.T)
        x = 3.4445 * x + product(-4.7750 * a + 2.0315 * product(a, a), x)
    return x


def own_step(x: np.ndarray, move: np.ndarray, eta: float, state: State) -> np.ndarray:
    """Execute x ← x − move, the recorded step of an optimizer that a script has."""
    return x - move


INNER_STEPS: dict[str, Callable[..., np.ndarray]] = {  # `InnerStep`s; muon needs the shapes of the variables, too
    "sgd": sgd_step, "momentum": momentum_step, "adam": partial(adamw_step, weight_decay=0.0), "adamw": adamw_step,
    "lion": lion_step, "muon": muon_step, "own": own_step,
}  # fmt: skip


def inner_window(
    x: np.ndarray, state: State, gradient: Gradient, k: int, t: int, length: int, eta: Eta, inner: InnerStep
) -> np.ndarray:
    """Execute `length` steps of an inner optimizer from x; its `state` is changed. Returns x."""
    for h in range(t, t + length):
        x = inner(x, gradient(x, k, h), eta(h) if callable(eta) else eta, state)
    return x
