"""The rows of metrics.jsonl: however long a run is, there are not too many of them, in memory and in the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import CannotWrite
from ..files import dumps, open_in_place, read_rows, replacing, writing
from .kinds import is_row

LIMIT = 2000  # rows of a series, at most

Row = dict[str, Any]

Numbered = tuple[int, Row]  # in the order of all rows


class Series:
    """Rows without end, of which every n-th is kept, the first among them, and the last; n doubles now and then."""

    def __init__(self):
        self.kept: list[Numbered] = []
        self.last: list[Numbered] = []  # if it is not among these
        self.every, self.seen = 1, 0
        self.newest = 0.0  # seconds

    def add(self, row: Numbered) -> bool:
        """Add a row; True if it is kept."""
        keep = self.seen % self.every == 0
        self.seen += 1
        self.last = [] if keep else [row]
        if keep:
            self.kept.append(row)
        return keep

    def thin(self) -> bool:
        """Keep half of the rows if there are too many; True if that was so."""
        if len(self.kept) < LIMIT:
            return False
        if len(self.kept) % 2 == 0:
            self.last = self.last or [self.kept[-1]]
        self.kept = self.kept[::2]
        self.every *= 2
        return True


class Metrics:
    """The rows of a run; each is written when it comes, and those that are not kept leave the file later.

    Args:
        path: of the file, with a line of JSON for each row.
        goes_on: take over the rows that are there.
    """

    def __init__(self, path: Path, goes_on: bool = False):
        self.path = path
        self.series: dict[tuple[str, Any], Series] = {}
        self.number = 0
        self.ordered = True  # in the file; a row that comes late is not where it belongs
        for row in filter(is_row, read_rows(path)) if goes_on else ():  # the file may come from elsewhere
            self._add(row)
        self.file = open_in_place(path, "a", buffering=1)  # a line at a time, to be followed
        if goes_on:
            self._rewrite()

    @property
    def rows(self) -> list[Row]:
        """What is kept, in the order of the moments that they are of; the first and the last of each series are."""
        return _in_order(row for series in self.series.values() for row in (*series.kept, *series.last))

    def add(self, row: Row) -> None:
        """Add a row to the series of its kind and its worker.

        Raises:
            CannotWrite: it has been added, but not written.
        """
        kept, thinned = self._add(row)
        if thinned:
            self._rewrite()
        elif kept and not self.file.closed:
            with writing(self.path):
                self.file.write(dumps(row) + "\n")

    def stop_writing(self) -> None:
        """Write nothing any more."""
        with contextlib.suppress(OSError):
            self.file.close()  # tries to write what is left

    def close(self) -> None:
        """Write the last rows, and end the file; if rows have come late, all are put in order."""
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
        """Put these in the place of all that is in the file."""
        with contextlib.suppress(CannotWrite):  # the old file is too long, no more
            with replacing(self.path) as file:
                file.writelines((dumps(row) + "\n").encode() for row in rows)
            self.file.close()
            self.file = open_in_place(self.path, "a", buffering=1)


def _in_order(rows: Iterable[Numbered]) -> list[Row]:
    """In that of their moments, which is not that in which they came: centers may be evaluated late."""
    return [row for _, row in sorted(rows, key=lambda numbered: (numbered[1]["seconds"], numbered[0]))]
