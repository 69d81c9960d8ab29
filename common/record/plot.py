"""The plot of a run: loss and accuracy over time."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from typing import Any

MOST_WORKERS = 10  # with curves of their own

_importing = threading.Lock()


def accuracy_of(metrics: dict[str, Any]) -> float | None:
    """Return `accuracy` on the test data, else the first of Keras' accuracies that is a number; None without any."""
    names = [name for name in metrics if name.startswith("test_") and name.endswith("accuracy")]
    found = (metrics[name] for name in sorted(names, key=lambda name: name != "test_accuracy"))
    return next((value for value in found if not isinstance(value, list)), None)


def figures_of_scripts(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Return the numbers other than the loss that the scripts of workers have logged: time and mean, by name."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    zero = min(row["seconds"] for row in rows)
    for row in rows:
        if row["kind"] == "worker" and row["worker"] < MOST_WORKERS:
            for name in row.keys() - {"kind", "seconds", "run", "worker", "steps", "loss"}:
                found.setdefault((name, row["worker"]), []).append((row["seconds"] - zero, row[name]))
    return dict(sorted(found.items()))


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


def plot(rows: list[dict[str, Any]], config: dict[str, Any], file: Any) -> None:
    """Write a PNG of the losses of workers and center over time, and beside it accuracy or the figures of scripts."""
    zero = min(row["seconds"] for row in rows)
    rows = [{k: math.nan if v is None else v for k, v in row.items()} for row in rows]  # JSON has null for NaN
    figures, has_accuracy = figures_of_scripts(rows), any(accuracy_of(row) is not None for row in rows)
    panels = 2 if figures or has_accuracy else 1
    figure = figure_class()(figsize=(4.5 * panels, 3.6), layout="constrained")
    losses, *beside = figure.subplots(1, panels, squeeze=False)[0]
    _draw_losses(losses, rows, zero)
    for axes in beside:
        if figures:
            for (name, worker), points in figures.items():
                axes.plot(*zip(*points, strict=True), lw=1, alpha=0.6, label=f"{name}, worker {worker}")
            axes.legend()
        if has_accuracy:
            centers = [row for row in rows if row["kind"] == "center"]
            seconds, values = [row["seconds"] - zero for row in centers], [accuracy_of(row) for row in centers]
            axes.plot(seconds, values, "k.-")
            axes.set_ylim(0, 1.02)
            axes.axhline(1, color="0.8", lw=0.8)
        axes.set(ylabel="figures of the script" if figures else "test accuracy of the center")
    for axes in (losses, *beside):
        axes.set(xlabel="virtual seconds" if "platform" in config else "seconds")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    tasks = f"{config['ps']} ps + {config['workers']} workers" if config["ps"] else "1 process"
    tasks = f"simulated: {tasks}" if "platform" in config else tasks
    figure.suptitle(f"{config['algorithm']}   ({tasks}, {config['dataset']}, {config['model']})")
    figure.savefig(file, dpi=120)


def _draw_losses(axes: Any, rows: list[dict[str, Any]], zero: float) -> None:
    """Draw the losses of the workers, or their mean, and the test loss of the center."""
    reported = [row for row in rows if row["kind"] == "worker" and "loss" in row]
    for worker in sorted({row["worker"] for row in reported})[:MOST_WORKERS]:
        mine = [row for row in reported if row["worker"] == worker]
        seconds, values = [row["seconds"] - zero for row in mine], [row["loss"] for row in mine]
        axes.plot(seconds, values, lw=1, alpha=0.6, label=f"worker {worker}, training")
    centers = [row for row in rows if row["kind"] == "center"]
    if means := [row for row in centers if "loss" in row]:  # workers of a simulated run do not report one by one
        seconds = [row["seconds"] - zero for row in means]
        axes.plot(seconds, [row["loss"] for row in means], lw=1, alpha=0.6, label="mean of the workers, training")
    seconds = [row["seconds"] - zero for row in centers]
    if "test_loss" in centers[0]:
        axes.plot(seconds, [row.get("test_loss", math.nan) for row in centers], "k.-", label="center, test")
    positive = all(row.get("loss", 1) > 0 and row.get("test_loss", 1) > 0 for row in rows)
    axes.set(ylabel="loss", yscale="log" if positive else "linear")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
