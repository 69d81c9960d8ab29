"""The pictures of runs: loss and error of the center over seconds, updates, examples or bytes."""

from __future__ import annotations

import contextlib
import logging
import math
import textwrap
import threading
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..files import replacing

Row = dict[str, Any]

FORMATS = (".png", ".svg")

MOST_WORKERS = 10  # with curves of their own

# Told apart by colour-blind readers (Okabe and Ito, and two of Tol's).
PALETTE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#882255", "#117733"
FIRST_SUM = 25332  # of the checksums of names: with this one, algorithms that are often compared differ in colour
GREY = "0.6"
LINES = "-", "--", "-.", ":"  # of the first, second, ... run of one colour

AXES = {
    "seconds": "seconds since the first update",
    "updates": "updates of the center",
    "examples": "examples, of all workers",
    "bytes": "bytes sent, both ways",
}

MOST_TICKS = 8  # powers of ten on a logarithmic axis

WIDTH = 52  # characters of a title above each panel

_importing = threading.Lock()


class Drawn(NamedTuple):
    """A run to draw: its configuration, its rows of metrics.jsonl, and its name in the legend."""

    config: dict[str, Any]
    rows: list[Row]
    label: str = ""

    @property
    def centers(self) -> list[Row]:
        """Rows of the center."""
        return [row for row in self.rows if row["kind"] == "center"]

    def with_nan(self) -> Drawn:
        """Return the run with NaN where JSON has null for it."""
        return self._replace(rows=[{k: math.nan if v is None else v for k, v in row.items()} for row in self.rows])


def colour(algorithm: str) -> str:
    """Return the colour of an algorithm, the same in every picture; black for one that is not in the catalogue.

    It depends on the name alone: a new algorithm changes no other's. Some algorithms share a colour.
    """
    from ...algorithms import SCHEMES

    return PALETTE[zlib.crc32(algorithm.encode(), FIRST_SUM) % len(PALETTE)] if algorithm in SCHEMES else "k"


def accuracy_of(metrics: dict[str, Any]) -> float | None:
    """Return `accuracy` on the test data, else the first of Keras' accuracies that is a number; None without any."""
    names = [name for name in metrics if name.startswith("test_") and name.endswith("accuracy")]
    found = (metrics[name] for name in sorted(names, key=lambda name: name != "test_accuracy"))
    return next((value for value in found if not isinstance(value, list)), None)


def figure_class() -> Any:
    """Import and return Matplotlib's `Figure`, without its messages about cache folders."""
    logger = logging.getLogger("matplotlib")
    with _importing, contextlib.ExitStack() as stack:  # a second thread would take our level for the user's
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        from matplotlib.figure import Figure
    return Figure


def import_ahead() -> None:
    """Import Matplotlib in a thread, before a plot needs it; an error is raised by the plot."""
    with contextlib.suppress(Exception):
        figure_class()


def check_format(name: str, path: Path) -> None:
    """Raise `UserError` for the path of a picture, given as the option `name`, whose end is none of `FORMATS`."""
    if path.suffix not in FORMATS:
        raise UserError(f"{name} takes a name that ends in {' or '.join(FORMATS)}. Received: {path}")


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure to a file, atomically; the end of its name, one of `FORMATS`, is the format.

    Raises:
        CannotWrite: the file is as it was before.
    """
    with replacing(path) as file:
        figure.savefig(file, dpi=dpi, format=path.suffix[1:])


def bare(axes: Any) -> None:
    """Draw a faint grid, and only the needed parts of a frame."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw(runs: Sequence[Drawn], x: str = "seconds") -> Any:
    """Return a figure with the losses of runs, and beside them errors, or the figures of a script.

    Args:
        runs: one run, drawn with its workers, or several, of which only the centers are drawn.
        x: name of the horizontal axis, one of `AXES`.

    Raises:
        UserError: there is no such axis, or a run has no such quantity.
    """
    if x not in AXES:
        raise UserError(f"x must be one of {', '.join(AXES)}. Received: {x!r}")
    runs = [run.with_nan() for run in runs]
    rows = [row for run in runs for row in run.rows]
    panels: list[Callable[[Any, Sequence[Drawn], str], None]] = []
    panels += [_draw_losses] * any("loss" in row or "test_loss" in row for row in rows)
    panels += [_draw_consensus] * any("consensus" in row for row in rows)
    panels += [_draw_figures] * (len(runs) == 1 and bool(_figures_of_script(runs[0])))
    panels += [_draw_errors] * any(accuracy_of(row) is not None for row in rows)
    panels = panels or [_draw_losses]
    longest, below = max(len(run.label) for run in runs), len(runs) * (len(runs) > 1)  # lines of a common legend
    size = max(4.8 * len(panels), 2.0 + 0.08 * longest), 4.0 + 0.2 * below
    figure = figure_class()(figsize=size, layout="constrained")
    for axes, fill in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        fill(axes, runs, x)
        _finish(axes, x, simulated=all("platform" in run.config for run in runs))
        if not below and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9, framealpha=0.7)
    if below:
        _common_legend(figure)
    figure.suptitle(_title(runs, WIDTH * len(panels)), fontsize=11)
    figure._repr_png_ = partial(_png, figure)  # a notebook shows it, also one that has not imported pyplot
    return figure


