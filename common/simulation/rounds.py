"""The rounds that the rows of a trace end: how long they are, and on which examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..contract.rounds import Round
from ..engine.trace import EVENTS
from ..errors import UserError
from ..problems.dataset import batches
from ..run.job import Job


class TraceRounds:
    """The rounds of a job, as a trace has them: the n-th row of a worker ends its n-th round.

    A round that was lost with its worker is none: it is done again, on the same batches.

    Args:
        job: what is trained, and how.
        trace: the columns of `RECORD`.

    Attributes:
        clocks: local steps of the worker before the round of each row, [n].
        lengths: local steps of the round, [n]; 0 where a row ends none.

    Raises:
        UserError: a worker has more rounds in the trace than in the job.
    """

    def __init__(self, job: Job, trace: Mapping[str, np.ndarray]):
        self.worker, self.seed, self.batch_size = trace["worker"], job.seed, job.batch_size
        self.clocks, self.lengths = _steps(job, self.worker.tolist(), trace["event"] == EVENTS.index("join"))
        self.shards = job.plan.shards()
        self.streams: dict[int, Iterator[np.ndarray]] = {}
        self.left: dict[int, np.ndarray] = {}

    def take(self, rows: np.ndarray, *, first: bool) -> np.ndarray:
        """The batches of these rounds, as rows of the whole data, [steps, n, batch size].

        With `first`, those of the first steps alone: the others are kept for `take_rest`.
        """
        drawn = [self._draw(k, int(self.lengths[i])) for i, k in zip(rows, self.worker[rows].tolist(), strict=True)]
        if first:
            self.left |= {k: own[1:] for k, own in zip(self.worker[rows].tolist(), drawn, strict=True)}
        return np.stack([own[:1] if first else own for own in drawn], 1)

    def take_rest(self, rows: np.ndarray) -> np.ndarray:
        """What `take` has left of these rounds, [steps - 1, n, batch size]."""
        return np.stack([self.left.pop(k) for k in self.worker[rows].tolist()], 1)

    def _draw(self, worker: int, number: int) -> np.ndarray:
        """Its next batches, [number, batch size]."""
        if worker not in self.streams:
            self.streams[worker] = batches(self.shards.shape[1], self.batch_size, worker, self.seed)
        positions = np.stack([next(self.streams[worker]) for _ in range(number)])
        return self.shards[worker, positions].astype(np.int32)


def _steps(job: Job, worker: list[int], joins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    clocks, lengths = np.zeros(len(worker), np.int64), np.zeros(len(worker), np.int64)
    plans: dict[int, Iterator[Round]] = {}
    done: dict[int, Any] = dict.fromkeys(worker, 0)
    for i, k in enumerate(worker):
        if joins[i]:
            continue
        if k not in plans:
            plans[k] = iter(job.plan.rounds(k))
        steps, _ = next(plans[k], (0, ""))
        if not steps:
            raise UserError(f"the trace has more rounds of worker {k} than it does in a run of {job.steps} steps")
        clocks[i], lengths[i] = done[k], steps
        done[k] += steps
    return clocks, lengths
