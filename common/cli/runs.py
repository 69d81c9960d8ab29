"""The commands that list, compare and plot runs: `runs`, `compare` and `plot`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..errors import UserError
from ..files import dumps
from ..record.latest import ROOT, named
from ..record.metrics import shown
from ..record.plot import check_format, save
from ..record.saved_runs import COLUMNS, SavedRun, chosen, differences, picture, printable, read_run, runs_in
from ..record.summary import summary_rows
from ..record.tables import columns, formatted
from . import flags

WIDTH = 200  # columns of a table that is not as wide as the terminal

NOT_COMPARED = {"advice", "run", "plot"}  # rows of a summary


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The options of `runs`."""

    folder: Path = ROOT
    """Folder of runs."""
    filter: tuple[str, ...] = ()
    """Settings, hyperparameters or results that a run must have, such as algorithm=downpour workers=4."""
    json: bool = False
    """Print a line of JSON for each run, instead of the table."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The options of `compare` and `plot`."""

    run_dir: tuple[Path, ...]
    """Folder of a run, or latest, or downpour/latest."""
    x: Literal["seconds", "updates", "examples", "bytes"] = "seconds"
    """Horizontal axis of the plot."""
    output: Path | None = None
    """Path of the plot, .png or .svg. Default: plot-X.png in the folder of the run; compare-X.png, if several."""

    def __post_init__(self):
        if self.output:
            check_format("--output", self.output)


def list_runs(arguments: list[str]) -> int:
    """Print the runs in a folder, the newest last; return the exit code."""
    about = "List the runs in a folder, the newest last."
    (options,) = flags.read("run.sh runs", about, arguments, {"options": Listing}, positional="folder")
    runs, notes = runs_in(options.folder)
    runs = chosen(runs, options.filter)
    if options.json:
        for run in runs:
            row = {"run_dir": str(run.folder), **{name: run.values.get(name) for name in COLUMNS}}
            print(dumps(row))  # noqa: T201
    else:
        Console(highlight=False, width=WIDTH).print(_listed(runs, options.folder))  # a terminal wraps longer lines
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)  # noqa: T201
    return 0


def _listed(runs: Sequence[SavedRun], root: Path) -> Table:
    """Return a table with a row for each run."""
    numbers = ("workers", "updates", "test loss", "accuracy", "seconds")
    table = columns("run", "outcome", *numbers, "data, model", right=numbers)
    for run in runs:
        values = run.values
        table.add_row(
            Text(str(run.folder.relative_to(root) if root == ROOT else run.folder)),
            Text(values["outcome"]),
            str(values["workers"]),
            formatted(values.get("updates"), ",d"),
            *(shown(values.get(name)) for name in ("test_loss", "test_accuracy")),
            formatted(values.get("seconds_training"), ",.1f"),
            Text(f"{values['dataset']}, {values['model']}"),
        )
    return table


def compare(arguments: list[str]) -> int:
    """Print a table of runs beside each other, and plot their curves; return the exit code."""
    options = _options("compare", "Compare runs: settings that differ and results in a table, and a plot.", arguments)
    runs = _named(options)
    if len(runs) < 2:
        raise UserError(f"compare takes two runs or more. Received: {', '.join(map(str, options.run_dir))}")
    figure = picture(runs, options.x)
    Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(_beside(runs))
    return _save(figure, runs, options)


def plot(arguments: list[str]) -> int:
    """Plot the curves of one run, or of several; return the exit code."""
    options = _options("plot", "Plot loss and error of runs.", arguments)
    runs = _named(options)
    return _save(picture(runs, options.x), runs, options)


def _options(command: str, about: str, arguments: list[str]) -> Curves:
    """Read the arguments of a command that plots runs."""
    return flags.read(f"run.sh {command}", about, arguments, {"options": Curves}, positional="run_dir")[0]


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


def _save(figure: Any, runs: Sequence[SavedRun], options: Curves) -> int:
    """Write the plot and print its path; return the exit code."""
    output = options.output or runs[0].folder / f"{'plot' if len(runs) == 1 else 'compare'}-{options.x}.png"
    save(figure, output)
    print(output)  # noqa: T201
    return 0
