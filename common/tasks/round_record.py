"""The rounds of a run at its end: the timestamps of the workers, joined with the events on the ps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..files import writing
from ..record.columns import save_columns
from ..record.event_log import KIND, WORKER, EventLog
from ..record.joining import Join
from ..record.releases import JOIN, releases_of
from ..record.round_log import FILE, Shares
from ..record.stamp_file import StampReader, stamp_file
from ..server.trace import ROUND
from .coordination import Coordination
from .plan import Plan
from .task_files import TaskFiles

CHUNK = 1 << 16  # number of rounds in memory at once

ROW_BYTES = 8 * len(ROUND)


class RoundRecord:
    """The rounds of a run, joined and written at its end.

    Args:
        files: files of the task.
        plan: rounds of each worker.
        coordination: topology of the run.
        one_clock: all workers are on one machine.

    Attributes:
        waiting: seconds of waiting in a round, or None if unknown.
        shares: shares of a round's time, or None unless the timestamps of all workers are on this machine.
    """

    def __init__(self, files: TaskFiles, plan: Plan, coordination: Coordination, *, one_clock: bool):
        self.files, self.plan, self.coordination, self.one_clock = files, plan, coordination, one_clock
        self.waiting: float | None = None
        self.shares: Shares | None = None

    def write(self, log: EventLog, rounds_applied: np.ndarray, version: int) -> None:
        """Write rounds.npz, unless the record is off, and set `waiting` and `shares`.

        Args:
            log: the events.
            rounds_applied: logged rounds of each worker at the end, [W].
            version: version of the center at the end.

        Raises:
            CannotWrite: the file cannot be written.
        """
        path, join = self.files.folder / FILE, self._join(log, rounds_applied)
        rows = join.rows(log.chunks(), version)
        if not self.files.every_round:
            for _ in rows:
                pass
            self.waiting = join.waiting
            return
        with writing(path), tempfile.TemporaryFile(dir=self.files.folder) as file:
            number = sum(file.write(some.tobytes()) for some in rows) // ROW_BYTES
            self.waiting, self.shares = join.waiting, join.shares
            save_columns(path, ROUND, number, lambda: _read(file))

    def _join(self, log: EventLog, rounds_applied: np.ndarray) -> Join:
        workers, folder = range(self.plan.workers), self.files.folder
        before = np.array(rounds_applied, np.int64)
        for events in log.chunks():
            before -= np.bincount(events[events[:, KIND] != JOIN, WORKER], minlength=len(workers))
        before = np.maximum(before, 0)
        numbers = [len(rounds) for rounds in self.plan.all_rounds]
        releases = releases_of(self.plan.scheme.gate, before.tolist(), numbers)
        # On several machines each worker has its own folder, which this task can read only on a shared file system.
        places = [(folder, folder / f"worker-{k}") for k in workers]
        readers = [StampReader(*(stamp_file(place, k) for place in places[k])) for k in workers]
        collective = self.coordination.is_collective and not self.coordination.in_process
        return Join(releases, readers, before.tolist(), collective, one_clock=self.one_clock)


def _read(file: BinaryIO) -> Iterator[np.ndarray]:
    file.seek(0)
    while block := file.read(CHUNK * ROW_BYTES):
        yield np.frombuffer(block, np.int64).reshape(-1, len(ROUND))
