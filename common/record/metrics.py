"""The rows of metrics.jsonl, thinned so that their number is bounded in memory and in the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import CannotWrite
from ..files import dumps, open_in_place, read_rows, replacing, writing
from .kinds import is_row

LIMIT = 2000  # most rows of a series

Row = dict[str, Any]

Numbered = tuple[int, Row]  # the number orders all rows


class Series:
    """A series of rows that keeps every n-th, beginning with the first, and the last; n doubles at `LIMIT` rows."""

    def __init__(self):
        self.kept: list[Numbered] = []
        self.last: list[Numbered] = []  # the last row, unless it is in `kept`
        self.every, self.seen = 1, 0
        self.newest = 0.0  # latest time of a row, seconds

    def add(self, row: Numbered) -> bool:
        """Add a row; returns True if it is kept."""
        keep = self.seen % self.every == 0
        self.seen += 1
        self.last = [] if keep else [row]
        if keep:
            self.kept.append(row)
        return keep

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
        goes_on: keep the rows that the file holds.
    """

    def __init__(self, path: Path, goes_on: bool = False):
        self.path = path
        self.series: dict[tuple[str, Any], Series] = {}
        self.number = 0
        self.ordered = True  # False if a row was appended after one with a later time
        for row in filter(is_row, read_rows(path)) if goes_on else ():  # the file may be foreign
            self._add(row)
        self.file = open_in_place(path, "a", buffering=1)  # line-buffered, so that other programs can follow it
        if goes_on:
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
        series = self.series.setdefault((row["kind"], row.get("worker")), Series())
        self.ordered &= row["seconds"] >= series.newest
        series.newest = max(series.newest, row["seconds"])
        return series.add((self.number, row)), series.thin()

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


def _in_order(rows: Iterable[Numbered]) -> list[Row]:
    """Sort rows by their times; the order of arrival differs, since centers may be evaluated late."""
    return [row for _, row in sorted(rows, key=lambda numbered: (numbered[1]["seconds"], numbered[0]))]
