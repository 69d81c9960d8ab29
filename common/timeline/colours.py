"""Staleness as a colour: a scale whose steps look alike, to those who see red and green alike, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .lanes import Lanes

# Viridis (van der Walt & Smith 2015, CC0) at 17 points, without its ends: too near to black, and too pale beside white.
SCALE = (
    "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219",
)  # fmt: skip

UNKNOWN = "#b9bec7"  # of a round that is not on record

TRANSFER, WAIT = "#7d8590", "#e4e7eb"

SHARE = 99.0  # per cent of the messages have a colour of their own; a few late ones would take it from all others


def last_of_scale(runs: Sequence[Lanes]) -> int:
    """The staleness from which on all have the last colour: the same for all runs, at least 1."""
    known = np.concatenate([run.columns["staleness"][run.columns["staleness"] >= 0] for run in runs])
    return max(1, int(np.ceil(np.percentile(known, SHARE)))) if len(known) else 1
