"""Timestamps of the parts of each simulated round."""

from __future__ import annotations

from array import array

import numpy as np

from ..server.trace import ROUND, UNKNOWN

MICROSECOND = 1000  # nanoseconds


class SimulatedStamps:
    """The timestamps of the present round of each worker, [W] each, and the rows of finished rounds.

    Attributes:
        begun, ready, arrived, released: see `server.trace`; in nanoseconds.
        logged: number of finished rounds of each worker.
    """

    def __init__(self, workers: int):
        self.begun, self.ready, self.arrived, self.released = ([0] * workers for _ in range(4))
        self.logged = [0] * workers
        self.rows = array("q")

    def log(self, worker: int, replied: int) -> None:
        """Log a finished round; `replied` is the time of its reply, or `UNKNOWN` if the worker never gets one."""
        number = self.logged[worker]
        self.logged[worker] = number + 1
        begun, ready, arrived, released = (
            self.begun[worker],
            self.ready[worker],
            self.arrived[worker],
            self.released[worker],
        )
        self.rows.extend((worker, number, begun, ready, arrived, released, replied))

    def rounds(self) -> np.ndarray:
        """Return all finished rounds, [m, len(ROUND)], in microseconds."""
        rows = np.array(self.rows, np.int64).reshape(-1, len(ROUND))
        rows[:, 2:] = np.where(rows[:, 2:] >= 0, rows[:, 2:] // MICROSECOND, UNKNOWN)
        return rows
