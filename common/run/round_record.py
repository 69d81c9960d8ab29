"""The rounds of a run at its end: what the workers have stamped, joined with the events on the ps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..engine.trace import ROUND
from ..files import writing
from ..record.columns import save_columns
from ..record.event_log import KIND, WORKER, EventLog
from ..record.joining import Join
from ..record.releases import JOIN, releases_of
from ..record.round_log import FILE, Shares
from ..record.stamp_file import StampReader, stamp_file
from .job import Job

CHUNK = 1 << 16  # rounds that are in memory at once

ROW_BYTES = 8 * len(ROUND)


class RoundRecord:
    """Joins and writes the rounds of a run.

    Args:
        job: the run.
        folded: rounds of each worker that are on record at the end, [W].
        version: of the center at the end.
    """

    def __init__(self, job: Job, folded: np.ndarray, version: int):
        self.job, self.folded, self.version = job, folded, version
        self.waiting: float | None = None  # seconds in a round, if they are known
        self.shares: Shares | None = None  # what a round was spent on, if the moments of all workers are here

    def write(self, log: EventLog) -> None:
        """Write rounds.npz, unless the record is off; what workers have waited is known then, too.

        Raises:
            CannotWrite: the file is not there.
        """
        path, join = self.job.run_dir / FILE, self._join(log)
        rows = join.rows(log.chunks(), self.version)
        if self.job.options.record == "off":
            for _ in rows:
                pass
            self.waiting = join.waiting
            return
        with writing(path), tempfile.TemporaryFile(dir=self.job.run_dir) as file:
            number = sum(file.write(some.tobytes()) for some in rows) // ROW_BYTES
            self.waiting, self.shares = join.waiting, join.shares
            save_columns(path, ROUND, number, lambda: _read(file))

    def _join(self, log: EventLog) -> Join:
        job, workers = self.job, range(self.job.cluster.workers)
        before = np.array(self.folded, np.int64)
        for events in log.chunks():
            before -= np.bincount(events[events[:, KIND] != JOIN, WORKER], minlength=len(workers))
        before = np.maximum(before, 0)
        releases = releases_of(job.scheme.gate, before.tolist(), [len(job.plan.rounds(k)) for k in workers])
        # On several machines a worker has a folder of its own; from here it can be seen if they share a file system.
        places = [(job.run_dir, job.run_dir / f"worker-{k}") for k in workers]
        readers = [StampReader(*(stamp_file(place, k) for place in places[k])) for k in workers]
        ring = job.coordination.is_ring and not job.coordination.in_process
        return Join(releases, readers, before.tolist(), ring, one_clock=job.cluster.task is None)


def _read(file: BinaryIO) -> Iterator[np.ndarray]:
    file.seek(0)
    while block := file.read(CHUNK * ROW_BYTES):
        yield np.frombuffer(block, np.int64).reshape(-1, len(ROUND))
