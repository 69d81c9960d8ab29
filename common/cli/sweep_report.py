"""The runs of a sweep as a table, a plot, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ..contract.scheme import Scheme
from ..record.bands import Band
from ..record.metrics import shown
from ..record.plot import INCHES, Axis, Width, bare, figure_class, shrink
from ..record.repeats import COMPLETED, alike, completed, sheet
from ..record.saved_runs import SavedRun, picture_of_means, read_run
from ..record.sheet import Sheet
from .flag_groups import Options

LOG_RATIO = 4.0  # an axis is logarithmic if its largest value is this many times its smallest


@dataclass
class Trial:
    """One run of a sweep: its settings as typed, and its result, which is empty before the run."""

    settings: dict[str, str]
    seed: int
    run_dir: Path
    scheme: Scheme
    options: Options
    note: str
    result: dict[str, Any]

    @property
    def loss(self) -> float | None:
        """Test loss at the end; None if the run did not complete, or has no finite loss."""
        return self.result["test_loss"] if self.result["outcome"] == COMPLETED else None

    def in_words(self) -> str:
        """Return the settings and the seed in words."""
        return ", ".join([*(f"{name} {value}" for name, value in self.settings.items()), f"seed {self.seed}"])

    def __str__(self) -> str:
        """Return settings, seed, result and folder in one line."""
        end = self.result["outcome"] if self.loss is None else f"test loss {shown(self.loss)}"
        return f"{self.in_words()}: {end} ({self.run_dir})"


def grouped(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the runs of each setting, which differ by their seeds."""
    return alike(trials, lambda trial: tuple(trial.settings.items()))


def mean_loss(group: Sequence[Trial]) -> float | None:
    """Return the mean test loss of the runs of a setting; None unless all of them have one."""
    losses = [trial.loss for trial in group if trial.loss is not None]
    return fmean(losses) if len(losses) == len(group) else None


def best_of(trials: Sequence[Trial]) -> dict[str, Any] | None:
    """Return the setting with the lowest mean test loss, and that loss; None if no setting has one."""
    means = [(mean, group[0].settings) for group in grouped(trials) if (mean := mean_loss(group)) is not None]
    if not means:
        return None
    loss, settings = min(means, key=lambda pair: pair[0])
    return {"settings": settings, "test_loss": loss}


def report(trials: Sequence[Trial]) -> list[str]:
    """Return lines on the best setting: its values, and those that are the smallest or the largest of their axis."""
    best, groups = best_of(trials), grouped(trials)
    if best is None or len(groups) == 1:
        return []
    words = ", ".join(f"{name} {value}" for name, value in best["settings"].items())
    lines = [f"best: {words} (mean test loss {shown(best['test_loss'])})"]
    for name, value in best["settings"].items():
        rivals = [trial for trial in trials if trial.settings.get("algorithm") == best["settings"].get("algorithm")]
        values = numbers_of([trial.settings[name] for trial in rivals])
        if values is None or len(set(values)) == 1 or float(value) not in (least := min(values), max(values)):
            continue
        if float(value) == least and value in ("0", "1"):  # a count has no smaller value
            continue
        size, more = ("smallest", "smaller") if float(value) == least else ("largest", "larger")
        lines.append(f"the best {name} is the {size} of the sweep: a {more} one may be better")
    return lines


def numbers_of(texts: Sequence[str]) -> list[float] | None:
    """Return texts as numbers; None if one of them is not a finite number."""
    try:
        values = [float(text) for text in texts]
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) else None


