"""Algorithms that only the claims have: what a claim is compared with, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..algorithms.agn import AGN
from ..algorithms.async_sgd import AsyncSGD
from ..algorithms.ef_sgd import EFSGD
from ..algorithms.signsgd_mv import SignSGDMV
from ..algorithms.sync_sgd import SyncSGD
from ..common.contract import Fraction, Positive
from ..common.replay.recorded import RecordedRun
from ..common.replay.reference import asynchronous_rules, synchronous_rules

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
    WholeWithMomentum: lambda run, s: _means(run, s, vote=False),
    FallingSigns: lambda run, s: _means(run, s, vote=True),
}
