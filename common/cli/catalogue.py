"""The catalogue as a table, for `bash run.sh list` and for the README."""

from __future__ import annotations

from rich.table import Table

from ...algorithms import SCHEMES
from ..contract.scheme import Scheme
from ..record.display import Page
from .flags import Parser

WHO_WAITS = {
    "one process": "one process",
    "asynchronous": "asynchronous: no worker waits",
    "bounded": "bounded: a worker waits if it is too far ahead",
    "synchronous": "synchronous: all workers wait for each other",
}  # by the label of the gate


def catalogue(arguments: list[str]) -> int:
    """Print the algorithms as a table; return the exit code."""
    Parser("run.sh list", "Show the catalogue.").values(arguments)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("algorithm", "", "idea", "paper"):
        table.add_column(column)
    for name, scheme in SCHEMES.items():
        table.add_row(name, timing(scheme), scheme.idea, scheme.paper)
    Page(highlight=False).print(table)
    return 0


def timing(scheme: type[Scheme]) -> str:
    """Return the label of the gate: 'synchronous', 'asynchronous', 'bounded', 'one process' or a user's own."""
    return scheme().gate.label


def readme_table() -> str:
    """Return the catalogue as a Markdown table for the README, grouped by the label of the gate."""
    rows = ["| algorithm | idea | paper |", "|---|---|---|"]
    for label, who_waits in WHO_WAITS.items():
        of_them = {name: scheme for name, scheme in SCHEMES.items() if timing(scheme) == label}
        rows += [f"| **{who_waits}** | | |"] * bool(of_them)
        rows += [f"| [`{name}`](algorithms/{name}.py) | {s.idea} | {s.paper} |" for name, s in of_them.items()]
    return "\n".join(rows)
