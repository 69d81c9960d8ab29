"""The pictures of the benchmark: one small panel for each algorithm, its baseline in grey."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from ..common.problems.data import DATASETS
from ..common.spec import parse

Outcome = dict[str, Any]

# Told apart by colour-blind readers (Okabe and Ito, and two of Tol's).
PALETTE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#882255", "#117733"
GREY = "0.6"
COLUMNS = 5
POINTS = 80  # of a mean curve


def colour(algorithm: str) -> str:
    """The same in every picture."""
    from ..algorithms import SCHEMES

    return PALETTE[list(SCHEMES).index(algorithm) % len(PALETTE)]


def accuracy_of(outcome: Outcome) -> float:
    """At the end; a run that diverged guesses at random."""
    if outcome["outcome"] == "completed":
        return outcome["test_accuracy"]
    name, options = parse("data set", outcome["cell"]["dataset"], DATASETS)
    default = inspect.signature(DATASETS[name]).parameters.get("classes")
    return 1 / options.get("classes", default.default if default else 10)


def by_algorithm(outcomes: Sequence[Outcome], part: str) -> dict[str, list[Outcome]]:
    """The outcomes of one part of the benchmark."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome["cell"]["part"] == part:
            groups.setdefault(outcome["cell"]["algorithm"], []).append(outcome)
    return groups


