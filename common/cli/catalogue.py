"""The catalogue as a table: `bash run.sh list`, and the table of the README."""

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
    """The algorithms as a table."""
    Parser("run.sh list", "The catalogue.").values(arguments)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("algorithm", "", "idea", "paper"):
        table.add_column(column)
    for name, scheme in SCHEMES.items():
        table.add_row(name, timing(scheme), scheme.idea, scheme.paper)
    Page(highlight=False).print(table)
    return 0


def timing(scheme: type[Scheme]) -> str:
    """Who waits for whom: 'synchronous', 'asynchronous', 'one process' or what a gate of one's own says."""
    return scheme().gate.label


def readme_table() -> str:
    """The catalogue as the README shows it: by who waits for whom."""
    rows = ["| algorithm | idea | paper |", "|---|---|---|"]
    for label, who_waits in WHO_WAITS.items():
        of_them = {name: scheme for name, scheme in SCHEMES.items() if timing(scheme) == label}
        rows += [f"| **{who_waits}** | | |"] * bool(of_them)
        rows += [f"| [`{name}`](algorithms/{name}.py) | {s.idea} | {s.paper} |" for name, s in of_them.items()]
    return "\n".join(rows)
