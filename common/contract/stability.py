"""The largest stable learning rate of an algorithm, where its module names a limit: the `Limits:` in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .hyperparameters import declared, rates_of
from .mixing import largest_step
from .on_graph import OnGraph
from .scheme import Scheme

# The step that a message makes, as a multiple of the rate: a function of the algorithm, W, and the staleness.
STEPS: dict[str, Callable[[Any, int, float], float]] = {
    **dict.fromkeys(("serial", "multi_gpu", "sync_sgd", "all_reduce", "local_sgd"), lambda scheme, workers, delay: 1),
    **dict.fromkeys(("async_sgd", "hogwild", "hierarchical", "dc_asgd"), lambda scheme, workers, delay: 1),
    **dict.fromkeys(("k_batch_async", "k_batch_sync", "k_sync", "k_async"), lambda scheme, workers, delay: 1),
    **dict.fromkeys(("ringmaster", "agn", "adag"), lambda scheme, workers, delay: 1),
    "sync_sgd_lr": lambda scheme, workers, delay: workers if scheme.reduction == "sum" else 1,
    "downpour_easy": lambda scheme, workers, delay: scheme.period,
    "delay_adaptive": lambda scheme, workers, delay: workers / max(delay, workers),
    "dynsgd": lambda scheme, workers, delay: scheme.period / (delay + 1),
    "ssp": lambda scheme, workers, delay: 1 / workers,
}


def largest_rate(scheme: Scheme, workers: int, staleness: float, curvature: float) -> float | None:
    """Return the smallest rate at which an algorithm diverges; None if its module names no limit.

    These are the `Limits:` of the modules, for the iteration on ½hx² with gradients without noise. Steps of
    size s along gradients that are τ updates old are stable for s h < 2 sin(π/(4τ + 2)), which is 2 without staleness;
    W workers in turn have τ = W − 1. The step s that a message makes depends on the algorithm; its staleness τ is
    predicted in virtual time.
    """
    if scheme.name in STEPS:
        staleness += scheme.overlap
        step = STEPS[scheme.name](scheme, workers, staleness)
        return _limit(staleness) / (step * curvature)
    if scheme.name in ("aeasgd", "easgd"):
        return _elastic(scheme, workers) / curvature
    step = _largest_step(scheme, workers)
    return step and step / curvature


def _limit(staleness: float) -> float:
    """Return the s h below which steps of size s along gradients of that staleness are stable on ½hx²."""
    return 2 * math.sin(math.pi / (4 * staleness + 2))


def rate_of(scheme: Any) -> float:
    """Return the rate to which the limit applies."""
    if scheme.name == "sync_sgd_lr":
        return max(scheme.learning_rates)
    if scheme.name == "agn" and scheme.server_learning_rate is not None:
        return scheme.server_learning_rate
    return scheme.learning_rate


def _elastic(scheme: Any, workers: int) -> float:
    """Return the largest η on ½x², period 1: α ≤ (4 − 2η)/(4 − η) in turn, α ≤ (4 − 2η)/(2 + W(2 − η)) together."""
    alpha = scheme.beta / workers
    if scheme.name == "aeasgd":
        return max(0.0, 4 * (1 - alpha) / (2 - alpha))
    return max(0.0, (4 - 2 * alpha - 2 * scheme.beta) / (2 - scheme.beta)) if scheme.beta < 2 else 0.0


# Algorithms whose update is θ ← θ − η g with gradients at one center, of which the mean is taken.
AT_ONE_CENTER = ("serial", "multi_gpu", "sync_sgd", "all_reduce", "local_sgd", "k_sync", "k_batch_sync", "malenia")

AS_THEY_COME = ("async_sgd", "hogwild", "hierarchical", "delay_adaptive", "ringmaster", "ssp")

SUMS = {  # a message has the sum of the gradients of local steps; the server's rate, divided by η, at a staleness
    "downpour_easy": lambda scheme, delay: 1,
    "dynsgd": lambda scheme, delay: 1 / (delay + 1),
    "agn": lambda scheme, delay: 1 / scheme.period,
}


def staleness_of(scheme: Scheme, workers: int) -> int:
    """Return the staleness of each message of W equal workers: W − 1 where no worker waits, else that of a delay."""
    return workers - 1 if scheme.name in AS_THEY_COME or scheme.name in SUMS else scheme.overlap


def diverging_rate(scheme: Any, workers: int, curvature: float) -> float | None:
    """Return the learning rate above which a run of equal workers on ½hx² diverges; None if it is not known exactly.

    With L = 2 sin(π/(4τ + 2)), which is 2 without staleness, steps along gradients that are τ updates old are stable
    for η h < L. H local steps make x ← (1 − η h)ᴴ x, so that a message with their sum moves the center by
    1 − (1 − η h)ᴴ of its distance, times the server's rate divided by η: that must be below L. For gossip see `mixing`.
    Unlike `largest_rate`, this leaves out algorithms for which the limit is an estimate.

    Args:
        scheme: the algorithm.
        workers: W, which take turns.
        curvature: h.
    """
    if step := _largest_step(scheme, workers):
        return step / curvature
    staleness = staleness_of(scheme, workers)
    limit = _limit(staleness)
    if declared(scheme, "inner_optimizer", "sgd") != "sgd" or len(rates_of(scheme)) > 1:
        return None
    if scheme.name in AT_ONE_CENTER:
        return limit / curvature
    if scheme.name in AS_THEY_COME:
        if not scheme.sync.accepts(workers - 1):
            return None
        return limit * (workers if scheme.name == "ssp" else 1) / curvature
    if scheme.name in SUMS:
        most, period = limit / SUMS[scheme.name](scheme, staleness), scheme.period
        if most < 1:
            return (1 - (1 - most) ** (1 / period)) / curvature
        return (1 + (most - 1) ** (1 / period) if period % 2 else 2.0) / curvature
    return None


def _largest_step(scheme: Scheme, workers: int) -> float | None:
    return largest_step(scheme, workers) if isinstance(scheme, OnGraph) else None
