"""The timestamps of a worker's rounds in a file of its own: `rounds/worker-<k>.bin`, 24 bytes for each round.

The position in the file is the number of the round. So a repeated round overwrites its first attempt, and a round with
unknown timestamps (its worker was killed in the middle of a call) leaves zeros.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from ..errors import CannotWrite
from ..files import no_link, open_in_place, open_to_read, own_folder, writing
from ..server.trace import UNKNOWN

FOLDER = "rounds"

MOMENTS = ("begun", "ready", "replied")

ROW_BYTES = 8 * len(MOMENTS)

CHUNK = 1 << 16  # rows in memory at once


def stamp_file(run_dir: Path, worker: int) -> Path:
    """Return the path of the timestamps of a worker that writes into this folder."""
    return run_dir / FOLDER / f"worker-{worker}.bin"


def stamp_files(run_dir: Path) -> list[Path]:
    """Return the files of timestamps of all workers that have written into a folder."""
    return sorted((run_dir / FOLDER).glob("worker-*.bin"))


class StampWriter:
    """Writes the timestamps of one worker's rounds, and sums their durations.

    Args:
        path: path of the file; None keeps the sums alone.
        exchange_first: a round continues to compute after its reply, for the next message.

    Attributes:
        timed: number of rounds in the sums, without the first of the process, which is mostly start-up.
        compute: seconds of these rounds from their beginning to their message.
        exchange: seconds of these rounds from the message to the reply.
    """

    def __init__(self, path: Path | None, exchange_first: bool):
        self.path, self.exchange_first = path, exchange_first
        self.timed, self.compute, self.exchange = 0, 0.0, 0.0
        self.started = False
        self.replied: float | None = None  # reply of the last round, unless the next round was restored
        self.file: int | None = None

    def add(self, first: int, stamps: np.ndarray) -> None:
        """Add rounds from number `first` on; `stamps` are their timestamps in seconds since 1970, [3, n].

        Raises:
            CannotWrite: timestamps from here on are summed, but not written.
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
        """Remove the timestamps of round number `rounds` and later ones, which are repeated; raises `CannotWrite`."""
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
        """Close the file."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


class StampReader:
    """Reads the timestamps of one worker's rounds; missing ones are `UNKNOWN`.

    Args:
        paths: possible paths of the file, of which the first that exists is read.
    """

    def __init__(self, *paths: Path):
        self.path = next((path for path in paths if path.is_file()), None)

    def read(self, first: int, number: int) -> np.ndarray:
        """Return the timestamps of rounds from number `first` on: microseconds since 1970, [number, 3]."""
        found = np.full((number, len(MOMENTS)), UNKNOWN, np.int64)
        if self.path is not None:
            with open_to_read(self.path) as file:
                file.seek(first * ROW_BYTES)
                content = file.read(number * ROW_BYTES)
            rows = np.frombuffer(content[: len(content) // ROW_BYTES * ROW_BYTES], "<i8").reshape(-1, len(MOMENTS))
            found[: len(rows)] = np.where(rows == 0, UNKNOWN, rows)
        return found
