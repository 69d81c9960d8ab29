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
from typing import Any, Literal, NamedTuple

from ..errors import UserError
from ..files import replacing
from .bands import IN_WORDS, Band, Curve, mean_and_band, spread
from .metrics import OF_EVERY_ROW

Row = dict[str, Any]

FORMATS = (".png", ".svg", ".pdf")

MOST_WORKERS = 10  # with curves of their own

MOST_LOGGED = 3  # figures of scripts that have a panel where runs are compared

# Told apart by colour-blind readers (Okabe and Ito, and two of Tol's).
PALETTE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#882255", "#117733"
FIRST_SUM = 25332  # of the checksums of names: with this one, algorithms that are often compared differ in colour
GREY = "0.6"
LINES = "-", "--", "-.", ":"  # of the first, second, ... run of one colour

Axis = Literal["seconds", "updates", "examples", "bytes"]

AXES: dict[str, str] = {
    "seconds": "seconds since the first update",
    "updates": "updates of the center",
    "examples": "examples, of all workers",
    "bytes": "bytes sent, both ways",
}

MOST_TICKS = 8  # powers of ten on a logarithmic axis

DECADE = 10.0  # bytes whose last values differ by more than this factor stand on a logarithmic axis

Width = Literal["column", "page"]

INCHES = {"column": 3.3, "page": 6.9}  # widths of pictures in a paper

SMALL = 7.0  # points: of all texts of a picture in a paper

FINE = 300  # dots per inch of one

WIDTH = 52  # characters of a title above each panel

_importing = threading.Lock()


class Drawn(NamedTuple):
    """A run to draw: its configuration, its rows of metrics.jsonl, its name in the legend, and its repeats.

    The repeats are runs of the same settings with other seeds: the mean of all is drawn, and a band around it.
    """

    config: dict[str, Any]
    rows: list[Row]
    label: str = ""
    repeats: tuple[Drawn, ...] = ()

    @property
    def centers(self) -> list[Row]:
        """Rows of the center."""
        return [row for row in self.rows if row["kind"] == "center"]

    def with_nan(self) -> Drawn:
        """Return the run with NaN where JSON has null for it."""
        rows = [{k: math.nan if v is None else v for k, v in row.items()} for row in self.rows]
        return self._replace(rows=rows, repeats=tuple(one.with_nan() for one in self.repeats))

    @property
    def all(self) -> list[Drawn]:
        """This run and its repeats."""
        return [self, *self.repeats]


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
        raise UserError(
            f"{name} takes a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}. Received: {path}"
        )


def save(figure: Any, path: Path, dpi: int = 120) -> None:
    """Write a figure to a file, atomically; the end of its name, one of `FORMATS`, is the format.

    Raises:
        CannotWrite: the file is as it was before.
    """
    from matplotlib import rc_context

    with replacing(path) as file, rc_context({"pdf.fonttype": 42}):  # many journals refuse Type 3 fonts
        figure.savefig(file, dpi=dpi, format=path.suffix[1:])


