"""The metrics of a run: rows of metrics.jsonl, thinned so that their number is bounded, and TensorBoard files."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import CannotWrite
from ..files import dumps, open_in_place, own_folder, replacing, writing
from ..lazy import tf
from ..record_format import MOST_TASKS, NUMBER, TEXT, Kind, read_rows, whole

LIMIT = 2000  # most rows of a series

Row = dict[str, Any]

Numbered = tuple[int, Row]  # the number orders all rows

ALWAYS = ("test_accuracy", "test_loss")  # numbers or None, in every result.json

HUGE = 1e6  # from here on a metric is shown with an exponent: all digits would leave no room for other columns
MANY = 5  # most numbers of a metric that are shown one by one


OF_EVERY_ROW = {"kind", "seconds", "run", "worker", "steps"}  # of a worker, beside its figures

MOST_AXES = 4  # most dimensions of a metric

FIGURE: Kind = (
    "a number, or null",
    lambda value: value is None or (isinstance(value, int | float) and not isinstance(value, bool)),
)

ROW: Mapping[str, Kind] = {
    "kind": TEXT, "seconds": NUMBER, "worker": whole(0, MOST_TASKS), "loss": FIGURE, "test_loss": FIGURE,
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


class Series:
    """A series of rows that keeps every n-th, beginning with the first, and the last; n doubles at `LIMIT` rows."""

    def __init__(self):
        self.kept: list[Numbered] = []
        self.last: list[Numbered] = []  # the last row, unless it is in `kept`
        self.every, self.count = 1, 0
        self.newest: tuple[float, int] = (0.0, 0)  # the latest place of a row, see `_place`

    def add(self, row: Numbered) -> bool:
        """Add a row; returns True if it is kept."""
        keep = self.count % self.every == 0
        self.count += 1
        self.last = [] if keep else [row]
        if keep:
            self.kept.append(row)
        return keep

    def cut(self, name: str, most: int) -> None:
        """Drop the rows whose count of this name is above `most`; the next row is kept."""
        self.kept, self.last = ([row for row in rows if row[1].get(name, 0) <= most] for rows in (self.kept, self.last))
        self.count = len(self.kept) * self.every

    def thin(self) -> bool:
        """Drop every other row if the series has reached its limit; returns True if it had."""
        if len(self.kept) < LIMIT:
            return False
        if len(self.kept) % 2 == 0:
            self.last = self.last or [self.kept[-1]]
        self.kept = self.kept[::2]
        self.every *= 2
        return True


class Metrics:
    """The rows of a run; a row is written at once, and dropped rows leave the file when a series is thinned.

    Args:
        path: path of the file, which has a line of JSON for each row.
        resuming: keep the rows that the file holds.
    """

    def __init__(self, path: Path, resuming: bool = False):
        self.path = path
        self.series: dict[tuple[str, Any], Series] = {}
        self.number = 0
        self.ordered = True  # False if a row was appended after one with a later place
        self.repeating: set[tuple[str, Any]] = set()  # series of workers that have not reported since an `undo`
        for row in filter(is_row, read_rows(path)) if resuming else ():  # the file may be foreign
            self._add(row)
        self.file = open_in_place(path, "a", buffering=1)  # line-buffered, so that other programs can follow it
        if resuming:
            self._rewrite()

    @property
    def rows(self) -> list[Row]:
        """The kept rows, the first and the last of each series among them, ordered by their times."""
        return _in_order(row for series in self.series.values() for row in (*series.kept, *series.last))

    def add(self, row: Row) -> None:
        """Add a row to the series of its kind and its worker.

        Raises:
            CannotWrite: the row was added in memory, but not written.
        """
        kept, thinned = self._add(row)
        if thinned:
            self._rewrite()
        elif kept and not self.file.closed:
            with writing(self.path):
                self.file.write(dumps(row) + "\n")

    def undo(self, version: int) -> None:
        """Drop the rows of the center beyond a version from which the run continues, as it repeats them.

        Those of a worker are dropped with its next row, which has the number of its steps.
        """
        for name, series in self.series.items():
            if name[0] == "center":
                series.cut("version", version)
            else:
                self.repeating.add(name)
        self._rewrite()

    def stop_writing(self) -> None:
        """Close the file; rows are kept in memory alone from here on."""
        with contextlib.suppress(OSError):
            self.file.close()  # flushes the buffer, which may fail again

    def close(self) -> None:
        """Write the last rows and close the file; sort all rows if some came late."""
        if not self.file.closed and not self.ordered:
            self._write(self.rows)
        elif not self.file.closed:
            for row in _in_order(row for series in self.series.values() for row in series.last):
                self.file.write(dumps(row) + "\n")
        self.file.close()

    def _add(self, row: Row) -> tuple[bool, bool]:
        self.number += 1
        name = row["kind"], row.get("worker")
        series = self.series.setdefault(name, Series())
        if repeats := name in self.repeating and "steps" in row:
            self.repeating.remove(name)
            series.cut("steps", row["steps"] - 1)
        self.ordered &= _place(row) >= series.newest
        series.newest = max(series.newest, _place(row))
        kept = series.add((self.number, row))
        return kept, series.thin() or repeats

    def _rewrite(self) -> None:
        if not self.file.closed:
            self._write(_in_order(row for series in self.series.values() for row in series.kept))

    def _write(self, rows: Iterable[Row]) -> None:
        """Replace the content of the file by these rows."""
        with contextlib.suppress(CannotWrite):  # the old file stays, which is only longer
            with replacing(self.path) as file:
                file.writelines((dumps(row) + "\n").encode() for row in rows)
            self.file.close()
            self.file = open_in_place(self.path, "a", buffering=1)


def _place(row: Row) -> tuple[float, int]:
    """Return time and version of a row: several versions that were made in one call have the same time."""
    return row["seconds"], row.get("version", 0)


def _in_order(rows: Iterable[Numbered]) -> list[Row]:
    """Sort rows by their places; the order of arrival differs, since centers may be evaluated late."""
    return [row for _, row in sorted(rows, key=lambda numbered: (*_place(numbered[1]), numbered[0]))]


class Summaries:
    """Scalars of the center as TensorBoard files, written by TensorFlow itself, without the package tensorboard."""

    def __init__(self, folder: Path):
        with writing(folder):
            own_folder(folder)
        with tf.Graph().as_default():  # the writer raises outside a graph
            self.writer = tf.compat.v1.summary.FileWriter(str(folder))

    def write(self, metrics: dict[str, Any]) -> None:
        """Write a point for each number, at the version of the center; elements of a vector are `name/0`, ..."""
        found = dict(numbers({name: value for name, value in metrics.items() if name != "version"}))
        values = [tf.compat.v1.Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
        self.writer.add_summary(tf.compat.v1.Summary(value=values), metrics["version"])
        self.writer.flush()


def numbers(metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each number with its name, also those in (nested) lists."""
    for name, value in metrics.items():
        if isinstance(value, list):
            yield from numbers({f"{name}/{i}": item for i, item in enumerate(value)})
        elif isinstance(value, int | float):
            yield name, value