def draw(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """All pictures for which there is something to show."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in PICTURES.items():
        figure = make(outcomes)
        if figure is not None:
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=100)
    return written


def bare(axes: Any) -> None:
    """A faint grid, and no more of a frame than is needed."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def panels(names: Sequence[str], title: str, xlabel: str, ylabel: str) -> tuple[Any, Iterator[tuple[str, Any]]]:
    """A figure with a titled panel for each name, on common axes."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(max(5.5, 2.4 * columns), 1.0 + 1.75 * rows), layout="constrained")
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


def band(runs: Sequence[Outcome], x: str, y: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """x, and mean and standard deviation over seeds of y, where all runs have been."""
    curves = [run["curve"] for run in runs if run["outcome"] == "completed" and x in run["curve"]]
    if not curves:
        return None
    start = max(min(c[x]) for c in curves)
    grid = np.linspace(start, min(max(c[x]) for c in curves), POINTS)
    values = np.array([np.interp(grid, c[x], c[y]) for c in curves])
    return grid, values.mean(0), values.std(0)


def curves(x: str, y: str) -> Callable[[Sequence[Outcome]], Any]:
    """A picture of a metric (loss, accuracy) against examples, seconds or bytes."""

    def make(outcomes: Sequence[Outcome]) -> Any:
        scale, xlabel = AXES[x]
        groups = by_algorithm(outcomes, "convergence")
        bands = {name: b for name, runs in groups.items() if (b := band(runs, x, y)) and (x != "bytes" or b[0][-1] > 0)}
        if not bands:
            return None
        baseline = "sync_sgd" if "sync_sgd" in bands else "serial"
        grey = f"; grey: {baseline}" if baseline in bands else ""
        seeds = len(next(iter(groups.values())))
        spread = f"; mean and standard deviation of {seeds} seeds" if seeds > 1 else ""
        figure, axes_of = panels(list(bands), f"Test {y} against {xlabel}{grey}{spread}", xlabel, f"test {y}")
        low = min(b[1].min() for b in bands.values())
        for name, axes in axes_of:
            if baseline in bands and name != baseline:
                grid, middle, _ = bands[baseline]
                axes.plot(grid * scale, middle, color=GREY, lw=1.2)
            grid, middle, spread_ = bands[name]
            axes.plot(grid * scale, middle, color=colour(name), lw=1.8)
            axes.fill_between(grid * scale, middle - spread_, middle + spread_, color=colour(name), alpha=0.25, lw=0)
            if y == "loss":
                axes.set_ylim(low - 0.1, 2.3)
            if x == "bytes":
                axes.set_xscale("symlog", linthresh=1)
        return figure

    return make


AXES = {
    "examples": (1e-3, "thousands of examples, of all workers"),
    "seconds": (1.0, "seconds of training"),
    "bytes": (1e-6, "megabytes sent, both ways"),
}


def staleness(outcomes: Sequence[Outcome]) -> Any:
    """How old messages are when they arrive."""
    shares: dict[str, dict[int, float]] = {}
    for name, runs in by_algorithm(outcomes, "convergence").items():
        counts: dict[int, int] = {}
        for run in runs:
            for age, count in (run["staleness"]["histogram"] or {}).items():
                counts[int(age)] = counts.get(int(age), 0) + count
        if sum(counts.values()) > counts.get(0, 0):  # nothing to see where all are fresh
            shares[name] = {age: 100 * count / sum(counts.values()) for age, count in sorted(counts.items())}
    if not shares:
        return None
    limit = 12
    workers = max(o["cell"]["workers"] for o in outcomes if o["cell"]["part"] == "convergence")
    title = f"Staleness of messages with {workers} workers (algorithms in which all are fresh are left out)"
    figure, axes_of = panels(
        list(shares), title, f"updates since the worker pulled ({limit}: or more)", "% of messages"
    )
    for name, axes in axes_of:
        ages = range(limit + 1)
        heights = [shares[name].get(age, 0) for age in ages]
        heights[limit] += sum(v for age, v in shares[name].items() if age > limit)
        axes.bar(ages, heights, color=colour(name), width=0.85)
        average = sum(age * v for age, v in shares[name].items()) / 100
        axes.text(0.97, 0.9, f"mean {average:.1f}", transform=axes.transAxes, ha="right", va="top", fontsize=9)
    return figure


def throughput(outcomes: Sequence[Outcome]) -> Any:
    """Examples per second against workers."""
    rates = {
        name: sorted((o["cell"]["workers"], o["examples_per_second"] / 1e3) for o in runs if o["examples_per_second"])
        for name, runs in by_algorithm(outcomes, "throughput").items()
    }
    rates = {name: points for name, points in rates.items() if points}
    if not rates:
        return None
    baseline = "sync_sgd" if "sync_sgd" in rates else None
    title = "Throughput against the number of workers" + (f"; grey: {baseline}" if baseline else "")
    figure, axes_of = panels(list(rates), title, "workers", "thousands of examples per second")
    ticks = sorted({workers for points in rates.values() for workers, _ in points})
    for name, axes in axes_of:
        if baseline and name != baseline:
            axes.plot(*zip(*rates[baseline], strict=True), ".-", color=GREY, lw=1.2)
        axes.plot(*zip(*rates[name], strict=True), "o-", color=colour(name), lw=1.8, ms=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
    figure.axes[0].set_ylim(bottom=0)  # shared, and only now is the top known
    return figure


def sweep(part: str, title: str, xlabel: str, x_of: Callable[[Outcome], int]) -> Callable[[Sequence[Outcome]], Any]:
    """Final accuracy against a setting, a line for each algorithm with its name at the end."""

    def make(outcomes: Sequence[Outcome]) -> Any:
        from matplotlib.figure import Figure

        groups = by_algorithm(outcomes, part)
        if not groups:
            return None
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        ends, ticks = [], sorted({x_of(o) for runs in groups.values() for o in runs})
        for name, runs in groups.items():
            at = {x: [accuracy_of(o) for o in runs if x_of(o) == x] for x in sorted({x_of(o) for o in runs})}
            middle, deviation = [mean(v) for v in at.values()], [float(np.std(v)) for v in at.values()]
            axes.errorbar(list(at), middle, deviation, color=colour(name), fmt="o-", lw=2, ms=5, capsize=3)
            ends.append((middle[-1], name))
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        low, high = axes.get_ylim()
        height = -math.inf
        for y, name in sorted(ends):  # labels do not cover each other
            height = max(y, height + 0.055 * (high - low))
            axes.annotate(
                name, (ticks[-1], y), (ticks[-1] * 1.12, height), color=colour(name), va="center", fontweight="bold"
            )
        axes.set_xlim(ticks[0] / 1.2, ticks[-1] * 3)
        axes.set(xlabel=xlabel, ylabel="test accuracy at the end")
        axes.set_title(title, fontsize=11, loc="left")
        bare(axes)
        return figure

    return make


PICTURES: dict[str, Callable[[Sequence[Outcome]], Any]] = {
    **{f"{y}-{x}": curves(x, y) for y in ("loss", "accuracy") for x in AXES},
    "staleness": staleness,
    "throughput": throughput,
    "period": sweep(
        "period",
        "Communicating less often: accuracy after equally many examples, 4 workers",
        "communication period: local steps between two exchanges",
        lambda o: o["cell"]["settings"]["communication_period"],
    ),
    "workers": sweep(
        "workers",
        "More workers: accuracy after equally many examples, all workers together",
        "workers",
        lambda o: o["cell"]["workers"],
    ),
}
