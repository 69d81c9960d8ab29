"""The commands that list, compare and plot runs: `runs`, `compare` and `plot`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..errors import UserError
from ..files import dumps
from ..record.bands import Band
from ..record.latest import ROOT, named
from ..record.metrics import shown
from ..record.plot import FINE, Axis, Width, check_format, save
from ..record.saved_runs import (
    COLUMNS,
    SavedRun,
    by_seed,
    chosen,
    differences,
    picture,
    picture_of_means,
    printable,
    read_run,
    runs_in,
    sheet_of,
)
from ..record.sheet import Cell, Figure, Sheet, TableFormat
from ..record.summary import summary_rows
from ..record.tables import WIDTH, columns, page
from . import flags

Grouping = Literal["seed"]

Kind = TypeVar("Kind", bound="Curves")

NOT_COMPARED = {"advice", "run", "plot"}  # rows of a summary


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The options of `runs`."""

    folder: Path = ROOT
    """Folder of runs."""
    filter: tuple[str, ...] = ()
    """Settings, hyperparameters or results that a run must have, such as algorithm=downpour workers=4."""
    group: Grouping | None = None
    """Print a row for each group of runs that differ by their seeds alone: means and standard deviations."""
    table: TableFormat | None = None
    """Print the table as CSV, Markdown or LaTeX (booktabs)."""
    json: bool = False
    """Print a line of JSON for each row, instead of the table."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The options of `plot`."""

    run_dir: tuple[Path, ...]
    """Folder of a run, or latest, or downpour/latest."""
    x: Axis = "seconds"
    """Horizontal axis of the plot."""
    output: Path | None = None
    """Path of the plot: .png, .svg or .pdf. Default: plot-X.png in the folder of the run; compare-X.png, if several."""
    width: Width | None = None
    """Width of the plot in a paper: one column (3.3 inches) or a page (6.9 inches). Its texts then have 7 points, and
    it has no title."""

    def __post_init__(self):
        if self.output:
            check_format("--output", self.output)


@dataclass(frozen=True, kw_only=True)
class Comparison(Curves):
    """The options of `compare`."""

    group: Grouping | None = None
    """Take runs that differ by their seeds alone together: mean and band in the plot, mean and standard deviation in
    the table."""
    band: Band = "deviation"
    """Extent of the band around a mean: standard deviation, or range, from the least to the greatest value."""
    table: TableFormat | None = None
    """Print a table with a row for each run, or for each group, as CSV, Markdown or LaTeX (booktabs)."""
    json: bool = False
    """Print that table as JSON, with the path of the plot."""


def list_runs(arguments: list[str]) -> int:
    """Print the runs in a folder, the newest last; return the exit code."""
    about = "List the runs in a folder, the newest last."
    (options,) = flags.read("run.sh runs", about, arguments, {"options": Listing}, positional="folder")
    runs, notes = runs_in(options.folder)
    if not runs and not notes:
        notes = [f"{options.folder} holds no runs. Give the folder in which run directories lie, such as runs"]
    if runs and not (runs := chosen(runs, options.filter)):
        notes = [*notes, f"no run in {options.folder} has {' '.join(options.filter)}"]
    groups = by_seed(runs) if options.group else [[run] for run in runs]
    if options.table:
        print((sheet_of(groups) if options.group else _sheet(runs, options.folder)).in_format(options.table))  # noqa: T201
    elif options.group and options.json:
        for row in sheet_of(groups).records():
            print(dumps(row))  # noqa: T201
    elif options.group:
        Console(highlight=False, width=WIDTH).print(sheet_of(groups).for_terminal())
    elif options.json or not runs:
        for run in runs:
            row = {"run_dir": str(run.folder), **{name: run.values.get(name) for name in COLUMNS}}
            row |= {"figures": run.result["figures"]} if run.result.get("figures") else {}
            print(dumps(row))  # noqa: T201
    else:
        # A terminal wraps longer lines.
        Console(highlight=False, width=WIDTH).print(_sheet(runs, options.folder).for_terminal())
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)  # noqa: T201
    return 0


