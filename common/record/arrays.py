"""The arrays in a run directory, read and checked."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.trace import EVENTS, RECORD
from ..errors import UserError


def read_arrays(run_dir: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays in a file of a run that has ended.

    Raises:
        UserError: it is not there, or damaged.
    """
    try:
        with np.load(run_dir / name) as file:
            return dict(file)
    except FileNotFoundError:
        raise UserError(f"the run in {run_dir} has no {name}: it came to no result") from None
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read {run_dir / name}: {error}") from None


def read_trace(run_dir: Path, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The events of a run that has ended: a column for each name of `RECORD`.

    Args:
        run_dir: of the run.
        config: what its config.json says.

    Raises:
        UserError: there is no trace, or it is damaged.
    """
    if config["record"] == "off":
        raise UserError(f"the run in {run_dir} was recorded with record=off: there is no trace.npz")
    trace = read_arrays(run_dir, "trace.npz")
    if set(trace) != set(RECORD) or len({column.shape for column in trace.values()}) != 1:
        raise UserError(f"trace.npz is damaged: it needs the columns {', '.join(RECORD)}, of one length")
    for name, end in (("worker", config["workers"]), ("event", len(EVENTS)), ("accepted", 2)):
        if not ((trace[name] >= 0) & (trace[name] < end)).all():
            raise UserError(f"trace.npz is damaged: {name} must be at least 0 and less than {end}")
    return trace
