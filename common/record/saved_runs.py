"""The runs in folders: read, listed, filtered, named by what differs between them, and drawn."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..arguments import nearest
from ..errors import UserError
from ..record_format import NUMBER, TEXT, Kind, or_null, read_config, read_result, read_rows, whole
from .bands import Band
from .metrics import FIGURE, Row, is_row
from .plot import Drawn, Width, draw
from .repeats import COMPLETED, alike, number_of, sheet
from .sheet import Sheet

FIGURES: Mapping[str, Kind] = {
    "outcome": TEXT, "steps": whole(0, 2**63 - 1), "examples": or_null(NUMBER), "test_loss": FIGURE,
    "test_accuracy": FIGURE, "seconds_training": or_null(NUMBER), "seconds_total": NUMBER,
    "examples_per_second": or_null(NUMBER), "bytes_pushed": NUMBER, "bytes_pulled": NUMBER,
}  # fmt: skip

COLUMNS = ("algorithm", "outcome", "workers", "dataset", "model", "updates", "test_loss", "test_accuracy",
           "seconds_training")  # fmt: skip

NOT_SETTINGS = {"algorithm", "architecture", "label_distance"}


@dataclass(frozen=True)
class SavedRun:
    """A run as its folder has it.

    Attributes:
        folder: the run directory.
        config: content of config.json.
        result: content of result.json; empty before the run has ended.
    """

    folder: Path
    config: dict[str, Any]
    result: dict[str, Any]

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of metrics.jsonl."""
        return [row for row in read_rows(self.folder / "metrics.jsonl") if is_row(row)]

    @property
    def settings(self) -> dict[str, Any]:
        """Hyperparameters and the other settings, by name."""
        config = {name: value for name, value in self.config.items() if name not in NOT_SETTINGS}
        others = {name: value for name, value in config.items() if not isinstance(value, dict | list)}
        return printable({**self.config.get("hyperparameters", {}), **others})

    @property
    def values(self) -> dict[str, Any]:
        """Settings and results, by name."""
        return {
            "algorithm": self.config["algorithm"],
            "outcome": "unfinished",
            **self.settings,
            **printable(self.result),
        }


def printable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a terminal can show: a folder may be foreign, and its texts have control characters."""
    return {name: value for name, value in values.items() if name.isprintable() and str(value).isprintable()}


def read_run(folder: Path) -> SavedRun:
    """Read the configuration of a run, and its result if it has ended; raise `UserError` for a damaged file."""
    config = read_config(folder)
    for name in ("algorithm", "workers", "ps", "dataset", "model", "seed"):
        config[name]  # raises an error if it is missing
    ended = (folder / "result.json").exists()
    return SavedRun(folder, config, read_result(folder, FIGURES) if ended else {})


def runs_in(root: Path) -> tuple[list[SavedRun], list[str]]:
    """Return the runs in a folder and in its subfolders, the newest last, and why others cannot be read.

    Raises:
        UserError: there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"there is no folder of runs. Received: {root}")
    folders = {
        path.parent: path.stat().st_mtime
        for path in (*root.glob("*/config.json"), *root.glob("*/*/config.json"))
        if not path.parent.is_symlink() and not path.parent.parent.is_symlink()  # the links called latest
    }
    runs, notes = [], []
    for folder in sorted(folders, key=lambda folder: (folders[folder], folder)):
        try:
            runs.append(read_run(folder))
        except UserError as error:
            notes.append(str(error))
    return runs, notes


def chosen(runs: Sequence[SavedRun], conditions: Sequence[str]) -> list[SavedRun]:
    """Return the runs that meet all conditions, such as `algorithm=downpour` and `learning_rate=0.1`.

    Raises:
        UserError: a condition is not of that form, or names something that no run has.
    """
    names = {name for run in runs for name, value in run.values.items() if not isinstance(value, dict | list)}
    for condition in conditions:
        name, equals, wanted = condition.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise UserError(f"a filter is NAME=VALUE, such as algorithm=downpour. Received: {condition!r}")
        if runs and name not in names:
            raise UserError(f"no run has a value named {name!r}. {nearest(name, sorted(names))}")
        runs = [run for run in runs if name in run.values and _is(run.values[name], wanted)]
    return list(runs)