def table(name: str, trials: Sequence[Trial]) -> Sheet:
    """Return a table with a row for each setting: means and deviations over its seeds."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
    rows = [([g[0].settings.get(name, "-") for name in names], [t.result for t in g]) for g in grouped(trials)]
    return sheet(names, rows, f"sweep of {name}")


def curves(trials: Sequence[Trial], x: Axis, band: Band, width: Width | None) -> Any:
    """Return a figure with the mean curve of each algorithm, with its best setting; None if no run completed.

    Of a single algorithm, each setting has a curve.
    """
    groups = [group for group in grouped(trials) if completed([trial.result for trial in group])]
    if "algorithm" in trials[0].settings:
        rivals = alike(groups, lambda group: group[0].settings["algorithm"])
        groups = [min(group, key=_rank) for group in rivals]
    first = lambda trial: trial.result["outcome"] != COMPLETED  # noqa: E731  # a failed run may have no settings
    runs = [[_saved(trial) for trial in sorted(group, key=first)] for group in groups]
    return picture_of_means(runs, x, band, width) if runs else None


def _rank(group: Sequence[Trial]) -> float:
    loss = mean_loss(group)
    return math.inf if loss is None else loss


def _saved(trial: Trial) -> SavedRun:
    """Return a run of a sweep as its folder has it; of one that has failed only the result."""
    if trial.result["outcome"] == COMPLETED:
        return read_run(trial.run_dir)
    return SavedRun(trial.run_dir, {"algorithm": trial.scheme.name}, trial.result)


def picture(name: str, trials: Sequence[Trial], width: Width | None = None) -> Any:
    """Return a figure of test losses over the first option with several values; a line for each value of the others."""
    axis, *others = [*trials[0].settings] or ["seed"]
    texts = list(dict.fromkeys(trial.settings.get(axis, str(trial.seed)) for trial in trials))
    numbers = numbers_of(texts)
    places = dict(zip(texts, numbers or range(len(texts)), strict=True))
    size = (6, 4) if width is None else (INCHES[width], 2.4)
    figure = figure_class()(figsize=size, layout="constrained")
    axes = figure.subplots()
    for index, (label, line) in enumerate(_lines(trials, others).items()):
        colour = f"C{index % 10}"
        points = [(places[trial.settings.get(axis, str(trial.seed))], trial) for trial in line]
        ended = [(place, trial.loss) for place, trial in points if trial.loss is not None]
        failed = [place for place, trial in points if trial.loss is None]
        axes.plot(*zip(*ended, strict=True) if ended else ((), ()), "o", color=colour, alpha=0.5, ms=4)
        axes.plot(failed, [0.97] * len(failed), "x", color=colour, transform=axes.get_xaxis_transform())
        means = (
            [(places[group[0].settings[axis]], mean_loss(group)) for group in grouped(line)]
            if trials[0].settings
            else []
        )
        means = sorted((place, mean) for place, mean in means if mean is not None)
        axes.plot(*zip(*means, strict=True) if means else ((), ()), "-", color=colour, label=label)
    if numbers and min(numbers) > 0 and max(numbers) >= LOG_RATIO * min(numbers):
        axes.set_xscale("log")
    axes.set_xticks(list(places.values()), texts)
    axes.set_xticks([], minor=True)
    losses = [trial.loss for trial in trials if trial.loss is not None]
    if losses and min(losses) > 0 and max(losses) >= LOG_RATIO * min(losses):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.set(xlabel=axis.replace("_", " "), ylabel="test loss at the end")
    if others:
        axes.legend()
    bare(axes)
    seeds, options = len({trial.seed for trial in trials}), trials[0].options
    runs = f"{len(trials)} runs" if seeds == 1 else f"{len(trials)} runs, {seeds} seeds"
    crosses = "; ×: no loss" if any(trial.loss is None for trial in trials) else ""
    if width is None:
        axes.set_title(f"sweep of {name} ({options.data or options.dataset}, {runs}{crosses})", fontsize=10)
    else:
        shrink(figure)
    return figure


def _lines(trials: Sequence[Trial], names: Sequence[str]) -> dict[str, list[Trial]]:
    """Return the runs with the same values of these options, by the values in words."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(", ".join(f"{name} {trial.settings[name]}" for name in names), []).append(trial)
    return found
