"""The rounds of a run at its end: a row for each event that ends a round, with all its times."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..files import writing
from ..record.array_files import save_columns
from ..record.event_log import BEGUN, COMPUTED, KIND, MICROSECONDS, READY, RELEASED, REPLIED, WORKER, EventLog
from ..record.round_log import FILE, TimeTotals
from ..server.trace import ROUND, UNKNOWN, ends_round
from .job import Job

CHUNK = 1 << 16  # number of rounds in memory at once

ENDS = [RELEASED, COMPUTED, REPLIED]

ROW_BYTES = 8 * len(ROUND)


class RoundRecord:
    """The rounds of a run, written at its end.

    Args:
        job: the run, with its synchronization rule and the files of this task.

    Attributes:
        spent: the times of the rounds that were written.
    """

    def __init__(self, job: Job):
        self.folder, self.every_round, self.sync = job.run_dir, job.options.every_round, job.scheme.sync
        self.in_process, self.one_clock = job.cluster.placement.in_process, job.cluster.task is None
        self.spent = TimeTotals(since=job.began, one_clock=self.one_clock)

    def write(self, log: EventLog, rounds: np.ndarray, ends: np.ndarray) -> None:
        """Write rounds.npz, unless the record is off, and count them in `spent`.

        Args:
            log: the events.
            rounds: logged rounds of each worker at the end, [W].
            ends: `released`, `computed` and `replied` of the last round of each worker, [W, 3].

        Raises:
            CannotWrite: the file cannot be written.
        """
        path = self.folder / FILE
        with writing(path), tempfile.TemporaryFile(dir=self.folder) as file:
            end = number = int(log.tally.rounds.sum())
            for rows in self._blocks(log, rounds.copy(), ends.copy()):
                self.spent.add(rows)
                if self.every_round:
                    end -= len(rows)
                    file.seek(end * ROW_BYTES)
                    file.write(rows.tobytes())
            self.spent.is_whole = log.first == 0
            if self.every_round:
                save_columns(path, ROUND, number, lambda: _read(file))

    def _blocks(self, log: EventLog, numbers: np.ndarray, after: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the rounds in blocks, the last block first: the end of a round is in the worker's next row."""
        for events in log.chunks(backwards=True):
            rows = rounds_of(events[ends_round(events[:, KIND])], numbers, after)
            ready, arrived, released = (rows[:, ROUND.index(name)] for name in ("ready", "arrived", "released"))
            if not self.sync.waits:
                released[:] = arrived
            elif self.sync.gossips or (self.sync.is_collective and not self.in_process):
                # Workers without a ps: a message has arrived when it is ready.
                arrived[:] = ready if self.one_clock else UNKNOWN
                if not self.one_clock:  # the last message is the one that is ready last, on one clock
                    released[:] = UNKNOWN
            yield rows


def rounds_of(events: np.ndarray, numbers: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the rounds that end with these events, [n, len(ROUND)], in their order.

    Args:
        events: events of rounds, [n, len(ROW)].
        numbers: numbers of each worker's first round after these events, [W]; set to those of the first among them.
        after: `released`, `computed`, `replied` in each worker's first row after these, [W, 3]; set in the same way.
    """
    order = np.argsort(events[:, WORKER], kind="stable")
    ordered, first = events[order], np.ones(len(events), bool)
    workers = ordered[:, WORKER]
    first[1:] = workers[1:] != workers[:-1]
    last = np.roll(first, -1)
    ended = np.roll(ordered[:, ENDS], -1, 0)
    ended[last] = after[workers[last]]
    after[workers[first]] = ordered[first][:, ENDS]
    counts = np.bincount(workers, minlength=len(numbers))
    numbers -= counts
    number = numbers[workers] + np.arange(len(ordered)) - np.repeat(np.flatnonzero(first), counts[counts > 0])
    rows = np.empty((len(ordered), len(ROUND)), np.int64)
    released, computed, replied = ended.T
    begun, ready, arrived = ordered[:, [BEGUN, READY, MICROSECONDS]].T
    rows[order] = np.column_stack([workers, number, begun, ready, computed, arrived, released, replied])
    return rows


def _read(file: BinaryIO) -> Iterator[np.ndarray]:
    file.seek(0)
    while block := file.read(CHUNK * ROW_BYTES):
        yield np.frombuffer(block, np.int64).reshape(-1, len(ROUND))
