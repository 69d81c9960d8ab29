"""The gradients of a worker's local steps in a file, which `replay` reads where it knows neither loss nor data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..files import no_link, writing
from ..record_format import GRADIENTS


class GradientLog:
    """The file of one worker: a row of P + 1 numbers for each local step.

    The last is the kind: 1 for a gradient, 2 for a move, and 0 in a hole of the file, whose steps are missing.

    A step that is repeated after a fault has its row again. So the log needs no account of rounds that were undone.
    """

    def __init__(self, run_dir: Path, worker: int):
        self.path = run_dir / GRADIENTS.format(worker)
        with writing(self.path):
            self.file = os.fdopen(no_link(self.path, os.O_RDWR | os.O_CREAT), "r+b")

    def write(self, step: int, vector: np.ndarray, is_move: bool) -> None:
        """Write the gradient [P] of a step; or the move of the step, which an optimizer of the script has made."""
        row = np.append(vector, np.float32(2 if is_move else 1))
        with writing(self.path):
            self.file.seek(step * row.nbytes)
            self.file.write(row.data)
            self.file.flush()

    def end(self, steps: int, size: int) -> None:
        """Keep the rows of that number of steps, for vectors of that size, and close the file."""
        with writing(self.path), self.file:
            self.file.truncate(steps * (size + 1) * np.dtype(np.float32).itemsize)
