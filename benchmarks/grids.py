"""Hyperparameters that the benchmark tries: learning rates by factors of two, and what goes with them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..algorithms import SCHEMES, Scheme

RATES = 0.1, 0.2, 0.4, 0.8, 1.6
WIDER = 2.0  # search spaces of the leaderboard reach so many times beyond the ends of the grids
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
    "heloco": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "ringmaster_lmo": {"learning_rate": (0.0025, 0.005, 0.01, 0.02)},
    "halos": {"learning_rate": INNER, "regional_learning_rate": (0.1, 0.2, 0.4)},
    "ssp": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "sync_sgd": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "all_reduce": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "powersgd": {"learning_rate": (0.02, 0.04, 0.08, 0.16)},
    "dion": {"learning_rate": (0.005, 0.01, 0.02, 0.04)},
    "d_psgd": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "ad_psgd": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "dsgd_tracking": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "sgp": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "noloco": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "gasloc": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "k_sync": {"learning_rate": RATES, "workers_per_update": (2,)},
    "k_async": {"learning_rate": RATES, "workers_per_update": (2,)},
    "trimmed_mean": {"learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "krum": {"learning_rate": (0.2, 0.4, 0.8, 1.6)},
    "sync_sgd_lr": {"learning_rates": ((0.4,), (0.8,), (1.6,), (3.2,))},
    "sagn": {"learning_rate": (0.4, 0.8, 1.6), "server_learning_rate": (3.2, 6.4, 12.8)},
    "signsgd_mv": {"learning_rate": (0.001, 0.002, 0.004, 0.008, 0.016), "momentum": (0.0,)},
    "ef_sgd": {"learning_rate": (0.4, 0.8, 1.6)},
    "demo": {"learning_rate": (0.001, 0.002, 0.004, 0.008, 0.016)},
    "one_bit_adam": {"learning_rate": (0.004, 0.008, 0.016, 0.032)},
    "zero_one_adam": {"learning_rate": (0.004, 0.008, 0.016, 0.032)},
    "marina": {"learning_rate": (0.05, 0.1, 0.2, 0.4)},
    "ef21_sgdm": {"learning_rate": (0.2, 0.4, 0.8, 1.6)},
    "ef21_muon": {"learning_rate": (0.0025, 0.005, 0.01, 0.02)},
    "slowmo": {"learning_rate": (0.2, 0.4, 0.8, 1.6), "slow_momentum": (0.3, 0.6)},
    "fedopt": {"learning_rate": (0.1, 0.2, 0.4), "server_learning_rate": (0.01, 0.03, 0.1)},
    "fedprox": {"learning_rate": (0.2, 0.4, 0.8), "proximity": (0.01, 0.1, 1.0)},
    "feddyn": {"learning_rate": (0.2, 0.4, 0.8), "regularization": (0.03, 0.1, 0.3)},
    "bmuf": {"learning_rate": (0.4, 0.8, 1.6), "block_learning_rate": (0.5, 1.0)},
    "diloco": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "edit": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "streaming_diloco": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "eager_diloco": {"learning_rate": INNER, "outer_learning_rate": OUTER},
    "co2": {"learning_rate": INNER, "outer_learning_rate": (0.5, 1.0, 2.0)},
    "cocod_sgd": {"learning_rate": (0.2, 0.4, 0.8, 1.6)},
    "decoupled_diloco": {"learning_rate": INNER, "outer_learning_rate": OUTER, "quorum": (2,)},
    "palsgd": {"learning_rate": INNER, "outer_learning_rate": (0.4, 0.7), "pull_strength": (0.5, 2.0)},
    "des_loc": {"learning_rate": INNER},
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
        values = sorted({settings[name] for settings in tried})
        if "momentum" in name or len(values) == 1 or value not in (values[0], values[-1]):
            continue
        neighbour = values[1] if value == values[0] else values[-2]
        further = following(name, _number(value), _number(neighbour))
        if further is not None:
            found.append({**best, name: (further,) if isinstance(value, tuple) else further})
    return found


def following(name: str, value: Any, neighbour: Any) -> Any:
    """Return the number beyond the last of a geometric grid; of a momentum, its distance from one is geometric.

    None if there is none: of words, of a momentum below zero, of a whole number below one.
    """
    if not isinstance(value, int | float) or not value > 0:
        return None
    further = 1 - (1 - value) ** 2 / (1 - neighbour) if "momentum" in name else value**2 / neighbour
    further = type(value)(float(f"{further:.6g}"))
    return further if further > 0 else None


def _number(value: Any) -> float:
    return value[0] if isinstance(value, tuple) else value


def with_period(algorithm: str, period: int) -> dict[str, Any]:
    """Return the setting of the communication period, if the algorithm has one."""
    has = "communication_period" in {field.name for field in fields(SCHEMES[algorithm])}
    return {"communication_period": period} if has else {}


def settings_of_trials(kind: type[Scheme], period: int, number: int) -> list[dict[str, Any]]:
    """Return the settings of the trials: points of a Halton sequence in the search space, on logarithmic scales.

    The space is the class attribute `search_space` of the algorithm, {name: (least, most)}, or else its grid in the
    benchmark, made wider. A hyperparameter with one value in the grid keeps it.
    """
    from scipy.stats import qmc

    space = search_space(kind)
    points = qmc.Halton(max(1, len(space)), scramble=False).random(1 + number if space else 2)[1:]  # the first is 0
    fixed = {"communication_period": period} if "communication_period" in _fields(kind) else {}
    return [
        fixed | {name: _between(ends, part) for (name, ends), part in zip(space.items(), point, strict=False)}
        for point in points
    ]


def search_space(kind: type[Scheme]) -> dict[str, tuple[Any, Any]]:
    """Return the least and the greatest value of each hyperparameter that is tuned."""
    if (declared := getattr(kind, "search_space", None)) is not None:
        return dict(declared)
    grid = GRIDS.get(kind.name, {"learning_rate": RATES} if "learning_rate" in _fields(kind) else {})
    return {name: _wider(min(values), max(values)) for name, values in grid.items()}


def _fields(kind: type[Scheme]) -> set[str]:
    return {field.name for field in fields(kind)}


def _wider(least: Any, most: Any) -> tuple[Any, Any]:
    if least == most:
        return least, most
    if isinstance(least, tuple):  # of one rate
        (low, high) = _wider(least[0], most[0])
        return (low,), (high,)
    return least / WIDER, most * WIDER


def _between(ends: tuple[Any, Any], part: float) -> Any:
    least, most = ends
    if least == most:
        return least
    if isinstance(least, tuple):
        return (_between((least[0], most[0]), part),)
    return float(f"{least * (most / least) ** part:.3g}")