def bare(axes: Any) -> None:
    """Draw a faint grid, and only the needed parts of a frame."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw(runs: Sequence[Drawn], x: str = "seconds", band: Band = "deviation", width: Width | None = None) -> Any:
    """Return a figure with the losses of runs, and beside them errors, or the figures of a script.

    Args:
        runs: one run, drawn with its workers, or several, or runs with repeats, of which only the centers are drawn.
        x: name of the horizontal axis, one of `AXES`.
        band: extent of the band around the mean of repeats: standard deviation, or least and greatest value.
        width: width of a picture for a paper, one column or a page, which has no title: panels of one column stand
            below each other, and all texts have at least 7 points. None: a picture for a screen.

    Raises:
        UserError: there is no such axis, or a run has no such quantity.
    """
    if x not in AXES:
        raise UserError(f"x must be one of {', '.join(AXES)}. Received: {x!r}")
    runs = [run.with_nan() for run in runs]
    panels = _panels(runs)
    compared = len(runs) > 1 or any(run.repeats for run in runs)
    rows, cols = (len(panels), 1) if width == "column" else (1, len(panels))
    figure = figure_class()(figsize=_size(runs, len(panels), compared, width), layout="constrained")
    for axes, fill in zip(figure.subplots(rows, cols, squeeze=False).flat, panels, strict=True):
        fill(axes, runs, x, band)
        _finish(axes, runs, x)
        if not compared and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=SMALL if width else 9, framealpha=0.7)
    if compared:
        _common_legend(figure, band if any(run.repeats for run in runs) else None, width)
    if width is None:
        figure.suptitle(_title(runs, WIDTH * len(panels)), fontsize=11)
    else:
        shrink(figure)
    figure._repr_png_ = partial(_png, figure)  # a notebook shows it, also one that has not imported pyplot
    return figure


def _panels(runs: Sequence[Drawn]) -> list[Callable[[Any, Sequence[Drawn], str, Band], None]]:
    """Return the functions that fill the panels: those of quantities that a run has."""
    rows = [row for run in runs for one in run.all for row in one.rows]
    panels: list[Callable[[Any, Sequence[Drawn], str, Band], None]] = []
    panels += [_draw_losses] * any("loss" in row or "test_loss" in row for row in rows)
    panels += [_draw_consensus] * any("consensus" in row for row in rows)
    if len(runs) == 1 and not runs[0].repeats:
        panels += [_draw_figures] * bool(_figures_of_script(runs[0]))
    else:
        logged = dict.fromkeys(name for run in runs for one in run.all for name, _ in _figures_of_script(one))
        panels += [partial(_draw_logged, name=name) for name in [*logged][:MOST_LOGGED]]
    panels += [_draw_errors] * any(accuracy_of(row) is not None for row in rows)
    return panels or [_draw_losses]


def _size(runs: Sequence[Drawn], panels: int, compared: bool, width: Width | None) -> tuple[float, float]:
    """Return width and height of a figure, in inches, with room for the lines of a common legend."""
    if width is None:
        longest = max(len(run.label) for run in runs)
        return max(4.8 * panels, 2.0 + 0.08 * longest), 4.0 + 0.2 * (len(runs) + 1) * compared
    labels = [run.label for run in runs]
    lines = sum(1 + len(label) // _letters(width) for label in labels)
    below = 0.15 * math.ceil(lines / _columns(labels, width)) + 0.3
    return INCHES[width], 1.9 * (panels if width == "column" else 1.2) + below * compared


def _letters(width: Width) -> int:
    """Return the number of letters in a line of a legend of a paper."""
    return int(INCHES[width] * 17)


def _columns(labels: Sequence[str], width: Width) -> int:
    """Return the number of columns of a legend of a paper; a line and its margins are as wide as 8 letters."""
    return max(1, min(4, _letters(width) // (8 + max(map(len, labels), default=1))))


def shrink(figure: Any) -> None:
    """Set all texts of a picture for a paper to `SMALL` points, those of ticks that are made later too."""
    from matplotlib.text import Text

    for axes in figure.axes:
        axes.tick_params(which="both", labelsize=SMALL)
        for line in axes.lines:
            line.set(linewidth=min(1.2, line.get_linewidth()), markersize=4)
    for text in figure.findobj(Text):
        text.set_fontsize(SMALL)


def _png(figure: Any) -> bytes:
    figure.savefig(file := BytesIO(), dpi=100)
    return file.getvalue()


def _plot(
    axes: Any, curves: Sequence[Curve], band: Band, name: str, style: dict[str, Any], form: str, unit: str = ""
) -> None:
    """Draw a curve, or the mean of several and the band around it, with the last values in its label."""
    if len(curves) == 1:
        places, values = curves[0]
        axes.plot(places, values, label=f"{name}: {values[-1]:{form}}{unit}", **style)
        return
    places, means, low, high = mean_and_band(curves, band)
    ends = " ± ".join(spread([curve.values[-1] for curve in curves]).parts())
    (line,) = axes.plot(places, means, label=f"{name}: {ends}{unit}", **style)
    axes.fill_between(places, low, high, color=line.get_color(), alpha=0.2, lw=0)


def _curve(run: Drawn, rows: Sequence[Row], x: str, values: Sequence[float]) -> Curve:
    return Curve(_positions(run, rows, x), values)


def _draw_losses(axes: Any, runs: Sequence[Drawn], x: str, band: Band) -> None:
    """Draw the test losses of the centers; of a single run, and of one without test data, also training losses."""
    alone = len(runs) == 1 and not runs[0].repeats
    for run, style in zip(runs, _styles(runs), strict=True):
        has_test = any("test_loss" in row for row in run.centers)
        if run.repeats and not has_test:
            curves = [_mean_of_workers(one, [*_training(one).values()], x, "loss") for one in run.all]
            if curves := [curve for curve in curves if curve]:
                _plot(axes, curves, band, run.label, style, ".4g")
        elif alone or not has_test:
            thin = {"lw": 1, "color": GREY} if has_test or alone else style
            scripted = alone and "shapes" in run.config  # its workers have the colours of their other figures
            for i, (name, rows) in enumerate(_training(run).items()):
                label = f"{run.label}: {rows[-1]['loss']:.4g}" if run.label else name
                if scripted:
                    thin, label = _of_worker(rows[0]["worker"]), f"worker {rows[0]['worker']}, training"
                label = "_" * (i > 0 and not scripted) + label
                axes.plot(_positions(run, rows, x), [row["loss"] for row in rows], label=label, **thin)
        if has_test:
            tested = [(one, [row for row in one.centers if "test_loss" in row]) for one in run.all]
            curves = [_curve(one, rows, x, [row["test_loss"] for row in rows]) for one, rows in tested if rows]
            _plot(axes, curves, band, run.label or "center, test", style, ".4g")
    tested = any("test_loss" in row for run in runs for row in run.centers)
    axes.set(ylabel="loss" if alone else "test loss of the center" if tested else "training loss of the workers")
    _show_differences(axes)


def _draw_errors(axes: Any, runs: Sequence[Drawn], x: str, band: Band) -> None:
    """Draw 1 - accuracy in percent; the accuracies themselves, if some are not between 0 and 1."""
    found = [
        [
            (one, points)
            for one in run.all
            if (points := [(row, value) for row in one.centers if (value := accuracy_of(row)) is not None])
        ]
        for run in runs
    ]
    values = [value for of_run in found for _, points in of_run for _, value in points]
    are_shares = all(not value < 0 and not value > 1 for value in values)
    for run, style, of_run in zip(runs, _styles(runs), found, strict=True):
        curves = [
            _curve(one, [row for row, _ in points], x, [100 * (1 - v) if are_shares else v for _, v in points])
            for one, points in of_run
        ]
        if curves:
            _plot(axes, curves, band, run.label or "center", style, ".3g", " %" * are_shares)
    axes.set(ylabel="test error of the center, %" if are_shares else "test accuracy of the center")
    if are_shares:
        _show_differences(axes)


def _draw_consensus(axes: Any, runs: Sequence[Drawn], x: str, band: Band) -> None:
    """Draw the mean squared distance of workers that gossip from their mean."""
    for run, style in zip(runs, _styles(runs), strict=True):
        measured = [(one, [row for row in one.centers if row.get("consensus")]) for one in run.all]
        curves = [_curve(one, rows, x, [row["consensus"] for row in rows]) for one, rows in measured if rows]
        if curves:
            _plot(axes, curves, band, run.label or "workers", style, ".3g")
    axes.set(ylabel="consensus distance of the workers")
    _show_differences(axes)


def _draw_figures(axes: Any, runs: Sequence[Drawn], x: str, band: Band) -> None:
    """Draw the numbers that the script of a run has logged, a curve for each name and worker."""
    found = _figures_of_script(runs[0])
    names = [*dict.fromkeys(name for name, _ in found)]
    for (name, worker), rows in found.items():
        values, line = [row[name] for row in rows], LINES[names.index(name) % len(LINES)]
        label = f"{name}, worker {worker}"
        axes.plot(_positions(runs[0], rows, x), values, ls=line, alpha=0.6, label=label, **_of_worker(worker))
    axes.set(ylabel=names[0] if len(names) == 1 else "figures of the script")


def _of_worker(worker: int) -> dict[str, Any]:
    """Return the line of a worker of a script, with the same colour in each panel."""
    return {"lw": 1, "color": f"C{worker}"}


def _draw_logged(axes: Any, runs: Sequence[Drawn], x: str, band: Band, name: str) -> None:
    """Draw a number that the scripts of several runs have logged: its mean over the workers."""
    for run, style in zip(runs, _styles(runs), strict=True):
        found = [(one, [rows for key, rows in _figures_of_script(one).items() if key[0] == name]) for one in run.all]
        curves = [_mean_of_workers(one, series, x, name) for one, series in found]
        if curves := [curve for curve in curves if curve]:
            _plot(axes, curves, band, run.label, style, ".4g")
    axes.set(ylabel=f"{name}, mean of the workers")


def _mean_of_workers(run: Drawn, series: Sequence[Sequence[Row]], x: str, name: str) -> Curve | None:
    """Return the mean curve of a figure over the workers of a run; None if no worker has it."""
    curves = [_curve(run, rows, x, [row[name] for row in rows]) for rows in series if rows]
    return Curve(*mean_and_band(curves, "range")[:2]) if curves else None


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
            for name in row.keys() - {*OF_EVERY_ROW, "loss"}:
                found.setdefault((name, row["worker"]), []).append(row)
    return dict(sorted(found.items()))


def _positions(run: Drawn, rows: Sequence[Row], x: str) -> list[float]:
    """Return the rows' places on the horizontal axis; those of workers are interpolated between rows of the center."""
    if x == "seconds":
        begun = _first_update(run)
        return [max(0.0, row["seconds"] - begun) for row in rows]
    import numpy as np

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
    return [{"color": shade, "ls": LINES[colours[:i].count(shade) % len(LINES)]} for i, shade in enumerate(colours)]


