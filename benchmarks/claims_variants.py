"""Algorithms that only the claims have: what a claim is compared with, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..algorithms.agn import AGN
from ..algorithms.async_sgd import AsyncSGD
from ..algorithms.ef_sgd import EFSGD
from ..algorithms.one_bit_adam import OneBitAdam
from ..algorithms.powersgd import PowerSGD
from ..algorithms.signsgd_mv import SignSGDMV
from ..algorithms.sync_sgd import SyncSGD
from ..common.contract import Fraction, Positive
from ..common.replay.recorded import RecordedRun
from ..common.replay.reference import asynchronous_rules, synchronous_rules
from ..common.replay.reference.inner_steps import adamw_step

Path = list[np.ndarray]


@dataclass(frozen=True, kw_only=True)
class DampedAGN(AGN):
    """AGN with a rate of the server's own, damped as ADAG damps: what the thesis calls a too large step, made safe."""

    name = "damped_agn"
    distance_scale: Positive = 0.01
    """As in `adag`."""


@dataclass(frozen=True, kw_only=True)
class WholeWithMomentum(SyncSGD):
    """Whole gradients, whose means in time are followed as SIGNUM follows their signs."""

    name = "whole_with_momentum"
    momentum: Fraction = 0.9
    """As in `signsgd_mv`."""
    falls: bool = False
    """True if the rate falls to zero, linearly."""


@dataclass(frozen=True, kw_only=True)
class FallingSigns(SignSGDMV):
    """`signsgd_mv`, with a rate that may fall."""

    name = "falling_signs"
    falls: bool = False
    """As above."""


@dataclass(frozen=True, kw_only=True)
class Forgetful(EFSGD):
    """`ef_sgd` without its memory: what is left out of a message is lost."""

    name = "forgetful_ef_sgd"


@dataclass(frozen=True, kw_only=True)
class OtherThanLowRank(PowerSGD):
    """`powersgd` with another compressor of each matrix, whose message has as many bytes."""

    name = "other_than_low_rank"
    compressor: Literal["random block", "random elements", "largest", "signs"] = "largest"
    """A block of r (n + m) elements at a place that all workers draw alike, or as many elements that they draw alike;
    the largest, half as many, as each has its index; or signs times the mean size, whatever r is."""


@dataclass(frozen=True, kw_only=True)
class CompressedAdam(OneBitAdam):
    """`one_bit_adam` that sends signs of gradients after the first steps, from which the variance changes further."""

    name = "compressed_adam"


@dataclass(frozen=True, kw_only=True)
class MomentumDownpour(AsyncSGD):
    """MDOWNPOUR of Zhang et al. 2015: Nesterov's momentum of the master, for a period of one."""

    name = "mdownpour"
    momentum: Fraction = 0.9
    """δ, of the master."""


def _damped_agn(run: RecordedRun, s: Any) -> Path:
    return asynchronous_rules.agn(
        run.start,
        run.gradient,
        run.order,
        run.workers,
        eta=s.learning_rate,
        gamma=s.server_learning_rate,
        distance_scale=s.distance_scale,
        period=s.communication_period,
        steps=run.steps,
    )


def _momentum_downpour(run: RecordedRun, s: Any) -> Path:
    """Push g: v ← δ v − η g,  θ ← θ + v; the reply is θ + δ v."""
    theta, v, path = run.start.copy(), 0 * run.start, []
    x, done = [run.start] * run.workers, [0] * run.workers
    for k in run.order:
        v = s.momentum * v - s.learning_rate * run.gradient(x[k], k, done[k])
        theta = theta + v
        x[k], done[k] = theta + s.momentum * v, done[k] + 1
        path.append(theta)
    return path


def _means(run: RecordedRun, s: Any, vote: bool) -> Path:
    """m_k ← β m_k + (1 − β) g_k;  θ ← θ − η mean m_k, or θ ← θ − η sign(Σ sign(m_k)); η falls linearly, or not."""
    means = np.zeros((run.workers, len(run.start)))

    def step(theta: np.ndarray, t: int) -> np.ndarray:
        rate = s.learning_rate * (1 - t / run.steps if s.falls else 1)
        for k in range(run.workers):
            means[k] = s.momentum * means[k] + (1 - s.momentum) * run.gradient(theta, k, t)
        return rate * (np.sign(np.sign(means).sum(axis=0)) if vote else means.mean(axis=0))

    return _steps(run, step)


