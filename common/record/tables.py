"""Tables and columns of text, as all commands print them."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 200  # columns of a table that is not as wide as the terminal


def columns(*names: str, right: Container[str] = (), **style: Any) -> Table:
    """Return an empty table without lines; the cells of the columns on the `right` are numbers, which are not broken.

    Args:
        names: headings of the columns.
        right: headings of the columns of numbers.
        style: arguments of `Table`.
    """
    table = Table(box=None, pad_edge=False, title_justify="left", **style)
    for name in names:
        number = name in right
        table.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def page() -> Console:
    """Return the console for a wide table: as wide as the terminal, or as `WIDTH` where the output is no terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


def figures(title: str, rows: Mapping[str, str]) -> Table:
    """Return a table with lines of figures by name."""
    table = Table(title=title, show_header=False, title_justify="left")
    for row in rows.items():
        table.add_row(*row)
    return table


def aligned(values: Mapping[str, object]) -> str:
    """Return a line for each value, behind its name; the values stand below each other."""
    width = max(map(len, values))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in values.items())


def formatted(value: float | None, form: str) -> str:
    """Format a number; "-" if it is unknown."""
    return "-" if value is None else format(value, form)