def _png(figure: Any) -> bytes:
    figure.savefig(file := BytesIO(), dpi=100)
    return file.getvalue()


def _draw_losses(axes: Any, runs: Sequence[Drawn], x: str) -> None:
    """Draw the test losses of the centers; of a single run, and of one without test data, also training losses."""
    for run, style in zip(runs, _styles(runs), strict=True):
        has_test = any("test_loss" in row for row in run.centers)
        if len(runs) == 1 or not has_test:
            thin = {"lw": 1, "color": GREY} if has_test or len(runs) == 1 else style
            for i, (name, rows) in enumerate(_training(run).items()):
                label = f"{run.label}: {rows[-1]['loss']:.4g}" if run.label else name
                axes.plot(_positions(run, rows, x), [row["loss"] for row in rows], label="_" * (i > 0) + label, **thin)
        if has_test:
            rows = [row for row in run.centers if "test_loss" in row]
            values = [row["test_loss"] for row in rows]
            label = f"{run.label or 'center, test'}: {values[-1]:.4g}"
            axes.plot(_positions(run, rows, x), values, label=label, **style)
    axes.set(ylabel="test loss of the center" if len(runs) > 1 else "loss")
    _show_differences(axes)


def _draw_errors(axes: Any, runs: Sequence[Drawn], x: str) -> None:
    """Draw 1 - accuracy in percent; the accuracies themselves, if some are not between 0 and 1."""
    found = [[(row, value) for row in run.centers if (value := accuracy_of(row)) is not None] for run in runs]
    are_shares = all(not value < 0 and not value > 1 for points in found for _, value in points)
    for run, style, points in zip(runs, _styles(runs), found, strict=True):
        if points:
            values = [100 * (1 - value) if are_shares else value for _, value in points]
            label = f"{run.label or 'center'}: {values[-1]:.3g}{' %' * are_shares}"
            axes.plot(_positions(run, [row for row, _ in points], x), values, label=label, **style)
    axes.set(ylabel="test error of the center, %" if are_shares else "test accuracy of the center")
    if are_shares:
        _show_differences(axes)


def _draw_consensus(axes: Any, runs: Sequence[Drawn], x: str) -> None:
    """Draw the mean squared distance of workers that gossip from their mean."""
    for run, style in zip(runs, _styles(runs), strict=True):
        if rows := [row for row in run.centers if row.get("consensus")]:
            values = [row["consensus"] for row in rows]
            axes.plot(_positions(run, rows, x), values, label=f"{run.label or 'workers'}: {values[-1]:.3g}", **style)
    axes.set(ylabel="consensus distance of the workers")
    _show_differences(axes)


def _draw_figures(axes: Any, runs: Sequence[Drawn], x: str) -> None:
    """Draw the numbers that the script of a run has logged, a curve for each name and worker."""
    for (name, worker), rows in _figures_of_script(runs[0]).items():
        values = [row[name] for row in rows]
        axes.plot(_positions(runs[0], rows, x), values, lw=1, alpha=0.6, label=f"{name}, worker {worker}")
    axes.set(ylabel="figures of the script")


def _training(run: Drawn) -> dict[str, list[Row]]:
    """Return the rows with the losses of workers, by name; of a simulated run those with the mean of all."""
    found: dict[str, list[Row]] = {}
    for row in run.rows:
        if row["kind"] == "worker" and "loss" in row and row["worker"] < MOST_WORKERS:
            found.setdefault(f"worker {row['worker']}, training", []).append(row)
    if means := [row for row in run.centers if "loss" in row]:
        found["workers since the last point, training"] = means
    return {"workers, training" if i == 0 and len(found) > 1 else name: found[name] for i, name in enumerate(found)}


def _figures_of_script(run: Drawn) -> dict[tuple[str, int], list[Row]]:
    """Return the rows with numbers other than the loss that workers' scripts have logged, by name and worker."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in run.rows:
        if row["kind"] == "worker" and row["worker"] < MOST_WORKERS:
            for name in row.keys() - {"kind", "seconds", "run", "worker", "steps", "loss"}:
                found.setdefault((name, row["worker"]), []).append(row)
    return dict(sorted(found.items()))


def _positions(run: Drawn, rows: Sequence[Row], x: str) -> list[float]:
    """Return the rows' places on the horizontal axis; those of workers are interpolated between rows of the center."""
    if x == "seconds":
        begun = _first_update(run)
        return [max(0.0, row["seconds"] - begun) for row in rows]
    counts = [_count(run, row, x) for row in run.centers]
    seconds = [row["seconds"] for row in run.centers]
    return [_count(run, row, x) if row["kind"] == "center" else np.interp(row["seconds"], seconds, counts)
            for row in rows]  # fmt: skip


