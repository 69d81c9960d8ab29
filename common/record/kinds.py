"""What the values in the files of a run must be: a folder may come from elsewhere, or be damaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError

Kind = tuple[str, Callable[[Any], bool]]  # what a value must be, in words, and whether it is

MOST_TASKS = 2**20  # workers of a run, or ps tasks: more than any has, and few enough for a table of them

MOST_STEPS = 10**12


def _whole(least: int, most: int) -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return f"a whole number from {least} to {most}", fits


def _or_null(kind: Kind) -> Kind:
    return f"{kind[0]}, or null", lambda value: value is None or kind[1](value)


def _list_of(kind: Kind) -> Kind:
    return f"a list, each {kind[0]}", lambda value: isinstance(value, list) and all(map(kind[1], value))


TEXT: Kind = "a text", lambda value: isinstance(value, str)
OBJECT: Kind = "an object", lambda value: isinstance(value, dict)
NUMBER: Kind = (
    "a finite number from 0",
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf,
)
STEPS, TASKS = _whole(1, MOST_STEPS), _whole(1, MOST_TASKS)

CONFIG: Mapping[str, Kind] = {
    "algorithm": TEXT, "backend": TEXT, "dataset": TEXT, "model": TEXT, "record": TEXT, "codec": TEXT,
    "hyperparameters": OBJECT, "workers": TASKS, "devices_per_worker": TASKS, "ps": _whole(0, MOST_TASKS),
    "batch_size": _whole(1, 2**31), "steps_per_worker": STEPS, "steps_of_workers": _list_of(_whole(0, MOST_STEPS)),
    "earlier_step_targets": _list_of(STEPS), "seed": _whole(0, 2**32 - 1), "skew": _or_null(TEXT),
    "l2": NUMBER, "clip_norm": _or_null(NUMBER), "ema_decay": _or_null(NUMBER),
}  # fmt: skip

RESULT: Mapping[str, Kind] = {"algorithm": TEXT, "updates": _or_null(_whole(0, 2**63 - 1)), "recovery": OBJECT}


def check(path: Path, content: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Raise `UserError` for the first value in a file that is not what its name says; what is missing is none of these.

    Args:
        path: of the file.
        content: its values by name.
        kinds: what they must be.
    """
    for name, (what, fits) in kinds.items():
        if name in content and not fits(content[name]):
            raise UserError(f"{path} is damaged: {name} must be {what}. Received: {_short(content[name])}")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."