def others(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics on the test data by name, without `ALWAYS`, unless these are vectors."""
    tests = {name: value for name, value in metrics.items() if name.startswith("test_")}
    return {name: value for name, value in tests.items() if name not in ALWAYS or isinstance(value, list)}


def logged(rows: Iterable[Row]) -> dict[str, float]:
    """Return the last figures that the workers' scripts have logged, by name: the mean over the workers."""
    last: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["kind"] == "worker":
            for name in row.keys() - OF_EVERY_ROW:
                if isinstance(row[name], int | float) and math.isfinite(row[name]):
                    last.setdefault(name, {})[row["worker"]] = row[name]
    return {name: sum(values.values()) / len(values) for name, values in sorted(last.items())}


def shown(value: Any) -> str:
    """Format a metric: a number, or the numbers of a vector, or mean and range of a long one."""
    if not isinstance(value, list):
        return "-" if value is None else f"{value:{'.4f' if abs(value) < HUGE else '.2e'}}"
    import numpy as np

    numbers = np.ravel(np.array(value, np.float64))  # None, which JSON has for NaN, becomes NaN again
    if numbers.size <= MANY:
        return " ".join(f"{number:.3f}" for number in numbers)
    return f"mean {numbers.mean():.4f} of {numbers.size}, from {numbers.min():.3f} to {numbers.max():.3f}"


def worsened(
    rows: Iterable[Mapping[str, Any]], last: Mapping[str, Any], hyperparameters: Mapping[str, Any], too_large: str = ""
) -> str | None:
    """Return a warning and advice if the final test loss is far above the first one, or exactly that; else None.

    Args:
        rows: rows of metrics.jsonl, in order.
        last: metrics at the end; it has none of test data if the run had no test data.
        hyperparameters: hyperparameters of the run.
        too_large: why the learning rate is too large, if that is known.
    """
    updates, end = last.get("version", 0), last.get("test_loss")
    centers = (row for row in rows if row["kind"] == "center" and "test_loss" in row)
    before, first = next(((row.get("version", 0), row["test_loss"]) for row in centers), (0, None))
    if first is None or end is None or not math.isfinite(first):
        return None
    if end == first and before == 0 < updates:  # the first evaluation may be that of the end, if they last long
        return (
            f"test loss is {end:.4g} as before the first of {updates} updates, so the center has not moved: an "
            "algorithm of your own takes the gradient in local_step, or sends it as its message"
        )
    if end - first <= abs(first):
        return None
    rate = hyperparameters.get("learning_rate")
    than = f" than {rate}" if isinstance(rate, float | int) else ""  # a rate may be a schedule
    why = too_large or f"try a smaller learning rate{than}, fewer workers or a shorter period"
    return (
        f"test loss rose from {first:.4g} to {end:.4g}, training made the model worse: {why} (docs/not-converging.md)"
    )
