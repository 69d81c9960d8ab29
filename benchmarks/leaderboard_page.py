"""The table of the leaderboard, made from the JSON of its results."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..common.record.bands import spread
from ..common.record.repeats import SPREAD
from ..common.record.sheet import Cell, Figure, Sheet, with_best
from .outcome_files import write

FILE = "leaderboard.json"
PLATFORMS = "rack", "regions", "federated"  # in the order of the columns
SLOWEST = 4.0  # a workload counts nothing for an algorithm that needs this many times the least time


@dataclass(frozen=True)
class Entry:
    """An algorithm on a workload, with the settings of its best trial: None for seeds that never reached the target."""

    algorithm: str
    platform: str
    task: str
    settings: dict[str, Any]
    seconds: list[float | None]
    megabytes: list[float | None]

    @property
    def workload(self) -> str:
        """Return the name in the table."""
        return f"{self.platform}, {self.task}"


def kept(results: Path) -> list[Entry]:
    """Return the entries in the file of a folder."""
    path = results / FILE
    return [Entry(**row) for row in json.loads(path.read_text())] if path.exists() else []


def keep(entries: Sequence[Entry], results: Path) -> None:
    """Write entries beside those in the file, in place of those of the same algorithm and workload."""
    write(results / FILE, [asdict(entry) for entry in renewed(kept(results), entries)])


def renewed(before: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """Return entries in place of those of the same algorithm and workload, beside the others, in a fixed order."""
    found = {(entry.algorithm, entry.workload): entry for entry in [*before, *entries]}
    return [found[place] for place in sorted(found)]


def cells(entries: Sequence[Entry]) -> list[list[str]]:
    """Return the rows of the table, its titles first; the best by seconds is on top."""
    columns = sorted({(PLATFORMS.index(entry.platform), entry.task, entry.workload) for entry in entries})
    by_place = {(entry.algorithm, entry.workload): entry for entry in entries}
    by_seconds, by_bytes = (scores(entries, measure) for measure in ("seconds", "megabytes"))
    rows = [["algorithm", "score: seconds", "bytes", *(workload for *_, workload in columns)]]
    for name in sorted(by_seconds, key=lambda name: (-by_seconds[name], name)):
        measured = [_cell(by_place.get((name, workload))) for *_, workload in columns]
        rows.append([name, f"{by_seconds[name]:.2f}", f"{by_bytes[name]:.2f}", *measured])
    return rows


def sheet(entries: Sequence[Entry]) -> Sheet:
    """Return a table with a row for each algorithm: scores, and seconds to each target, as means over the seeds."""
    workloads = sorted({(PLATFORMS.index(entry.platform), entry.task, entry.workload) for entry in entries})
    by_place = {(entry.algorithm, entry.workload): entry for entry in entries}
    by_seconds, by_bytes = (scores(entries, measure) for measure in ("seconds", "megabytes"))
    names = sorted(by_seconds, key=lambda name: (-by_seconds[name], name))
    columns: dict[str, list[Cell]] = {"algorithm": list(names)}
    for title, found in (("score: seconds", by_seconds), ("score: bytes", by_bytes)):
        rows = [{title: Figure(found[name], form=".2f")} for name in names]
        columns[title] = with_best(rows, title, largest=True, among=[True] * len(rows))
    for *_, workload in workloads:
        rows = [{workload: _seconds(by_place.get((name, workload)))} for name in names]
        columns[workload] = with_best(rows, workload, largest=False, among=[True] * len(rows))
    note = f"Scores from 0 to 1; virtual seconds to the target {SPREAD}; the best of a column is bold."
    return Sheet(list(columns), [list(row) for row in zip(*columns.values(), strict=True)], note)


def _seconds(entry: Entry | None) -> Cell:
    """Return the mean of the seconds to the target; how many seeds reached it, if not all did."""
    if entry is None:
        return None
    reached = [value for value in entry.seconds if value is not None]
    return spread(reached) if len(reached) == len(entry.seconds) else f"{len(reached)} of {len(entry.seconds)}"


def scores(entries: Sequence[Entry], measure: str = "seconds") -> dict[str, float]:
    """Return the score of each algorithm: the area under its performance profile, from 0 to 1, as in AlgoPerf.

    The profile at τ, from 1 to `SLOWEST`, is the share of workloads on which the algorithm needs at most τ times the
    least of all. So a workload on which it needs r times the least adds (SLOWEST - r) / (SLOWEST - 1).
    """
    spent = {(one.algorithm, one.workload): _middle(getattr(one, measure)) for one in entries}
    workloads = {workload for _, workload in spent}
    best = {one: min(value for (_, workload), value in spent.items() if workload == one) for one in workloads}
    found = {name: 0.0 for name, _ in spent}
    for (name, workload), value in spent.items():
        found[name] += _part(value, best[workload]) / len(workloads)
    return found


def _part(value: float, best: float) -> float:
    return 0.0 if math.isinf(value) else max(0.0, (SLOWEST - value / best) / (SLOWEST - 1))


def _middle(values: Sequence[float | None]) -> float:
    """Return the median over seeds: infinite if most seeds never reached the target."""
    return median(math.inf if value is None else value for value in values)


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return ""
    seconds = _middle(entry.seconds)
    if math.isinf(seconds):
        return "never"
    return f"{_digits(seconds)} s, {_digits(_middle(entry.megabytes))} MB"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.2f}"


def leaderboard(results: Path) -> str:
    """Return the table in Markdown."""
    entries = kept(results)
    if not entries:
        return ""
    title, *rows = cells(entries)
    lines = [title, ["---"] * len(title), *([f"`{name}`", *rest] for name, *rest in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
