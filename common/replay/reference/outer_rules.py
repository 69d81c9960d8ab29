"""The asynchronous schemes whose server makes outer steps along the moves of workers, each as it arrives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .gradients import Gradient
from .inner_steps import InnerStep, Period, State, inner_window, length_at, sgd_step
from .sending import Send, as_it_is


@dataclass
class DelayedNesterov:
    """The server of `async_diloco`: its update with the n-th pseudo-gradient g.

    always          D ← D + g
    N divides n     m ← β m + D/N;  θ ← θ − ε ((1 − cN + c) β m + g/N);  D ← 0
    otherwise       θ ← θ − ε (c β m + g/N)
    """

    theta: np.ndarray
    epsilon: float
    beta: float
    size: int  # N
    c: float = 0.0
    count: int = 0  # of pseudo-gradients
    m: np.ndarray = field(init=False)
    total: np.ndarray = field(init=False)

    def __post_init__(self):
        self.m, self.total = 0 * self.theta, 0 * self.theta

    def step(self, g: np.ndarray) -> np.ndarray:
        """Execute the update with a pseudo-gradient; return θ."""
        self.count, self.total, n = self.count + 1, self.total + g, self.size
        if self.count % n == 0:
            self.m, self.total = self.beta * self.m + self.total / n, 0 * self.total
            self.theta = self.theta - self.epsilon * ((1 - self.c * n + self.c) * self.beta * self.m + g / n)
        else:
            self.theta = self.theta - self.epsilon * (self.c * self.beta * self.m + g / n)
        return self.theta


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
    period: Period,
    steps: int,
    tau: int = 0,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute `DelayedNesterov` with N = W for each pseudo-gradient g = (θ as pulled) − x.

    Worker: from the θ that it pulled, and the move Δ of its last τ steps, H − τ inner steps to the x that it sends;
    then τ steps more, whose move is the next Δ. The state of its optimizer persists. ~k in `order` is a lost worker k
    that starts anew from θ.
    """
    server, path = DelayedNesterov(start.copy(), epsilon, beta, workers, c), []
    pulled, moved, t = [start.copy()] * workers, [np.zeros_like(start)] * workers, [0] * workers
    states: list[State] = [{} for _ in range(workers)]
    for k in order:
        if k < 0:
            pulled[~k], moved[~k] = server.theta, np.zeros_like(start)
            continue
        length = length_at(period, t[k], steps)
        before = max(0, length - tau)
        x = inner_window(pulled[k] + moved[k], states[k], gradient, k, t[k], before, eta, inner)
        later = inner_window(x, states[k], gradient, k, t[k] + before, length - before, eta, inner)
        t[k] += length
        pulled[k], moved[k] = server.step(pulled[k] - send(x, k)), later - x
        path.append(pulled[k])
    return path


@dataclass(frozen=True)
class Correction:
    """What `heloco` makes of a pseudo-gradient Δ of one tensor, by c = cos(Δ, m) with the momentum m; of m = 0 nothing.

    c ≥ c_ok      Δ
    c < 0         Δ − β c ‖Δ‖ m/‖m‖,  β = min(−k_s c f, β_max)
    otherwise     ‖Δ‖ ũ/‖ũ‖,  ũ = (1 − λ) Δ/‖Δ‖ + λ m/‖m‖,  λ = min(k_d (1 − c) f, 1)

    with f = ‖Δ‖/(‖Δ‖ + κ ‖m‖).
    """

    c_ok: float
    k_s: float
    beta_max: float
    k_d: float
    kappa: float

    def of(self, delta: np.ndarray, m: np.ndarray) -> np.ndarray:
        """Return the corrected Δ."""
        length, size = np.linalg.norm(delta), np.linalg.norm(m)
        if length == 0 or size == 0:
            return delta
        unit, along, f = delta / length, m / size, length / (length + self.kappa * size)
        c = np.sum(unit * along)
        if c >= self.c_ok:
            return delta
        if c < 0:
            return delta - min(-self.k_s * c * f, self.beta_max) * c * length * along
        share = min(self.k_d * (1 - c) * f, 1)
        turned = (1 - share) * unit + share * along
        return length * turned / np.linalg.norm(turned)


def heloco(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    correction: Correction,
    shapes: Sequence[Sequence[int]],
    period: Period,
    steps: int,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute H inner steps from θ as pulled to x, which is sent, and a step with each pseudo-gradient Δ = θ − x.

    G is the corrected Δ of each tensor;  m ← μ m + (1 − μ) G;  θ ← θ − ε (G + μ m). The worker continues from θ.
    `shapes` are those of the tensors. ~k in `order` is a lost worker k that starts anew from θ.
    """
    theta, m, path = start.copy(), np.zeros_like(start), []
    cuts = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    pulled, t = [theta] * workers, [0] * workers
    states: list[State] = [{} for _ in range(workers)]
    for k in order:
        if k < 0:
            pulled[~k] = theta
            continue
        length = length_at(period, t[k], steps)
        delta = pulled[k] - send(inner_window(pulled[k], states[k], gradient, k, t[k], length, eta, inner), k)
        tensors = zip(np.split(delta, cuts), np.split(m, cuts), strict=True)
        g = np.concatenate([correction.of(part, momentum) for part, momentum in tensors])
        m = mu * m + (1 - mu) * g
        theta = theta - epsilon * (g + mu * m)
        t[k] += length
        pulled[k] = theta
        path.append(theta)
    return path