def _is(value: Any, wanted: str) -> bool:
    """Compare a value with the text of a filter: numbers as numbers, other values as texts."""
    try:
        return float(value) == float(wanted)
    except (TypeError, ValueError):
        return str(value).lower().replace("-", "_") == wanted.lower().replace("-", "_")


def by_seed(runs: Sequence[SavedRun]) -> list[list[SavedRun]]:
    """Return the runs with equal settings together, those that differ by their seeds alone."""
    return alike(runs, lambda run: repr([run.config["algorithm"], sorted({**run.settings, "seed": None}.items())]))


def differences(runs: Sequence[SavedRun], without: Container[str] = ()) -> dict[str, list[str]]:
    """Return the settings that are not the same in all runs, by name; "-" where a run has none."""
    names = [name for name in dict.fromkeys(name for run in runs for name in run.settings) if name not in without]
    found = {name: ["-" if (value := run.settings.get(name)) is None else str(value) for run in runs] for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def labels(runs: Sequence[SavedRun], without: Container[str] = ()) -> list[str]:
    """Return a name for each run: its algorithm, and what differs between runs of that algorithm."""
    names = []
    for run in runs:
        same = [other for other in runs if other.config["algorithm"] == run.config["algorithm"]]
        place = same.index(run)
        found = differences(same, without).items()
        differing = [f"{name.replace('_', ' ')} {values[place]}" for name, values in found]
        names.append(", ".join([run.config["algorithm"], *differing]))
    return [
        name if names.count(name) == 1 else f"{name} ({run.folder.name})" for name, run in zip(names, runs, strict=True)
    ]


def names_of(groups: Sequence[Sequence[SavedRun]]) -> list[str]:
    """Return a name for each group of runs that differ by their seeds: its algorithm, and what differs besides."""
    return labels([runs[0] for runs in groups], without=("seed",))


def sheet_of(groups: Sequence[Sequence[SavedRun]]) -> Sheet:
    """Return a table with a row for each group of runs: means over its seeds."""
    rows = [([name], [run.result for run in runs]) for name, runs in zip(names_of(groups), groups, strict=True)]
    return sheet(["algorithm"], rows)


def picture(runs: Sequence[SavedRun], x: str = "seconds", width: Width | None = None) -> Any:
    """Return a figure with the curves of one run, or of several; see `draw`.

    Raises:
        UserError: a run has no curves.
    """
    for run in runs:
        _check_curves(run)
    names = labels(runs) if len(runs) > 1 else [""]
    return draw([Drawn(run.config, run.rows, name) for run, name in zip(runs, names, strict=True)], x, width=width)


def picture_of_means(
    groups: Sequence[Sequence[SavedRun]], x: str = "seconds", band: Band = "deviation", width: Width | None = None
) -> Any:
    """Return a figure with the mean curve of each group of runs and a band around it; see `draw`.

    Runs that have failed are left out, and the legend says how many seeds a mean has.

    Raises:
        UserError: a run that completed has no curves.
    """
    drawn = []
    for name, runs in zip(names_of(groups), groups, strict=True):
        ended = [run for run in runs if run.result.get("outcome") == COMPLETED] or runs[:1]
        for run in ended:
            _check_curves(run)
        first, *others = [Drawn(run.config, run.rows) for run in ended]
        seeds = f"{number_of([run.result for run in runs])} seed{'s' * (len(runs) > 1)}"
        drawn.append(first._replace(label=f"{name} ({seeds})", repeats=tuple(others)))
    return draw(drawn, x, band, width)


def _check_curves(run: SavedRun) -> None:
    if not any(row["kind"] == "center" for row in run.rows):
        raise UserError(f"the run in {run.folder} has no evaluation of the center in metrics.jsonl: nothing to plot")
