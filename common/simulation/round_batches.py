"""The rounds that the rows of a trace end: their lengths and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..contract.rounds import Round
from ..data.dataset import epoch_order
from ..errors import UserError
from ..server.trace import EVENTS
from ..tasks.job import Job


class TraceRounds:
    """The rounds of a job in the order of a trace: the n-th row of a worker ends its n-th round.

    A round that was lost in a crash of its worker does not count: it is done again, on the same batches.

    Args:
        job: the job to train.
        trace: the columns of `RECORD`.

    Attributes:
        clocks: local steps of the worker before the round of each row, [n].
        numbers: rounds of the worker before that round, [n].
        lengths: local steps of the round, [n]; 0 if the row ends none.

    Raises:
        UserError: a worker has more rounds in the trace than in the job.
    """

    def __init__(self, job: Job, trace: Mapping[str, np.ndarray]):
        self.worker, self.seed, self.batch_size = trace["worker"], job.seed, job.batch_size
        self.clocks, self.lengths, self.numbers = _steps(
            job, self.worker.tolist(), trace["event"] == EVENTS.index("join")
        )
        self.shards = job.plan.shards()
        self.batches_of_epoch = self.shards.shape[1] // self.batch_size
        self.epoch = np.full(len(self.shards), -1)  # present epoch of each worker, [W]
        self.examples = np.empty(self.shards.shape, np.int32)  # each worker's shard in the order of that epoch

    def take(self, rows: np.ndarray, first: int, last: int) -> np.ndarray:
        """Return the batches of some steps of these rounds, as rows of the whole data, [last - first, n, batch size].

        A batch is a function of the worker and its clock. Only a change of a worker's epoch, also backwards, shuffles
        its shard.

        Args:
            rows: rows of the trace, [n]; their rounds have at least `last` steps.
            first: index in the round of the first step, from 0.
            last: index after the last step.
        """
        workers, span = self.worker[rows], np.arange(self.batch_size)
        taken = np.empty((last - first, len(rows), self.batch_size), np.int32)
        for t, batch in zip(range(first, last), taken, strict=True):
            epochs, within = np.divmod(self.clocks[rows] + t, self.batches_of_epoch)
            for i in np.flatnonzero(self.epoch[workers] != epochs).tolist():
                self._shuffle(int(workers[i]), int(epochs[i]))
            batch[:] = self.examples[workers[:, None], within[:, None] * self.batch_size + span]
        return taken

    def _shuffle(self, worker: int, epoch: int) -> None:
        order = epoch_order(self.shards.shape[1], worker, self.seed, epoch)
        self.examples[worker], self.epoch[worker] = self.shards[worker, order], epoch


def _steps(job: Job, worker: list[int], joins: np.ndarray) -> tuple[np.ndarray, ...]:
    clocks, lengths, numbers = np.zeros((3, len(worker)), np.int64)
    plans: dict[int, Iterator[Round]] = {}
    done: dict[int, Any] = dict.fromkeys(worker, 0)
    rounds: dict[int, int] = dict.fromkeys(worker, 0)
    for i, k in enumerate(worker):
        if joins[i]:
            continue
        if k not in plans:
            plans[k] = iter(job.plan.rounds(k))
        steps, _ = next(plans[k], (0, ""))
        if not steps:
            raise UserError(f"the trace has more rounds of worker {k} than it does in a run of {job.steps} steps")
        clocks[i], lengths[i], numbers[i] = done[k], steps, rounds[k]
        done[k] += steps
        rounds[k] += 1
    return clocks, lengths, numbers