def _styles(runs: Sequence[Drawn]) -> list[dict[str, Any]]:
    """Return the line of each run, with a mark at each point of a single run, else at the last one."""
    every = 1 if len(runs) == 1 and not runs[0].repeats else [-1]  # marks of all points would hide dashes
    lines = lines_of([run.config["algorithm"] for run in runs])
    return [{**line, "lw": 1.8, "marker": ".", "markevery": every} for line in lines]


def _show_differences(axes: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers; linear below the smallest value if some are zero."""
    import numpy as np

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


def _finish(axes: Any, runs: Sequence[Drawn], x: str) -> None:
    """Name the horizontal axis and add the grid; bytes that span more than a decade are on a logarithmic axis."""
    from matplotlib.ticker import EngFormatter, NullFormatter

    simulated = all("platform" in run.config for run in runs)
    axes.set(xlabel="virtual seconds" if x == "seconds" and simulated else AXES[x])
    ends = [line.get_xdata()[-1] for line in axes.lines if len(line.get_xdata())]
    if x == "bytes" and any(end > DECADE * min(filter(None, ends)) for end in ends):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if x != "seconds":
        axes.xaxis.set_major_formatter(EngFormatter("B" if x == "bytes" else ""))
    bare(axes)


def _common_legend(figure: Any, band: Band | None, width: Width | None) -> None:
    """Name each run of several once, below all panels, with its final values; and say what a band is."""
    handles, values = {}, {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            name, _, value = label.rpartition(": ")
            handles.setdefault(name, handle)
            values.setdefault(name, []).append(value)
    if width is None:
        names, cols = [f"{name}: {', '.join(values[name])}" for name in handles], 1
    else:  # the last values stand in the table of the paper
        names = [textwrap.fill(name, _letters(width), subsequent_indent="   ") for name in handles]
        cols = _columns(names, width)
    if names:
        size, title = SMALL if width else 9, f"mean, band: {IN_WORDS[band]}" if band else None
        place = {
            "loc": "outside lower center",
            "frameon": False,
            "ncols": cols,
            "fontsize": size,
            "title_fontsize": size,
        }
        figure.legend(handles.values(), names, title=title, **place)


def _title(runs: Sequence[Drawn], width: int) -> str:
    """Return algorithm, task and settings of a run, or the task of several, on lines of at most `width` characters."""
    tasks = list(dict.fromkeys(task_of(run.config) for run in runs))
    if (number := sum(len(run.all) for run in runs)) > 1:
        return textwrap.fill(f"{number} runs on {tasks[0] if len(tasks) == 1 else f'{len(tasks)} tasks'}", width)
    config = runs[0].config
    machines = f"{config['ps']} ps + {config['workers']} workers" if config["ps"] else f"workers: {config['workers']}"
    machines = f"simulated: {machines}" if "platform" in config else machines
    settings = {k: v for k, v in config.get("hyperparameters", {}).items() if v is not None} | {"seed": config["seed"]}
    below = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
    title = textwrap.fill(f"{config['algorithm']} on {tasks[0]} ({machines})", width)
    return f"{title}\n{textwrap.fill(below, width, max_lines=2, placeholder=' ...')}"


def task_of(config: dict[str, Any]) -> str:
    """Return data and model; those of a problem of theory are one."""
    data, model = config["dataset"], config["model"]
    return model if model.startswith(data) else f"{data}, {model}"
