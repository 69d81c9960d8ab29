"""Experiments of papers on clients that take part by turns."""

from __future__ import annotations

import numpy as np

from ..algorithms.local_sgd import LocalSGD
from ..common.replay.reference.federated_rules import by_turns
from .reproduced_experiment import Experiment, Numbers, path

CLIENTS, TAKING_PART = 100, (1, 10, 50, 100)

RATE, LOCAL_STEPS, COORDINATES, ROUNDS, SETTLED = 0.1, 5, 50, 2000, 50


def _sampling() -> Numbers:
    """Return the stationary variance of the center on ½ ‖x − bᵢ‖², for each number of clients in a round."""
    minima = np.random.default_rng(0).standard_normal((CLIENTS, COORDINATES))
    minima = (minima - minima.mean(0)) / minima.std(0)
    scheme, found = LocalSGD(learning_rate=RATE, communication_period=LOCAL_STEPS), {}
    for number in TAKING_PART:
        gradient = by_turns(lambda x, i, t: x - minima[i], CLIENTS, number, seed=0, period=LOCAL_STEPS)
        rounds = ROUNDS if number < CLIENTS else 2 * SETTLED  # nothing is drawn
        walk = path(scheme, np.zeros(COORDINATES), gradient, workers=number, steps=rounds * LOCAL_STEPS)
        found[f"C{number}"] = float(np.mean(walk[SETTLED:] ** 2))
    return found


def _variance(number: int) -> float:
    """Return (1 − q)/(1 + q) · (N − m)/(m (N − 1)) for m of N clients, with q = (1 − η)^H."""
    q = (1 - RATE) ** LOCAL_STEPS
    return (1 - q) / (1 + q) * (CLIENTS - number) / (number * (CLIENTS - 1))


EXPERIMENTS = [
    Experiment(
        "sampling",
        "`local_sgd --participation`",
        "McMahan et al. 2017 (arXiv:1602.05629), a random part of the clients in each round; ours are "
        f"½ ‖x − bᵢ‖² with {CLIENTS} minima of variance 1, η = {RATE}, {LOCAL_STEPS} local steps, "
        f"{', '.join(map(str, TAKING_PART))} of the clients in a round",
        "a stationary variance of (1 − q)/(1 + q) · (N − m)/(m (N − 1)) with q = (1 − η)^H, as draws are without "
        f"replacement: {', '.join(f'{_variance(number):.5f}' for number in TAKING_PART)}",
        _sampling,
        ", ".join(f"{{C{number}:.5f}}" for number in TAKING_PART),
        lambda found: all(abs(found[f"C{n}"] - _variance(n)) <= 0.03 * _variance(n) + 1e-20 for n in TAKING_PART),
    ),
]