def _count(run: Drawn, row: Row, x: str) -> float:
    """Return the updates, examples or bytes up to a row of the center."""
    names = {"updates": ["version"], "examples": ["examples"], "bytes": ["bytes_pushed", "bytes_pulled"]}[x]
    if not all(name in row for name in names):
        name = run.label or run.config["algorithm"]
        raise UserError(f"no number of {x} is recorded in the run of {name}: choose another horizontal axis")
    return sum(row[name] for name in names)


def _first_update(run: Drawn) -> float:
    """Return the time of the first row after version 0: until then, processes start. Virtual time has no start-up."""
    if "platform" in run.config:
        return 0.0
    signs = [row["seconds"] for row in run.rows if row["kind"] != "center" or row.get("version", 1) > 0]
    return min(signs, default=run.rows[0]["seconds"])


def lines_of(algorithms: Sequence[str]) -> list[dict[str, Any]]:
    """Return colour and dashes of a line for each run: lines of one colour differ in dashes."""
    colours = [colour(algorithm) for algorithm in algorithms]
    return [{"color": mine, "ls": LINES[colours[:i].count(mine) % len(LINES)]} for i, mine in enumerate(colours)]


def _styles(runs: Sequence[Drawn]) -> list[dict[str, Any]]:
    """Return the line of each run, with a mark at each point of a single run, else at the last one."""
    every = 1 if len(runs) == 1 else [-1]  # marks of all points would hide dashes
    lines = lines_of([run.config["algorithm"] for run in runs])
    return [{**line, "lw": 1.8, "marker": ".", "markevery": every} for line in lines]


def _show_differences(axes: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers; linear below the smallest value if some are zero."""
    values = np.array([value for line in axes.lines for value in line.get_ydata()], np.float64)
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    if not positive.size or values.min() < 0:
        return
    low, high = positive.min(), positive.max()
    has_zeros = positive.size < values.size
    axes.set_yscale("symlog", linthresh=low, linscale=0.3) if has_zeros else axes.set_yscale("log")
    if high / low > 5:
        of_decade = (1, 2, 5) if high / low < 1e3 else (1,)
        first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
        powers = range(first, last + 1, math.ceil((last - first) / MOST_TICKS))
        bottom, top = axes.get_ylim()
        ticks = [digit * 10.0**power for power in powers for digit in of_decade]
        # In the linear part, below the smallest value, labels would overlap that of zero.
        axes.set_yticks([0.0] * has_zeros + [tick for tick in ticks if max(bottom, low * has_zeros) <= tick <= top])
    else:
        from matplotlib.ticker import MaxNLocator

        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def _finish(axes: Any, x: str, simulated: bool) -> None:
    """Name the horizontal axis and add the grid."""
    from matplotlib.ticker import EngFormatter

    axes.set(xlabel="virtual seconds" if x == "seconds" and simulated else AXES[x])
    if x != "seconds":
        axes.xaxis.set_major_formatter(EngFormatter("B" if x == "bytes" else ""))
    bare(axes)


def _common_legend(figure: Any) -> None:
    """Name each run of several once, below all panels, with its final values."""
    handles, values = {}, {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            name, _, value = label.rpartition(": ")
            handles.setdefault(name, handle)
            values.setdefault(name, []).append(value)
    names = [f"{name}: {', '.join(values[name])}" for name in handles]
    if names:
        figure.legend(handles.values(), names, loc="outside lower center", frameon=False, fontsize=9)


def _title(runs: Sequence[Drawn], width: int) -> str:
    """Return algorithm, task and settings of a run, or the task of several, on lines of at most `width` characters."""
    tasks = list(dict.fromkeys(task_of(run.config) for run in runs))
    if len(runs) > 1:
        return textwrap.fill(f"{len(runs)} runs on {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}", width)
    config = runs[0].config
    machines = f"{config['ps']} ps + {config['workers']} workers" if config["ps"] else f"workers: {config['workers']}"
    machines = f"simulated: {machines}" if "platform" in config else machines
    settings = {k: v for k, v in config.get("hyperparameters", {}).items() if v is not None} | {"seed": config["seed"]}
    below = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
    title = textwrap.fill(f"{config['algorithm']} on {tasks[0]} ({machines})", width)
    return f"{title}\n{textwrap.shorten(below, width, placeholder=' ...')}"


def task_of(config: dict[str, Any]) -> str:
    """Return data and model; those of a problem of theory are one."""
    data, model = config["dataset"], config["model"]
    return model if model.startswith(data) else f"{data}, {model}"