def _forgetful(run: RecordedRun, s: Any) -> Path:
    """θ ← θ − mean C(η g_k)."""
    kept = max(1, int(s.share * len(run.start)))
    compress = synchronous_rules.largest(kept) if s.compressor == "topk" else synchronous_rules.scaled_sign(run.shapes)

    def step(theta: np.ndarray, t: int) -> np.ndarray:
        sent = [compress(s.learning_rate * run.gradient(theta, k, t)) for k in range(run.workers)]
        return np.mean(sent, axis=0)

    return _steps(run, step)


def _other_than_low_rank(run: RecordedRun, s: Any) -> Path:
    """d = mean C(g_k + e_k);  e_k ← g_k + e_k − C(g_k + e_k);  v ← μ v + d;  θ ← θ − η (d + v)."""
    errors, velocity = np.zeros((run.workers, len(run.start))), 0 * run.start

    def step(theta: np.ndarray, t: int) -> np.ndarray:
        nonlocal velocity
        sent = []
        for k in range(run.workers):
            total = errors[k] + run.gradient(theta, k, t)
            sent.append(compressed(total, run.shapes, s.compressor, s.rank, np.random.default_rng([run.seed, 9, t])))
            errors[k] = total - sent[k]
        mean = np.mean(sent, axis=0)
        velocity = s.momentum * velocity + mean
        return s.learning_rate * (mean + velocity)

    return _steps(run, step)


def compressed(
    vector: np.ndarray, shapes: Sequence[tuple[int, ...]], compressor: str, rank: int, random: np.random.Generator
) -> np.ndarray:
    """Return what is sent of a vector of variables: of each matrix a part, and the other variables as they are.

    Args:
        vector: the variables one after the other, [P].
        shapes: their shapes.
        compressor: as in `OtherThanLowRank`.
        rank: that of the two factors that have as many bytes.
        random: of the places that are drawn.
    """
    sent, begin = vector.copy(), 0
    for shape in shapes:
        n, m = math.prod(shape[:-1]), math.prod(shape[-1:])
        part, begin = sent[begin : begin + n * m], begin + n * m
        if (count := rank * (n + m)) >= n * m:
            continue
        if compressor == "signs":
            part[:] = np.abs(part).mean() * np.sign(part)
            continue
        if compressor == "random block":
            kept = np.arange(count) + random.integers(n * m - count + 1)
        elif compressor == "random elements":
            kept = random.permutation(n * m)[:count]
        else:
            kept = np.argpartition(-np.abs(part), count // 2)[: count // 2]
        values = part[kept]
        part[:] = 0
        part[kept] = values
    return sent


def _compressed_adam(run: RecordedRun, s: Any) -> Path:
    """Adam on mean gradients; after the first steps on ĝ = C(mean C(g_k + e_k) + e), with memories e_k and e."""
    compress, whole = (synchronous_rules.scaled_sign(shapes) for shapes in (run.shapes, [run.start.shape]))
    errors, error, state = np.zeros((run.workers, len(run.start))), 0 * run.start, {}
    theta, path = run.start.copy(), []
    for t in range(run.steps):
        gradients = np.array([run.gradient(theta, k, t) for k in range(run.workers)])
        mean = gradients.mean(axis=0)
        if t >= s.warmup_steps:
            sent = np.array([compress(total) for total in gradients + errors])
            errors += gradients - sent
            total = sent.mean(axis=0) + error
            mean = whole(total)
            error = total - mean
        theta = adamw_step(theta, mean, s.learning_rate, state, beta_1=s.beta_1, beta_2=s.beta_2, weight_decay=0.0)
        path.append(theta)
    return path


def _steps(run: RecordedRun, step: Callable[[np.ndarray, int], np.ndarray]) -> Path:
    theta, path = run.start.copy(), []
    for t in range(run.steps):
        theta = theta - step(theta, t)
        path.append(theta)
    return path


VARIANTS: dict[Any, Callable[[RecordedRun, Any], Path]] = {
    DampedAGN: _damped_agn,
    MomentumDownpour: _momentum_downpour,
    Forgetful: _forgetful,
    OtherThanLowRank: _other_than_low_rank,
    CompressedAdam: _compressed_adam,
    WholeWithMomentum: lambda run, s: _means(run, s, vote=False),
    FallingSigns: lambda run, s: _means(run, s, vote=True),
}
