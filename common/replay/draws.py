"""Arguments of the equations that a run draws: numbers by its seed, and the neighbours of a worker on its graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..hostile import attack_of
from .recorded import Hyperparameters, RecordedRun
from .reference import robust_rules
from .under_attack import forging


def drawn(run: RecordedRun, scheme: Hyperparameters) -> Callable[[int], np.ndarray]:
    """Return the elements that are drawn in a round, [P], as a function of its number."""
    from ..contract.seeded import uniform_numbers  # not at the top: few algorithms are random

    return lambda number: uniform_numbers(run.seed, len(run.start), number) < scheme.share


def first_factors(run: RecordedRun, scheme: Hyperparameters) -> np.ndarray:
    """Return the numbers of the first right factors of `powersgd`, [P], the same in each run."""
    from ..contract.seeded import uniform_numbers  # not at the top: few algorithms are random

    return uniform_numbers(0, len(run.start), 0) - 0.5


def drawn_in_step(run: RecordedRun, scheme: Hyperparameters) -> Callable[[int, int], float]:
    """Return the number that a worker draws in a local step, as a function of its index and of the step."""
    from ..contract.seeded import uniform_numbers  # not at the top: few algorithms are random

    return lambda k, t: uniform_numbers(run.seed, 1, k, t)[0]


def peer(run: RecordedRun, scheme: Hyperparameters) -> Callable[[int, int], int]:
    """Return the worker with which a worker averages in a round, as a function of its index and the number."""
    from ..sync.topology import Topology  # not at the top: few algorithms have a graph

    peers = Topology(scheme.topology).peers(run.workers)
    return lambda k, number: int(peers[number % len(peers), k])


def ends(run: RecordedRun, scheme: Hyperparameters) -> list[int]:
    """Return the steps, counted from 1, after which a coin, or the end of a run, made an update."""
    from ..contract.rounds import coins_of  # not at the top: few algorithms are random

    drawn = np.flatnonzero(np.resize(coins_of(run.seed, scheme.probability), run.steps)) + 1
    return np.union1d(drawn, [*run.earlier_step_targets, run.steps])[: run.result["updates"]].tolist()


def coin(run: RecordedRun, scheme: Hyperparameters) -> Callable[[int], bool]:
    """Return the coin of `marina` in a step, as a function of its number."""
    from ..contract.rounds import coins_of  # not at the top: few algorithms are random

    coins = coins_of(run.seed, scheme.share if scheme.probability is None else scheme.probability)
    return lambda t: bool(coins[t % len(coins)])


def rows(run: RecordedRun, scheme: Hyperparameters) -> robust_rules.Rows:
    """Return what a robust rule gets of the workers' gradients: their momenta, in buckets of an order that is drawn."""
    from ..contract.seeded import OF_BUCKETS, uniform_numbers  # not at the top: few algorithms are random

    return robust_rules.Rows(
        momentum=scheme.get("momentum", 0.0),
        bucket=scheme.get("bucket", 1),
        drawn=lambda t: uniform_numbers(0, run.workers, OF_BUCKETS, t),
        attack=forging(attack_of(run.hostile), run.workers),
    )


def hostile_share(run: RecordedRun, scheme: Hyperparameters) -> float:
    """Return the fraction of the workers that `krum` takes for hostile."""
    return 0.25 if scheme.hostile_share is None else scheme.hostile_share
