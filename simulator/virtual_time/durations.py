"""The rounds of each worker and their computing times, which are independent of all other events."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...common.cluster.distributions import Blocks, uniforms
from ...common.cluster.platform import Machines
from ...common.contract.rounds import Rounds
from .resources import NEVER

BLOCK_STEPS = 1 << 20  # steps of all workers that are drawn at once


class WorkerPlan:
    """The rounds of some workers. A step of a worker takes the same time in every algorithm, with any period.

    Args:
        machines: the machines, with the model of a step and the workers' speeds.
        rounds: rounds of each of these workers.
        workers: W.
        seed: seed of the random times.
        members: the workers with these rounds; all if None.

    Attributes:
        steps: local steps of each round.
        kinds: the kind of each round, see `Scheme.kinds`.
    """

    def __init__(
        self,
        machines: Machines,
        rounds: Rounds,
        workers: int,
        seed: int,
        members: Sequence[int] | None = None,
    ):
        self.members = range(workers) if members is None else members
        self.row = {worker: row for row, worker in enumerate(self.members)}
        self.steps, self.kinds = zip(*rounds, strict=True) if len(rounds) else ((), ())
        self.ends = np.cumsum((0, *self.steps))
        self.step = machines.step * machines.step_factors(workers, seed)
        self.model, self.uniforms = machines.model, partial(uniforms, seed, "step", range(workers))
        per_round = max(1, int(self.ends[-1]) // max(1, len(rounds)))
        size = max(1, min(len(rounds), BLOCK_STEPS // (workers * per_round)))  # rounds of a block
        self.blocks = Blocks(size, self._draw)  # nanoseconds, [members, rounds]
        self.state: Any = None  # of the model, between two blocks

    def total(self, worker: int, number: int) -> int:
        """Return the nanoseconds that a worker computes in the round of this number."""
        return self.blocks.item(self.row[worker], number)

    def after_message(self, worker: int, number: int, overlap: int) -> int:
        """Return the nanoseconds of the last `overlap` steps of a round, or of all if it has fewer."""
        return self.total(worker, number) * min(overlap, self.steps[number]) // self.steps[number]

    def _draw(self, rounds: slice) -> np.ndarray:
        """Draw these rounds of all workers."""
        ends = self.ends[rounds.start : rounds.stop + 1]
        number = int(ends[-1] - ends[0])
        multiples, self.state = self.model.multiples(self.uniforms, int(ends[0]), number, self.state)
        sums = np.add.reduceat(multiples, ends[:-1] - ends[0], 1)
        took = np.minimum(np.rint(sums * self.step[:, None]), NEVER)
        return took.astype(np.int64)[self.members]


def plans_of(machines: Machines, rounds: Rounds | Sequence[Rounds], workers: int, seed: int) -> list[WorkerPlan]:
    """Return the plan of each worker, [W], from its rounds, or from the rounds that all share."""
    if isinstance(rounds, Rounds):
        return [WorkerPlan(machines, rounds, workers, seed)] * workers
    kinds: list[tuple[Rounds, list[int]]] = []
    for worker, r in enumerate(rounds):
        members = next((members for first, members in kinds if first is r or first == r), None)
        if members is None:
            kinds.append((r, members := []))
        members.append(worker)
    plan_of: dict[int, WorkerPlan] = {}
    for r, members in kinds:
        plan_of |= dict.fromkeys(members, WorkerPlan(machines, r, workers, seed, members))
    return [plan_of[worker] for worker in range(workers)]
