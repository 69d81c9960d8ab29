"""Computing times of each worker's rounds, independent of all other events."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..contract.rounds import Rounds
from .draws import uniforms
from .platform import Machines
from .resources import NEVER

BLOCK_STEPS = 1 << 20  # steps of all workers that are drawn at once


class Durations:
    """The times that workers compute. A step of a worker takes the same time in every algorithm, with any period.

    Args:
        machines: the machines, with the model of a step and the workers' speeds.
        rounds: rounds of each of these workers.
        workers: W.
        seed: seed of the random times.
        exchange_first: True if the message of a round is ready after its first step, and the others follow the reply.
        members: the workers with these rounds; all if None.

    Attributes:
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
        steps = np.array([steps for steps, _ in rounds], np.int64)
        self.workers, self.ends = workers, np.concatenate([[0], np.cumsum(steps)])
        self.step = machines.step * machines.step_factors(workers, seed)
        self.model, self.draw = machines.model, partial(uniforms, seed, "step", range(workers))
        per_round = max(1, int(self.ends[-1]) // max(1, len(steps)))
        self.size = max(1, min(len(steps), BLOCK_STEPS // (workers * per_round)))  # rounds of a block
        self.blocks: list[np.ndarray] = []  # nanoseconds, [members, rounds]
        self.before: Any = None
        self.until_message = self._until_first if exchange_first else self.of

    def of(self, worker: int, number: int) -> int:
        """Return the nanoseconds that a worker computes in the round of this number."""
        block, column = divmod(number, self.size)
        while block >= len(self.blocks):
            self._draw()
        return self.blocks[block].item(self.row[worker], column)

    def _until_first(self, worker: int, number: int) -> int:
        before = self.after_reply(worker, number - 1) if number else 0
        return before + self.of(worker, number) - self.after_reply(worker, number)

    def after_reply(self, worker: int, number: int) -> int:
        """Return the nanoseconds of a round after its reply: all steps but the first if it exchanges first, else 0."""
        if not self.exchange_first:
            return 0
        total = self.of(worker, number)
        return total - total // int(self.ends[number + 1] - self.ends[number])

    def _draw(self) -> None:
        """Draw the next block of rounds of all workers."""
        first = len(self.blocks) * self.size
        ends = self.ends[first : first + self.size + 1]
        multiples, self.before = self.model.multiples(self.draw, int(ends[0]), int(ends[-1] - ends[0]), self.before)
        sums = np.add.reduceat(multiples, ends[:-1] - ends[0], 1)
        took = np.minimum(np.rint(sums * self.step[:, None]), NEVER)
        self.blocks.append(took.astype(np.int64)[self.members])