def _sheet(runs: Sequence[SavedRun], root: Path) -> Sheet:
    """Return a table with a row for each run."""
    titles = "run", "outcome", "workers", "updates", "test loss", "accuracy", "seconds", "data, model"
    forms = {"workers": ",d", "updates": ",d", "test_loss": ",.4f", "test_accuracy": ",.4f", "seconds_training": ",.1f"}
    rows: list[list[Cell]] = []
    logged = any(run.result.get("figures") for run in runs)  # by scripts
    for run in runs:
        values = run.values
        rows.append(
            [
                str(run.folder.relative_to(root) if root == ROOT else run.folder),
                values["outcome"],
                *(_figure(values.get(name), form) for name, form in forms.items()),
                f"{values['dataset']}, {values['model']}",
                *[", ".join(f"{k} {shown(value)}" for k, value in (run.result.get("figures") or {}).items())] * logged,
            ]
        )
    return Sheet([*titles, *["logged"] * logged], rows)


def _figure(value: Any, form: str) -> Cell:
    """Return a cell for a number; for several numbers, as of a metric that is a vector, a text."""
    return Figure(value, form=form) if isinstance(value, int | float) else None if value is None else shown(value)


def compare(arguments: list[str]) -> int:
    """Print a table of runs beside each other, and plot their curves; return the exit code."""
    about = "Compare runs: settings that differ and results in a table, and a plot."
    options: Comparison = _options("compare", about, arguments, Comparison)
    runs = _named(options)
    if len(runs) < 2:
        same = len(options.run_dir) > 1
        raise UserError(
            f"compare takes two runs or more{', and these are the same run' * same}. Received: "
            f"{', '.join(map(str, options.run_dir))}"
        )
    groups = by_seed(runs) if options.group else [[run] for run in runs]
    if options.group:
        figure = picture_of_means(groups, options.x, options.band, options.width)
    else:
        figure = picture(runs, options.x, options.width)
    sheet = sheet_of(groups)
    if options.json:
        path = _save(figure, runs, options)
        print(dumps({"rows": sheet.records(), "plot": str(path)}))  # noqa: T201
    elif options.table:
        print(sheet.in_format(options.table))  # noqa: T201
        print(_save(figure, runs, options), file=sys.stderr)  # noqa: T201
    else:
        wide = page()
        wide.print(sheet.for_terminal() if options.group else _beside(runs))
        if options.group and sheet.note:
            wide.print(sheet.note)
        print(_save(figure, runs, options))  # noqa: T201
    return 0


def plot(arguments: list[str]) -> int:
    """Plot the curves of one run, or of several; return the exit code."""
    options = _options("plot", "Plot loss and error of runs.", arguments, Curves)
    runs = _named(options)
    print(_save(picture(runs, options.x, options.width), runs, options))  # noqa: T201
    return 0


def _options(command: str, about: str, arguments: list[str], kind: type[Kind]) -> Kind:
    """Read the arguments of a command that plots runs."""
    return flags.read(f"run.sh {command}", about, arguments, {"options": kind}, positional="run_dir")[0]


def _named(options: Curves) -> list[SavedRun]:
    """Read the runs that the arguments name, each once."""
    return [read_run(folder) for folder in dict.fromkeys(map(named, options.run_dir))]


def _beside(runs: Sequence[SavedRun]) -> Table:
    """Return a table with a column for each run: settings that differ, and results."""
    table = columns("", *(escape(run.config["algorithm"]) for run in runs))
    rows = {name.replace("_", " "): values for name, values in differences(runs).items()}
    results = [_results(run) for run in runs]
    for name in dict.fromkeys(name for result in results for name in result):
        rows[name] = [result.get(name, "-") for result in results]
    for name, values in {"run": [str(run.folder) for run in runs], **rows}.items():
        table.add_row(Text(name), *map(Text, values))
    return table


def _results(run: SavedRun) -> dict[str, str]:
    """Return the figures of the result of a run, by name."""
    outcome = {"outcome": run.values["outcome"]}
    if not run.result:
        return outcome
    try:
        rows = printable(summary_rows(run.result))
        return outcome | {name: row for name, row in rows.items() if name not in NOT_COMPARED}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            f"{run.folder / 'result.json'} is damaged, or of another version: its figures are not known"
        ) from None


def _save(figure: Any, runs: Sequence[SavedRun], options: Curves) -> Path:
    """Write the plot; return its path."""
    output = options.output or runs[0].folder / f"{'plot' if len(runs) == 1 else 'compare'}-{options.x}.png"
    save(figure, output, **({"dpi": FINE} if options.width else {}))
    return output
