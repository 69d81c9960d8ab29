"""The pictures of the benchmark, from its outcomes (see `convergence.carry_out`)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from ..common.record.plot import GREY, bare, colour, lines_of
from . import stamps

Outcome = dict[str, Any]

MARKERS = "o^sDvP*X"
COLUMNS = 6
POINTS = 80  # of a mean curve

AXES = {
    "examples": (1e-3, "thousands of examples, of all workers"),
    "rounds": (1.0, "messages of a worker"),
    "bytes": (1e-6, "megabytes sent, both ways"),
    "seconds": (1.0, "virtual seconds"),
}


def of_part(outcomes: Sequence[Outcome], part: str) -> list[Outcome]:
    """Return the outcomes of one part of the benchmark."""
    return [outcome for outcome in outcomes if outcome["part"] == part]


def reached(outcome: Outcome, unit: str) -> list[float]:
    """Return the expense of the seeds that reached the target."""
    return [run["reached"][unit] for run in outcome["runs"] if run["reached"]]


def needed(outcome: Outcome, unit: str) -> float:
    """Return the geometric mean over the seeds; NaN if not all of them reached the target."""
    values = reached(outcome, unit)
    if len(values) < len(outcome["runs"]):
        return math.nan
    return geometric_mean(values) if all(values) else 0.0


def draw(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Draw all pictures for which results exist."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in PICTURES.items():
        figure = make(outcomes)
        if figure is not None:
            written.append(folder / f"{name}.png")
            stamps.save(figure, written[-1], dpi=100)
    return written


def title_of(figure: Any, text: str) -> None:
    """Write a title above a figure, on as many lines as its width demands."""
    figure.suptitle(textwrap.fill(text, round(13 * figure.get_figwidth())), fontsize=9)


def decades(axis: Any, form: str = "{x:g}") -> None:
    """Name 1, 2 and 5 of each decade of a logarithmic axis, and no number in between."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(NullFormatter())


def to_target(outcomes: Sequence[Outcome]) -> Any:
    """Plot the expense of each algorithm, a row each: a dot for each seed, on logarithmic axes."""
    from matplotlib.figure import Figure

    rows = of_part(outcomes, "main")
    if not rows:
        return None
    rows = sorted(rows, key=lambda o: (math.isnan(needed(o, "seconds")), needed(o, "seconds"), o["algorithm"]))
    figure = Figure(figsize=(12, 1.4 + 0.24 * len(rows)), layout="constrained")
    grid = figure.subplots(1, 3, sharey=True)
    for axes, unit in zip(grid, ("seconds", "examples", "bytes"), strict=True):
        scale, label = AXES[unit]
        for y, row in enumerate(rows):
            values = [value * scale for value in reached(row, unit) if value]
            axes.plot(values, [y] * len(values), "o", color=colour(row["algorithm"]), ms=5, alpha=0.8, mew=0)
            if not values:
                text = "nothing is sent" if unit == "bytes" and reached(row, unit) else "not reached"
                axes.text(0.02, y, text, transform=axes.get_yaxis_transform(), color=GREY, fontsize=8, va="center")
        axes.set_xscale("log")
        decades(axes.xaxis)
        axes.set_xlabel(label)
        bare(axes)
    grid[0].set_yticks(range(len(rows)), [row["algorithm"] for row in rows])
    grid[0].set_ylim(len(rows) - 0.4, -0.6)  # the fastest at the top
    figure.suptitle("What it takes to the target, a dot for each seed; the fastest first", fontsize=11)
    return figure


