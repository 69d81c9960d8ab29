"""Runs that differ by their seeds alone: a row of a table for each setting, with means and deviations."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .bands import spread
from .sheet import Cell, Figure, Sheet, with_best

Item = TypeVar("Item")

Result = Mapping[str, Any]

COMPLETED = "completed"

FINISHED = (COMPLETED, "diverged")  # outcomes of a run of a sweep that is not made again

# Figures of result.json, by their heading: how to format one, and whether the largest or the smallest is the best.
COLUMNS: dict[str, tuple[str, str, bool | None]] = {
    "test loss": ("test_loss", ",.4f", False),
    "accuracy": ("test_accuracy", ",.4f", True),
    "updates": ("updates", ",.0f", None),
    "seconds": ("seconds_training", ",.1f", None),
    "MB sent": ("megabytes", ",.3g", None),
}

SPREAD = "± sample standard deviation over seeds"


def alike(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Return the items with equal keys together, in the order in which each key comes first."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def completed(results: Iterable[Result]) -> list[Result]:
    """Return the results of the runs that reached their end."""
    return [result for result in results if result.get("outcome") == COMPLETED]


def number_of(results: Sequence[Result]) -> str:
    """Return the number of runs in words: "3", or "2 of 3" if one has failed or has not ended."""
    ended = len(completed(results))
    return str(len(results)) if ended == len(results) else f"{ended} of {len(results)}"


def mean_of(results: Iterable[Result], name: str, form: str = ",.4f") -> Figure | None:
    """Return mean and deviation of a figure over the runs that completed; None unless each of them has it."""
    ended = completed(results)
    values = [value for result in ended if isinstance(value := figures_of(result).get(name), int | float)]
    if not values or len(values) < len(ended) or not all(map(math.isfinite, values)):
        return None
    return replace(spread(values), form=form)


def figures_of(result: Result) -> dict[str, Any]:
    """Return the figures of a result, with the bytes in both directions in MB, and what a script has logged."""
    sent = [value for name in ("bytes_pushed", "bytes_pulled") if (value := result.get(name)) is not None]
    traffic = {"megabytes": sum(sent) / 1e6} if sent else {}
    return {**result, **traffic, **(result.get("figures") or {})}


def sheet(names: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[Result]]], caption: str = "") -> Sheet:
    """Return a table with a row for each setting: means over its seeds; the best have no failed run.

    Args:
        names: headings of the settings.
        rows: for each setting, its cells, and the results of its runs.
        caption: the heading of the table.
    """
    standard, ran = {name for name, *_ in COLUMNS.values()}, [result for _, results in rows for result in results]
    measured = {name.replace("_", " "): name for result in ran for name in result if name.startswith("test_")}
    logged = {name: name for result in ran for name in result.get("figures") or {}}
    more = {title: name for title, name in (measured | logged).items() if title not in COLUMNS and name not in standard}
    wanted = {**COLUMNS, **{title: (name, ",.4f", None) for title, name in more.items()}}
    cells: list[dict[str, Cell]] = []
    for setting, results in rows:
        ends = sorted({result.get("outcome", "unfinished") for result in results} - {COMPLETED})
        figures = {title: mean_of(results, name, form) for title, (name, form, _) in wanted.items()}
        cells.append(
            {**dict(zip(names, setting, strict=True)), "seeds": number_of(results), **figures, "": ", ".join(ends)}
        )
    all_ended = [len(completed(results)) == len(results) for _, results in rows]
    found = {title: [row[title] for row in cells] for title in [*names, "seeds"]}
    for title, (_, _, largest) in wanted.items():
        column = [row[title] for row in cells]
        if largest is not None:
            column = with_best(cells, title, largest=largest, among=all_ended)
        if any(cell is not None for cell in column):
            found[title] = column
    if any(row[""] for row in cells):
        found["failed"] = [row[""] for row in cells]
    titles = list(found)
    several = any(len(results) > 1 for _, results in rows)
    notes = [f"mean {SPREAD}"] * several
    if any(isinstance(cell, Figure) and cell.best for column in found.values() for cell in column):
        notes.append(f"the best {'mean' if several else 'figure'} is bold")
    note = f"{'; '.join(notes)}.".capitalize() if notes else ""
    return Sheet(titles, [list(row) for row in zip(*found.values(), strict=True)], note, caption)
