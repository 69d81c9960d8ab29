"""The kinds of the values in the files of a run, by which foreign or damaged files are detected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Kind = tuple[str, Callable[[Any], bool]]  # description for errors, and a predicate on a value

MOST_TASKS = 2**20  # most workers or ps tasks of a run: a table of them still fits into memory

MOST_STEPS = 10**12

MOST_AXES = 4  # most dimensions of a metric

MOST_CHARACTERS = 4096  # long enough for the path of a file


def _whole(least: int, most: int) -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return f"a whole number from {least} to {most}", fits


def _or_null(kind: Kind) -> Kind:
    return f"{kind[0]}, or null", lambda value: value is None or kind[1](value)


def _list_of(kind: Kind) -> Kind:
    return f"a list, each {kind[0]}", lambda value: isinstance(value, list) and all(map(kind[1], value))


def _object_of(kind: Kind) -> Kind:
    return f"an object, each {kind[0]}", lambda value: isinstance(value, dict) and all(map(kind[1], value.values()))


def _is(kinds: Mapping[str, Kind]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict) and all(name in value and kinds[name][1](value[name]) for name in kinds)
    )


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MOST_CHARACTERS and value.isprintable()


TEXT: Kind = f"a text of one line, of at most {MOST_CHARACTERS} characters", _text
HYPERPARAMETERS: Kind = (
    f"an object, each text in it of one line and at most {MOST_CHARACTERS} characters",
    lambda value: (
        isinstance(value, dict) and all(_text(some) for some in (*value, *value.values()) if isinstance(some, str))
    ),
)
FIGURE: Kind = (
    "a number, or null",
    lambda value: value is None or (isinstance(value, int | float) and not isinstance(value, bool)),
)
NUMBER: Kind = (
    "a finite number from 0",
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf,
)
STEPS, TASKS = _whole(1, MOST_STEPS), _whole(1, MOST_TASKS)

CONFIG: Mapping[str, Kind] = {
    "algorithm": TEXT, "backend": TEXT, "dataset": TEXT, "model": TEXT, "record": TEXT, "codec": TEXT,
    "hyperparameters": HYPERPARAMETERS, "workers": TASKS, "devices_per_worker": TASKS, "ps": _whole(0, MOST_TASKS),
    "batch_size": _whole(1, 2**31), "steps_per_worker": STEPS, "steps_of_workers": _list_of(_whole(0, MOST_STEPS)),
    "earlier_step_targets": _list_of(STEPS), "seed": _whole(0, 2**32 - 1), "skew": _or_null(TEXT),
    "l2": NUMBER, "clip_norm": _or_null(NUMBER), "ema_decay": _or_null(NUMBER),
}  # fmt: skip

CPU: Mapping[str, Kind] = {"cores": TASKS, "begun": NUMBER, "ended": NUMBER, "seconds": _object_of(NUMBER)}

RECOVERY: Kind = "an object with the evicted workers", _is({"evicted": _list_of(_whole(0, MOST_TASKS))})

RESULT: Mapping[str, Kind] = {
    "algorithm": TEXT, "updates": _or_null(_whole(0, 2**63 - 1)), "recovery": RECOVERY,
    "cpu": _or_null(("an object of cores, timestamps and seconds", _is(CPU))),
}  # fmt: skip

COUNT = _whole(-1, 2**63 - 1)

TALLY: Mapping[str, Kind] = {
    "events": COUNT, "dropped": COUNT, "staleness_sum": COUNT, "staleness_max": COUNT, "version": COUNT,
    "rounds": _list_of(COUNT), "accepted": _list_of(COUNT), "kinds": _list_of(COUNT),
    "staleness": _object_of(COUNT),
}  # fmt: skip

ROW: Mapping[str, Kind] = {
    "kind": TEXT, "seconds": NUMBER, "worker": _whole(0, MOST_TASKS), "loss": FIGURE, "test_loss": FIGURE,
}  # fmt: skip


def is_row(content: Mapping[str, Any]) -> bool:
    """Return True if an object is a valid row of metrics.jsonl."""
    needs = {"kind", "seconds", *(("worker",) if content.get("kind") == "worker" else ())}
    return needs <= content.keys() and all(
        ROW[name][1](value) if name in ROW else _is_figure(value) for name, value in content.items()
    )


def _is_figure(value: Any, axes: int = MOST_AXES) -> bool:
    """Return True for a number or null, and for nested lists of them."""
    if isinstance(value, list):
        return axes > 0 and all(_is_figure(some, axes - 1) for some in value)
    return FIGURE[1](value)


def short(value: Any, most: int = 40) -> str:
    """Return the `repr` of a value, cut after that many characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}..."
