"""The rounds of a run on the clocks of those who made them: what a round was spent on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FILE = "rounds.npz"


@dataclass(frozen=True)
class RoundLog:
    """The rounds of all workers.

    Attributes:
        rows: [n, len(ROUND)], see `engine.trace`.
    """

    rows: np.ndarray
