"""The moments of a worker's rounds in a file of its own: `rounds/worker-<k>.bin`, 24 bytes for each round.

Where a round stands in the file says which one it is. So a round that is done again has the place that it had, and one
whose moments nobody knows (its worker was killed in the middle of a call) leaves a place of zeros.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from ..engine.trace import UNKNOWN
from ..errors import CannotWrite
from ..files import no_link, open_in_place, open_to_read, own_folder, writing

FOLDER = "rounds"

MOMENTS = ("begun", "ready", "replied")

ROW_BYTES = 8 * len(MOMENTS)

CHUNK = 1 << 16  # rows that are in memory at once


def stamp_file(run_dir: Path, worker: int) -> Path:
    """Where a worker that writes into this folder has its moments."""
    return run_dir / FOLDER / f"worker-{worker}.bin"


def stamp_files(run_dir: Path) -> list[Path]:
    """The moments of all workers that have written into a folder."""
    return sorted((run_dir / FOLDER).glob("worker-*.bin"))


class StampWriter:
    """Keeps the moments of the rounds of one worker, and adds them up.

    Args:
        path: of the file; None keeps the sums alone.
        exchange_first: a round goes on computing after its reply, for the next message.

    Attributes:
        timed: rounds that were added up; the first of a process is none of them, it is mostly start-up.
        compute: their seconds from their beginning to their message.
        exchange: from there to the reply.
    """

    def __init__(self, path: Path | None, exchange_first: bool):
        self.path, self.exchange_first = path, exchange_first
        self.timed, self.compute, self.exchange = 0, 0.0, 0.0
        self.started = False
        self.replied: float | None = None  # the last round, if the next one follows it
        self.file: int | None = None

    def add(self, first: int, stamps: np.ndarray) -> None:
        """Rounds from number `first` on; `stamps` are their moments in seconds since 1970, [3, n].

        Raises:
            CannotWrite: the moments from here on are added up, and not on the disk.
        """
        begun, ready, replied = stamps
        if self.exchange_first and self.replied is not None:
            begun[0] = self.replied
        self.replied = replied[-1]
        fresh = slice(None if self.started else 1, None)
        self.started = True
        self.timed += len(begun[fresh])
        self.compute += float((ready - begun)[fresh].sum())
        self.exchange += float((replied - ready)[fresh].sum())
        if self.path is not None:
            self._write(first, (stamps.T * 1e6).astype("<i8"))

    def go_back(self, rounds: int) -> None:
        """The next round is number `rounds`: what is there of later ones is void; raises `CannotWrite`."""
        self.replied = None
        if self.path is not None and self.path.exists():
            with self._writing(self.path), open_in_place(self.path, "r+b") as file:
                file.truncate(min(rounds * ROW_BYTES, self.path.stat().st_size))

    def _write(self, first: int, rows: np.ndarray) -> None:
        assert self.path is not None  # noqa: S101
        with self._writing(self.path):
            if self.file is None:
                own_folder(self.path.parent)
                self.file = no_link(self.path, os.O_WRONLY | os.O_CREAT)
            os.pwrite(self.file, np.ascontiguousarray(rows).tobytes(), first * ROW_BYTES)

    @contextlib.contextmanager
    def _writing(self, path: Path):
        try:
            with writing(path):
                yield
        except CannotWrite:
            self.close()
            self.path = None
            raise

    def close(self) -> None:
        """No more of it."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


class StampReader:
    """The moments of one worker's rounds, in order; what is not there is `UNKNOWN`.

    Args:
        paths: where the file may be.
    """

    def __init__(self, *paths: Path):
        self.path = next((path for path in paths if path.is_file()), None)

    def read(self, first: int, number: int) -> np.ndarray:
        """Rounds from number `first` on: microseconds since 1970, [number, 3]."""
        found = np.full((number, len(MOMENTS)), UNKNOWN, np.int64)
        if self.path is not None:
            with open_to_read(self.path) as file:
                file.seek(first * ROW_BYTES)
                content = file.read(number * ROW_BYTES)
            rows = np.frombuffer(content[: len(content) // ROW_BYTES * ROW_BYTES], "<i8").reshape(-1, len(MOMENTS))
            found[: len(rows)] = np.where(rows == 0, UNKNOWN, rows)
        return found
