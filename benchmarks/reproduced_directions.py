"""Experiments of papers on the average of many workers' moves: its length, and what an outer step makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..common.replay.reference.gradients import Gradient
from ..common.replay.reference.inner_steps import adamw_step
from ..common.replay.reference.quorum_rules import decoupled_diloco, mean, radial_directional
from .reproduced_experiment import Experiment, Numbers, on_digits

LEARNERS = 2, 4, 8, 16

HIDDEN, BATCH, STEPS, SEEDS = 32, 16, 400, 3

PERIOD, ETA, EPSILON, MU = 20, 0.002, 0.7, 0.9  # the defaults of the scheme

Average = Callable[[np.ndarray, np.ndarray], np.ndarray]

RULES: dict[str, Average] = {"plain": mean, "radial": radial_directional}


def _directions() -> Numbers:
    """Return the length of the plain average in units of the mean length, and the losses at the end, for each M.

    Lengths are those of the first kernel in the second half of the run.
    """
    found: dict[str, float] = {}
    for learners in LEARNERS:
        for name, rule in RULES.items():
            losses, lengths = [], []
            for seed in range(SEEDS):
                task = on_digits(HIDDEN, learners, BATCH, seed)
                end, of_tensors = _run(task.start, task.gradient, learners, task.tensors, rule)
                kernels = of_tensors[:: len(task.tensors)]
                losses.append(task.test_loss(end))
                lengths += kernels[len(kernels) // 2 :]
            found[f"{name}{learners}"] = float(np.mean(losses))
            found[f"{name}_length{learners}"] = float(np.mean(lengths))
    return found


def _run(
    theta: np.ndarray, gradient: Gradient, learners: int, tensors: Sequence[int], rule: Average
) -> tuple[np.ndarray, list[float]]:
    """Return the end of a run with a quorum of all, and how long the plain average of each tensor was in each round."""
    lengths: list[float] = []

    def average(v: np.ndarray, w: np.ndarray) -> np.ndarray:
        lengths.append(np.linalg.norm(v.mean(axis=0)) / np.linalg.norm(v, axis=1).mean())
        return rule(v, w)

    rounds = STEPS // PERIOD
    centers, _ = decoupled_diloco(
        theta,
        gradient,
        [(k, updates) for updates in range(rounds) for k in range(learners)],
        learners,
        eta=ETA,
        epsilon=EPSILON,
        mu=MU,
        count=learners,
        work=[1.0],
        sizes=tensors,
        period=PERIOD,
        steps=STEPS,
        ends=[rounds],
        inner=adamw_step,
        average=average,
    )
    return centers[-1], lengths


def _for_each(name: str, digits: int) -> str:
    """Return the format of the numbers for each M."""
    return ", ".join(f"{{{name}{learners}:.{digits}f}}" for learners in LEARNERS)


EXPERIMENTS = [
    Experiment(
        "directions",
        "`decoupled_diloco`",
        "Douillard et al. 2026 (arXiv:2604.21428), the radial-directional average; ours is a network with "
        f"{HIDDEN} hidden units on digits, {STEPS} steps of M = 2, 4, 8, 16 workers with the defaults of the scheme, a "
        f"quorum of all and batches of {BATCH}, mean of {SEEDS} seeds",
        "the moves of different workers are nearly orthogonal, so that their plain average has a length of 1/√M: "
        + ", ".join(f"{learners**-0.5:.2f}" for learners in LEARNERS)
        + "; with the radial-directional average more workers need no other outer rate",
        _directions,
        f"lengths {_for_each('plain_length', 2)} in the second half of the run; loss at the end with the plain average "
        f"{_for_each('plain', 3)}, with the radial-directional one {_for_each('radial', 3)}",
        lambda found: (
            all(abs(found[f"plain_length{learners}"] * learners**0.5 - 1) < 0.2 for learners in LEARNERS)
            and all(found[f"radial{learners}"] < found[f"plain{learners}"] for learners in LEARNERS[1:])
        ),
    ),
]
