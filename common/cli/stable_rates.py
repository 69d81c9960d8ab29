"""The largest learning rates at which algorithms are stable: the `Limits:` of their modules, in numbers.

They hold for the iteration on ½hx², with gradients without noise. Steps of size s along gradients that are τ updates
old are stable for s h < 2 sin(π/(4τ + 2)), which is 2 without staleness; W workers in turn have τ = W − 1. The step s
that a message makes depends on the algorithm; its staleness τ is predicted in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..contract.scheme import Scheme

# The step that a message makes, as a multiple of the rate: a function of the algorithm, W, and the staleness.
STEPS: dict[str, Callable[[Any, int, float], float]] = {
    **dict.fromkeys(("serial", "multi_gpu", "sync_sgd", "all_reduce", "local_sgd"), lambda scheme, workers, late: 1),
    **dict.fromkeys(("async_sgd", "hogwild", "hierarchical", "dc_asgd"), lambda scheme, workers, late: 1),
    **dict.fromkeys(("ringmaster", "agn", "adag"), lambda scheme, workers, late: 1),
    "sync_sgd_lr": lambda scheme, workers, late: workers if scheme.reduction == "sum" else 1,
    "downpour_easy": lambda scheme, workers, late: scheme.period,
    "dynsgd": lambda scheme, workers, late: scheme.period / (late + 1),
    "ssp": lambda scheme, workers, late: 1 / workers,
}


def largest_rate(scheme: Scheme, workers: int, staleness: float, curvature: float) -> float | None:
    """Return the smallest rate at which an algorithm diverges; None if its module names no limit."""
    if scheme.name in STEPS:
        step = STEPS[scheme.name](scheme, workers, staleness)
        return 2 * math.sin(math.pi / (4 * staleness + 2)) / (step * curvature)
    if scheme.name in ("aeasgd", "easgd"):
        return _elastic(scheme, workers) / curvature
    return None


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