def panels(names: Sequence[str], title: str, xlabel: str, ylabel: str) -> tuple[Any, Iterator[tuple[str, Any]]]:
    """Make a figure with a titled panel for each name, on common axes."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(max(5.5, 2.2 * columns), 1.0 + 1.6 * rows), layout="constrained")
    grid = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for i, axes in enumerate(grid):
        bare(axes)
        axes.set_visible(i < len(names))
        if i + columns >= len(names):  # nothing below
            axes.tick_params(labelbottom=True)
    for name, axes in zip(names, grid, strict=False):
        axes.set_title(name, fontsize=10, color=colour(name), fontweight="bold", loc="left")
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(xlabel, fontsize=10)
    figure.supylabel(ylabel, fontsize=10)
    return figure, zip(names, grid, strict=False)


def band(runs: Sequence[dict[str, Any]], x: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return x, and mean and standard deviation over seeds of the loss, over the range that all runs cover."""
    curves = [run["curve"] for run in runs if None not in run["curve"]["loss"]]
    if not curves:
        return None
    end = min(curve[x][-1] for curve in curves)
    begun = max(curve[x][1] for curve in curves) if x == "bytes" else 0.0
    grid = np.geomspace(begun, end, POINTS) if begun else np.linspace(0, end, POINTS)
    values = np.array([np.interp(grid, curve[x], curve["loss"]) for curve in curves])
    return grid, values.mean(0), values.std(0)


def curves(x: str) -> Callable[[Sequence[Outcome]], Any]:
    """Plot the loss against examples, seconds or bytes."""

    def make(outcomes: Sequence[Outcome]) -> Any:
        scale, xlabel = AXES[x]
        found = {o["algorithm"]: band(o["runs"], x) for o in of_part(outcomes, "main")}
        bands = {name: b for name, b in found.items() if b and b[0][-1] > 0}
        if not bands:
            return None
        baseline = "sync_sgd" if "sync_sgd" in bands else next(iter(bands))
        title = f"Test loss against {xlabel}; grey: {baseline}; mean and standard deviation over seeds"
        figure, axes_of = panels(list(bands), title, xlabel, "test loss")
        for name, axes in axes_of:
            if name != baseline:
                axes.plot(bands[baseline][0] * scale, bands[baseline][1], color=GREY, lw=1.2)
            grid, middle, spread = bands[name]
            axes.plot(grid * scale, middle, color=colour(name), lw=1.8)
            axes.fill_between(grid * scale, middle - spread, middle + spread, color=colour(name), alpha=0.25, lw=0)
            axes.set_ylim(0.45, 1.6)
            if x == "bytes":
                axes.set_xscale("log")
        return figure

    return make


def sweep(part: str, setting: str, title: str, xlabel: str, shown: Sequence[str]) -> Callable[[Sequence[Outcome]], Any]:
    """Plot the expense to the target against a setting, a line for each algorithm."""

    def make(outcomes: Sequence[Outcome]) -> Any:
        from matplotlib.figure import Figure

        rows = of_part(outcomes, part)
        if not rows:
            return None
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        ticks = sorted({row[setting] for row in rows})
        names = list(dict.fromkeys(row["algorithm"] for row in rows))
        for axes, unit in zip(figure.subplots(1, len(shown)), shown, strict=True):
            scale, label = AXES[unit]
            for marker, line, name in zip(MARKERS, lines_of(names), names, strict=False):
                points = sorted((row[setting], needed(row, unit) * scale) for row in rows if row["algorithm"] == name)
                axes.plot(*zip(*points, strict=True), marker=marker, lw=1.8, ms=6, label=name, **line)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            decades(axes.yaxis)
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.set(xlabel=xlabel, ylabel=label)
            bare(axes)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
        figure.suptitle(title, fontsize=11)
        return figure

    return make


PICTURES: dict[str, Callable[[Sequence[Outcome]], Any]] = {
    "to-target": to_target,
    **{f"loss-{x}": curves(x) for x in ("examples", "seconds", "bytes")},
    "workers": sweep(
        "workers",
        "workers",
        "More workers: what it takes to the target; no point where a seed did not come to it",
        "workers",
        ("seconds", "examples"),
    ),
    "period": sweep(
        "period",
        "period",
        "Communicating less often: what it takes to the target; no point where a seed did not come to it",
        "communication period",
        ("seconds", "rounds"),
    ),
}
