"""Hyperparameters that the benchmark tries: learning rates by factors of two, and what goes with them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..algorithms import SCHEMES

RATES = 0.1, 0.2, 0.4, 0.8, 1.6
INNER, OUTER = (0.008, 0.016, 0.032), (0.2, 0.4, 0.7)  # of AdamW, and of the step of the center

# An algorithm that is not named here gets RATES for its `learning_rate`.
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "downpour": {"learning_rate": (0.2, 0.4, 0.8), "server_learning_rate": (0.05, 0.1, 0.2)},
    "downpour_easy": {"learning_rate": (0.05, 0.1, 0.2, 0.4)},
    "agn": {"learning_rate": (0.2, 0.4, 0.8), "server_learning_rate": (0.8, 1.6, 3.2)},
    "adag": {"learning_rate": (0.8, 1.6, 3.2), "distance_scale": (0.0001, 0.01, 1.0)},
    "dc_asgd": {"learning_rate": (0.2, 0.4, 0.8), "compensation": (0.04, 0.4, 4.0)},
    "aeamsgd": {"learning_rate": (0.01, 0.02, 0.04, 0.08, 0.16)},
    "softsync": {"learning_rate": (0.2, 0.4, 0.8, 1.6, 3.2)},
    "fedbuff": {"learning_rate": (0.2, 0.4, 0.8), "server_learning_rate": (0.5, 1.0, 2.0)},
    "async_diloco": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "ssp": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "sync_sgd": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "all_reduce": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "k_sync": {"learning_rate": RATES, "workers_per_update": (2,)},
    "k_async": {"learning_rate": RATES, "workers_per_update": (2,)},
    "trimmed_mean": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "sync_sgd_lr": {"learning_rates": ((0.4,), (0.8,), (1.6,), (3.2,))},
    "sagn": {"learning_rate": (0.4, 0.8, 1.6), "server_learning_rate": (3.2, 6.4, 12.8)},
    "signsgd_mv": {"learning_rate": (0.001, 0.002, 0.004, 0.008, 0.016), "momentum": (0.0,)},
    "ef_sgd": {"learning_rate": (0.4, 0.8, 1.6)},
    "demo": {"learning_rate": (0.001, 0.002, 0.004, 0.008, 0.016)},
    "ef21_sgdm": {"learning_rate": (0.2, 0.4, 0.8, 1.6)},
    "slowmo": {"learning_rate": (0.2, 0.4, 0.8, 1.6), "slow_momentum": (0.3, 0.6)},
    "fedopt": {"learning_rate": (0.1, 0.2, 0.4), "server_learning_rate": (0.01, 0.03, 0.1)},
    "fedprox": {"learning_rate": (0.2, 0.4, 0.8), "proximity": (0.01, 0.1, 1.0)},
    "bmuf": {"learning_rate": (0.4, 0.8, 1.6), "block_learning_rate": (0.5, 1.0)},
    "diloco": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "sparta": {"learning_rate": INNER},
    "sparseloco": {"learning_rate": INNER, "outer_learning_rate": (0.4, 0.7, 1.0)},
}


def candidates(algorithm: str, period: int) -> list[dict[str, Any]]:
    """Return the settings that are tried for an algorithm, at a communication period if it has one."""
    grid = GRIDS.get(algorithm, {"learning_rate": RATES})
    return [
        with_period(algorithm, period) | dict(zip(grid, values, strict=True))
        for values in itertools.product(*grid.values())
    ]


def beyond(best: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return settings outside of those that were tried, next to the best, for each number that is at an edge."""
    found = []
    for name, value in best.items():
        values = sorted({one[name] for one in tried})
        if "momentum" in name or len(values) == 1 or value not in (values[0], values[-1]):
            continue
        at, neighbour = (_number(one) for one in ((value, values[1]) if value == values[0] else (value, values[-2])))
        further = round(at * at / neighbour, 12)
        found.append({**best, name: (further,) if isinstance(value, tuple) else further})
    return found


def _number(value: Any) -> float:
    return value[0] if isinstance(value, tuple) else value


def with_period(algorithm: str, period: int) -> dict[str, Any]:
    """Return the setting of the communication period, if the algorithm has one."""
    has = "communication_period" in {field.name for field in fields(SCHEMES[algorithm])}
    return {"communication_period": period} if has else {}
