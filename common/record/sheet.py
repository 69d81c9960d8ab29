"""A table of figures in the format that a terminal, a paper, a page or a spreadsheet needs."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from .tables import columns

TableFormat = Literal["csv", "md", "latex"]

HUGE = 1e6  # a mean from here on is shown with an exponent, as is a deviation that `MOST_DECIMALS` cannot show

MOST_DECIMALS = 6

# What LaTeX takes for a command, and how it prints the character.
LATEX = {
    **{mark: rf"\{mark}" for mark in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
}


@dataclass(frozen=True)
class Figure:
    """A figure of a table: a number, or the mean of several.

    Attributes:
        mean: the number, or the mean.
        deviation: sample standard deviation; None of a single number.
        best: it is the best of its column.
        form: how the number is formatted; with a deviation, its size decides.
    """

    mean: float
    deviation: float | None = None
    best: bool = False
    form: str = ",.4f"

    def parts(self) -> list[str]:
        """Return the number as a text, and the deviation, with two digits that count; whole numbers stay whole."""
        if not self.deviation or not math.isfinite(self.deviation):
            whole = self.deviation == 0.0 and float(self.mean).is_integer()
            return [format(self.mean, ",.0f" if whole else ".2e" if abs(self.mean) >= HUGE else self.form)]
        decimals = max(0, 1 - math.floor(math.log10(self.deviation)))
        exponent = decimals > MOST_DECIMALS or abs(self.mean) >= HUGE
        form = ".2e" if exponent else f",.{decimals}f"
        return [format(value, form) for value in (self.mean, self.deviation)]


Cell = str | Figure | None  # None: not known


@dataclass(frozen=True)
class Sheet:
    """A table: its headings and its rows, each as long as the headings.

    Attributes:
        titles: headings of the columns.
        rows: cells of texts and figures.
        note: a line on the meaning of the figures.
        caption: the heading of the table on a terminal.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    caption: str = ""

    @property
    def numbers(self) -> list[str]:
        """Headings of the columns with figures."""
        found = zip(self.titles, zip(*self.rows, strict=True), strict=True) if self.rows else ()
        return [title for title, cells in found if any(isinstance(cell, Figure) for cell in cells)]

    def in_format(self, name: TableFormat) -> str:
        """Return the table as CSV, Markdown, or LaTeX for the package booktabs."""
        return {"csv": self._csv, "md": self._markdown, "latex": self._latex}[name]()

    def for_terminal(self, **style: Any) -> Table:
        """Return the table for a terminal: a row with a figure that is the best of its column has it in bold."""
        table = columns(*self.titles, right=self.numbers, title=self.caption or None, **style)
        for row in self.rows:
            bold = lambda cell: "bold" if isinstance(cell, Figure) and cell.best else ""  # noqa: E731
            table.add_row(*(Text(" ± ".join(_texts(cell)), style=bold(cell)) for cell in row))
        return table

    def records(self) -> list[dict[str, Any]]:
        """Return the rows for JSON: values by heading, and the deviations of those that have one."""
        return [dict(zip(self._names(), row, strict=True)) for row in self._values()]

    def _names(self) -> list[str]:
        """Return the headings of the columns of values, of which deviations have their own."""
        spread = self._spread()
        return [name for title in self.titles for name in [title, *[f"{title} deviation"] * (title in spread)]]

    def _values(self) -> list[list[Any]]:
        spread = self._spread()
        rows = []
        for row in self.rows:
            values: list[Any] = []
            for title, cell in zip(self.titles, row, strict=True):
                is_figure = isinstance(cell, Figure)
                values.append(cell.mean if is_figure else cell)
                values += [cell.deviation if is_figure else None] * (title in spread)
            rows.append(values)
        return rows

    def _spread(self) -> set[str]:
        """Return the headings of the columns with deviations."""
        return {
            title
            for row in self.rows
            for title, cell in zip(self.titles, row, strict=True)
            if isinstance(cell, Figure) and cell.deviation is not None
        }

    def _csv(self) -> str:
        writer = csv.writer(file := io.StringIO(), lineterminator="\n")
        writer.writerow(self._names())
        writer.writerows([["" if value is None else value for value in row] for row in self._values()])
        return file.getvalue().rstrip("\n")

    def _markdown(self) -> str:
        plain = lambda text: text.replace("|", r"\|")  # noqa: E731
        rows = [[_marked(cell, " ± ", "**{}**".format, plain) for cell in row] for row in self.rows]
        rules = ["--:" if title in self.numbers else "---" for title in self.titles]
        lines = [f"| {' | '.join(row)} |" for row in (list(map(plain, self.titles)), rules, *rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def _latex(self) -> str:
        bold, number = r"$\mathbf{{{}}}$".format, "${}$".format
        rows = [[_marked(cell, r" \pm ", bold, in_latex, number) for cell in row] for row in self.rows]
        places = "".join("r" if title in self.numbers else "l" for title in self.titles)
        line = lambda row: f"{' & '.join(row)} \\\\"  # noqa: E731
        return "\n".join(
            [
                *([f"% {self.note}"] if self.note else []),
                r"% \usepackage{booktabs}",
                rf"\begin{{tabular}}{{{places}}}",
                r"\toprule",
                line(map(in_latex, self.titles)),
                r"\midrule",
                *map(line, rows),
                r"\bottomrule",
                r"\end{tabular}",
            ]
        )


def in_latex(text: str) -> str:
    """Return a text as LaTeX prints it."""
    return re.sub(r"[&%$#_{}\\~^]", lambda found: LATEX[found[0]], text)


def _texts(cell: Cell) -> list[str]:
    if isinstance(cell, Figure):
        return cell.parts()
    return ["-" if cell is None else cell]


def _marked(
    cell: Cell,
    between: str,
    bold: Callable[[str], str],
    plain: Callable[[str], str],
    number: Callable[[str], str] = str,
) -> str:
    """Return a cell with the marks of a format: `between` mean and deviation, and around bold and plain cells."""
    if not isinstance(cell, Figure):
        return plain(_texts(cell)[0])
    parts = cell.parts() if number is str else [part.replace(",", "{,}") for part in cell.parts()]
    return (bold if cell.best else number)(between.join(parts))


def with_best(rows: Sequence[Mapping[str, Cell]], name: str, *, largest: bool, among: Sequence[bool]) -> list[Cell]:
    """Return the cells of a column, the best of which is marked, if there are several rows.

    Args:
        rows: cells by heading.
        name: heading of the column.
        largest: the best is the largest, else the smallest.
        among: for each row, whether it may be the best.
    """
    cells = [row.get(name) for row in rows]
    means = [c.mean for c, may in zip(cells, among, strict=True) if may and isinstance(c, Figure)]
    if len(cells) < 2 or not means:
        return cells
    best = max(means) if largest else min(means)
    return [
        Figure(c.mean, c.deviation, may and c.mean == best, c.form) if isinstance(c, Figure) else c
        for c, may in zip(cells, among, strict=True)
    ]
