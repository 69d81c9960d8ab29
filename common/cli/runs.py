"""The commands that list, compare and plot runs: `runs`, `compare` and `plot`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..errors import UserError
from ..files import dumps
from ..record.display import Page
from ..record.latest import ROOT, named
from ..record.metrics import shown
from ..record.plot import AXES, check_format, save
from ..record.saved_runs import COLUMNS, SavedRun, chosen, differences, picture, printable, read_run, runs_in
from ..record.summary import summary_rows
from ..record.tables import columns, formatted
from .flags import Parser, one_of, plain

WIDTH = 200  # columns of a table that is not as wide as the terminal

NOT_COMPARED = {"advice", "run", "plot"}  # rows of a summary


def list_runs(arguments: list[str]) -> int:
    """Print the runs in a folder, the newest last; return the exit code."""
    usage = "run.sh runs [folder] [options]"
    parser = Parser("run.sh runs", "List the runs in a folder, the newest last.", usage=usage)
    parser.add_argument("folder", nargs="?", type=plain(Path), default=ROOT, help="folder of runs (default: runs)")
    parser.add_argument(
        "--filter",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="setting, hyperparameter or result that a run must have, such as algorithm=downpour workers=4",
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each run, instead of the table")
    options = parser.values(arguments)
    runs, notes = runs_in(options.folder)
    runs = chosen(runs, options.filter)
    if options.json:
        for run in runs:
            row = {"run_dir": str(run.folder), **{name: run.values.get(name) for name in COLUMNS}}
            print(dumps(row))  # noqa: T201
    else:
        Page(highlight=False, width=WIDTH).print(_listed(runs, options.folder))  # a terminal wraps longer lines
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
    Page(highlight=False, width=None if sys.stdout.isatty() else WIDTH).print(_beside(runs))
    return _save(figure, runs, options)


def plot(arguments: list[str]) -> int:
    """Plot the curves of one run, or of several; return the exit code."""
    options = _options("plot", "Plot loss and error of runs.", arguments)
    runs = _named(options)
    return _save(picture(runs, options.x), runs, options)


def _options(command: str, about: str, arguments: list[str]) -> Namespace:
    """Read the arguments of a command that plots runs."""
    parser = Parser(f"run.sh {command}", about, usage=f"run.sh {command} run_dir [run_dir ...] [options]")
    parser.add_argument("run_dir", nargs="+", type=plain(Path), help="folder of a run, or latest, or downpour/latest")
    parser.add_argument(
        "--x",
        type=one_of(AXES),
        default="seconds",
        metavar="{" + ",".join(AXES) + "}",
        help="horizontal axis of the plot (default: seconds)",
    )
    parser.add_argument(
        "--output",
        type=plain(Path),
        metavar="FILE",
        help="path of the plot, .png or .svg (default: plot-X.png in the folder of the run; compare-X.png, if several)",
    )
    options = parser.values(arguments)
    if options.output:
        check_format("--output", options.output)
    return options


def _named(options: Namespace) -> list[SavedRun]:
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


def _save(figure: Any, runs: Sequence[SavedRun], options: Namespace) -> int:
    """Write the plot and print its path; return the exit code."""
    output = options.output or runs[0].folder / f"{'plot' if len(runs) == 1 else 'compare'}-{options.x}.png"
    save(figure, output)
    print(output)  # noqa: T201
    return 0
