"""The timeline of runs as a picture, for print and for documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..record.plot import figure_class
from ..record_format import BETWEEN_SERVERS
from .lanes import BETWEEN, TIMES, Tracks

# Viridis (van der Walt & Smith 2015, CC0) at 17 points, without its darkest and palest ends.
SCALE = (
    "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219",
)  # fmt: skip

UNKNOWN = (0.725, 0.745, 0.78, 1.0)  # colour of a round that is not in the trace

TRANSFER, WAIT = "#7d8590", "#e4e7eb"

SHARE = 99.0  # percentile of staleness at which the scale ends: a few late messages would make all others look alike

FEW = 200  # most rounds with arrows: more would hide the bars

INCHES_OF_A_LANE, MOST_INCHES = 0.26, 4.0


def draw(runs: Sequence[Tracks], begin: float = 0.0, end: float | None = None) -> Any:
    """Return a picture of runs above each other, on a common time axis.

    Args:
        runs: the runs, from top to bottom.
        begin: first second.
        end: last second; by default that of the longest run.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    colours = LinearSegmentedColormap.from_list("staleness", SCALE)
    norm = Normalize(0, last_of_scale(runs), clip=True)
    heights = [min(MOST_INCHES, INCHES_OF_A_LANE * (run.workers + 1)) for run in runs]
    figure = figure_class()(figsize=(10, sum(heights) + 0.55 * len(runs) + 0.6), layout="constrained")
    panels = figure.subplots(len(runs), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, run in zip(panels, runs, strict=True):
        _lanes(axes, run, lambda staleness: colours(norm(staleness)))
    longest = max(run.seconds for run in runs)
    panels[-1].set(xlabel="seconds since the start", xlim=(begin, longest if end is None else min(end, longest)))
    if any((run.columns["staleness"] > 0).any() for run in runs):
        scale = figure.colorbar(ScalarMappable(norm, colours), ax=list(panels), pad=0.01, aspect=30)
        scale.set_label("staleness", fontsize=8)  # the label must fit the height of one lane
    figure.legend(handles=_legend(colours(0.0)), ncols=5, loc="outside upper right", frameon=False, fontsize=8)
    return figure


def _legend(compute: Any) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Patch(color=compute, label="compute"),
        Line2D([], [], color=TRANSFER, lw=2.5, label="push, pull"),
        Patch(color=WAIT, label="wait"),
        Patch(facecolor="white", edgecolor="0.6", lw=0.5, label=BETWEEN),
        Line2D([], [], color="0.3", lw=1, marker=(3, 0, 0), markevery=[1], label="message to the ps"),
    ]


def _lanes(axes: Any, run: Tracks, colour_of: Any) -> None:
    """Draw the ps above a lane for each worker, and the arrows of messages if the rounds are few."""
    columns = run.columns
    staleness, worker = columns["staleness"], columns["worker"]
    colours = colour_of(np.maximum(staleness, 0))
    colours[staleness < 0] = UNKNOWN
    begun, ready, computed, arrived, released, replied = (
        np.where(columns[name] < 0, np.nan, columns[name]) / 1e6 for name in TIMES
    )
    sent, freed = np.fmin(arrived, ready), np.fmax(arrived, released)
    _bars(axes, worker, begun, np.fmax(begun, np.fmax(ready, computed)), 0.68, colours)
    _bars(axes, worker, np.fmax(arrived, computed), released, 0.68, WAIT)
    for start, end in ((ready, arrived), (freed, replied)):
        _bars(axes, worker, start, end, 0.2, TRANSFER)
    axes.scatter(arrived, np.full(len(arrived), -1.0), c=colours, s=9, zorder=3, linewidths=0)
    if len(worker) <= FEW:
        for row in np.flatnonzero(~np.isnan(arrived) & (columns["event"] < BETWEEN_SERVERS)):
            style = {"arrowstyle": "-|>", "lw": 0.7, "mutation_scale": 5, "shrinkA": 0, "shrinkB": 0}
            axes.annotate(
                "", (arrived[row], -0.9), (sent[row], worker[row] - 0.34), arrowprops={"color": colours[row], **style}
            )
    axes.set(ylim=(run.workers - 0.4, -1.6))
    each = next((n for n in (1, 2, 5, 10, 20, 50, 100, 200) if run.workers <= 12 * n), 500)
    lanes = range(0, run.workers, each)
    axes.set_yticks([-1, *lanes], ["ps", *(f"worker {k}" for k in lanes)], fontsize=8)
    axes.set_title(f"{run.algorithm}: {run.about}", loc="left", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _bars(axes: Any, worker: np.ndarray, start: np.ndarray, end: np.ndarray, height: float, colours: Any) -> None:
    """Draw a bar for each round of which both ends are known."""
    from matplotlib.collections import PolyCollection

    drawn = end > start
    if not drawn.any():
        return
    left, right, middle = start[drawn], end[drawn], worker[drawn]
    low, high = middle - height / 2, middle + height / 2
    corners = np.stack([[left, low], [right, low], [right, high], [left, high]]).transpose(2, 0, 1)
    chosen = colours if isinstance(colours, str) else colours[drawn]
    axes.add_collection(PolyCollection(list(corners), facecolors=chosen, linewidths=0), autolim=True)


def last_of_scale(runs: Sequence[Tracks]) -> int:
    """Return the staleness of the last colour, which larger ones share: one for all runs, at least 1."""
    staleness = np.concatenate([run.columns["staleness"][run.columns["staleness"] >= 0] for run in runs])
    return max(1, int(np.ceil(np.percentile(staleness, SHARE)))) if len(staleness) else 1
