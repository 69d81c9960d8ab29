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
        exchange_first: True if the message of a round is ready after its first step, and the others follow the reply.
        members: the workers with these rounds; all if None.

    Attributes:
        steps: local steps of each round.
        kinds: the kind of each round, see `Scheme.kinds`.
        until_message: function of worker and round: nanoseconds from the previous reply to the message of this round.
    """

    def __init__(
        self,
        machines: Machines,
        rounds: Rounds,
        workers: int,
        seed: int,
        exchange_first: bool = False,
        members: Sequence[int] | None = None,
    ):
        self.exchange_first = exchange_first
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
        self.until_message = self._until_first if exchange_first else self.total

    def total(self, worker: int, number: int) -> int:
        """Return the nanoseconds that a worker computes in the round of this number."""
        return self.blocks.item(self.row[worker], number)

    def _until_first(self, worker: int, number: int) -> int:
        before = self.after_reply(worker, number - 1) if number else 0
        return before + self.total(worker, number) - self.after_reply(worker, number)

    def after_reply(self, worker: int, number: int) -> int:
        """Return the nanoseconds of a round after its reply: all steps but the first if it exchanges first, else 0."""
        if not self.exchange_first:
            return 0
        total = self.total(worker, number)
        return total - total // self.steps[number]

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


def plans_of(
    machines: Machines, rounds: Rounds | Sequence[Rounds], workers: int, seed: int, exchange_first: bool
) -> list[WorkerPlan]:
    """Return the plan of each worker, [W], from its rounds, or from the rounds that all share."""
    if isinstance(rounds, Rounds):
        return [WorkerPlan(machines, rounds, workers, seed, exchange_first)] * workers
    kinds: list[tuple[Rounds, list[int]]] = []
    for worker, own in enumerate(rounds):
        members = next((members for known, members in kinds if known is own or known == own), None)
        if members is None:
            kinds.append((own, members := []))
        members.append(worker)
    plan_of: dict[int, WorkerPlan] = {}
    for own, members in kinds:
        plan_of |= dict.fromkeys(members, WorkerPlan(machines, own, workers, seed, exchange_first, members))
    return [plan_of[worker] for worker in range(workers)]
