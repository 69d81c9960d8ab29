"""The recorded gradients of a script, which `launch` has run: replay knows neither its loss nor its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, first_line
from ..record_format import GRADIENTS, checked, list_of, open_to_read, whole

SHAPES = {"shapes": list_of(list_of(whole(0, 2**40)))}  # in config.json


def with_later_joins(run_dir: Path) -> list[Path]:
    """Return the folder of a run, then those of the later joins of its script, by name."""
    return [run_dir, *sorted(path.parent for path in run_dir.glob("*/config.json"))]


def recorded_gradients(run_dir: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return gradient, steps and shapes of a run, see `read_run`, and True if the script's optimizer made the steps.

    Then the gradient is the move of a step, x before minus x after.
    """
    shapes = [tuple(shape) for shape in checked(run_dir / "config.json", config, SHAPES)["shapes"]]
    size = sum(map(math.prod, shapes))
    rows = [_rows(run_dir / GRADIENTS.format(k), size) for k in range(config["workers"])]
    kinds = np.concatenate([of_worker[:, -1] for of_worker in rows])
    if missing := np.count_nonzero(kinds == 0):
        raise UserError(f"replay needs the gradients of all steps: {missing} are missing, as the run was resumed")
    if len(numbers := {len(of_worker) for of_worker in rows}) > 1:
        raise UserError(f"replay needs equal numbers of steps of all workers. Received: {sorted(numbers)}")
    if len(set(kinds)) != 1:
        raise UserError("replay needs a script that calls either step or stepped, and calls it at least once")

    def gradient(x: np.ndarray, k: int, t: int) -> np.ndarray:
        return rows[k][t, :-1].astype(x.dtype)

    return {"steps": numbers.pop(), "gradient": gradient, "shapes": shapes}, bool(kinds[0] == 2)


def _rows(path: Path, size: int) -> np.ndarray:
    """Return the rows of a worker, [steps, P + 1]; raises `UserError` if the file is damaged."""
    try:
        with open_to_read(path) as file:
            return np.memmap(file, np.float32, "r").reshape(-1, size + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}, which is damaged or missing: {first_line(error)}") from None
