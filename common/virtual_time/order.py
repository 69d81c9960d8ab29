"""The order of events in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Order:
    """What happens in a run, and when.

    Attributes:
        trace: the events on the ps in order: for each name of `RECORD` a column of integers, [n]; see `engine.trace`.
            Microseconds are of virtual time, since the start.
        rounds: of all workers, [m, len(ROUND)], in microseconds of virtual time.
        seconds: the virtual time of the end.
    """

    trace: Mapping[str, np.ndarray]
    rounds: np.ndarray
    seconds: float
