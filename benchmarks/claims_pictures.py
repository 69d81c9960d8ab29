"""The pictures of the claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..algorithms import SCHEMES
from ..common.record.plot import PALETTE, lines_of
from .claims_study import Found
from .plots import bare, decades

MARKS = "osD^vPX*"


def against_places(
    found: Found,
    xlabel: str,
    ylabel: str,
    *,
    least: float = 0,
    most: float | None = None,
    level: tuple[float, str] | None = None,
) -> Any:
    """Plot a line for each arm, a point for each place; the places are numbers.

    Args:
        found: what was measured.
        xlabel: of the places, which are shown by their logarithms.
        ylabel: of the scores.
        least: where the axis of the scores begins.
        most: what is above is shown at the upper edge.
        level: a dashed line, and its name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    bare(axes)
    at = [float(place) for place in found.places]
    for i, (arm, line) in enumerate(zip(found.arms, _lines(found.arms), strict=True)):
        rows = [row for place in found.places if (row := found.get(arm, place))]
        places = [float(row.place) for row in rows]
        means = [row.mean if most is None else min(row.mean, most) for row in rows]
        shown = [math.nan if math.isinf(mean) else mean for mean in means]
        spread = [0 if math.isnan(row.spread) or (most and row.mean > most) else row.spread for row in rows]
        style = {"marker": MARKS[i % len(MARKS)], "ms": 5, "capsize": 2, **line}
        axes.errorbar(places, shown, spread, lw=1.5, label=arm, **style)
        for x, row in zip(places, rows, strict=True):
            if most is not None and row.mean > most:
                axes.annotate("↑", (x, most), (0, 3), textcoords="offset points", ha="center", color=style["color"])
    if level:
        axes.axhline(level[0], ls="--", lw=1, color="0.5")
        axes.annotate(level[1], (at[0], level[0]), (0, 3), textcoords="offset points", fontsize=8, color="0.4")
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, found.places)
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(least, None if most is None else most * 1.07))
    axes.legend(fontsize=8)
    return figure


def _lines(arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return colour and dashes of the line of each arm, by its algorithm if all arms begin with the name of one."""
    algorithms = [arm.partition(",")[0].replace("-", "_") for arm in arms]
    if SCHEMES.keys() >= set(algorithms):
        return lines_of(algorithms)
    return [{"color": PALETTE[i % len(PALETTE)]} for i in range(len(arms))]


def bars(found: Found, xlabel: str) -> Any:
    """Plot a bar for each arm at the only place, with its spread; the axis begins near the least."""
    from matplotlib.figure import Figure

    (place,) = found.places
    rows = [found[arm, place] for arm in found.arms]
    figure = Figure(figsize=(6.4, 0.8 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bare(axes)
    axes.errorbar([row.mean for row in rows], range(len(rows)), xerr=[row.spread for row in rows], fmt="o", capsize=3)
    axes.set_yticks(range(len(rows)), [row.arm for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel=xlabel)
    return figure


def against_kilobytes(found: Found, kilobytes: Mapping[str, float], xlabel: str, ylabel: str) -> Any:
    """Plot a point for each arm at the only place: its score, and its spread, against what its workers move."""
    from matplotlib.figure import Figure

    (place,) = found.places
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    bare(axes)
    for i, (arm, line) in enumerate(zip(found.arms, _lines(found.arms), strict=True)):
        row = found[arm, place]
        style = {"marker": MARKS[i % len(MARKS)], "ms": 6, "capsize": 2, "ls": "none", **line}
        axes.errorbar([kilobytes[arm]], [row.mean], [row.spread], label=arm, **style)
    axes.set_xscale("log")
    decades(axes.xaxis, "{x:,.0f}")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def in_general(found: Found, column: str, unit: str) -> Any:
    """Plot any claim: bars at one place, lines against numbers, or else a panel for each place."""
    if len(found.places) == 1:
        return bars(found, unit)
    numbers = all(place.isdecimal() for place in found.places)
    if not numbers and len(found.arms) > 1 and len(found.rows) == len(found.arms) * len(found.places):
        return _panels(found, unit)
    figure = on_logarithms(found, column, unit)
    means = [row.mean for row in found.rows if math.isfinite(row.mean)]
    if max(means) < 10 * min(means):
        figure.axes[0].set_yscale("linear")
    if not numbers:
        figure.axes[0].tick_params(axis="x", labelrotation=30)
    return figure


def _panels(found: Found, xlabel: str) -> Any:
    """Plot a panel with an axis of its own for each place; an arm that missed the target is a cross at the edge."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(2.2 + 2.2 * len(found.places), 1.5 + 0.3 * len(found.arms)), layout="constrained")
    panels = figure.subplots(1, len(found.places), sharey=True)
    for axes, place in zip(panels, found.places, strict=True):
        rows = [found[arm, place] for arm in found.arms]
        reached = [i for i, row in enumerate(rows) if math.isfinite(row.mean)]
        bare(axes)
        axes.errorbar(
            [rows[i].mean for i in reached], reached, xerr=[rows[i].spread for i in reached], fmt="o", capsize=3
        )
        missing = [i for i in range(len(rows)) if i not in reached]
        axes.scatter([1.0] * len(missing), missing, marker="x", c="0.4", s=22, transform=axes.get_yaxis_transform())
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_title(place, fontsize=9)
    panels[0].set(yticks=range(len(found.arms)), yticklabels=found.arms, ylim=(len(found.arms) - 0.5, -0.5))
    figure.supxlabel(xlabel, fontsize=9)
    return figure


def dots(found: Found, xlabel: str) -> Any:
    """Plot a panel for each place, a row for each arm; an arm that missed the target is a cross at the right edge."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 + 1.75 * len(found.places), 0.9 + 0.26 * len(found.arms)), layout="constrained")
    panels = figure.subplots(1, len(found.places), sharex=True, sharey=True, squeeze=False)[0]
    for axes, place in zip(panels, found.places, strict=True):
        rows = [found[arm, place] for arm in found.arms]
        reached = [i for i, row in enumerate(rows) if math.isfinite(row.mean)]
        means = [rows[i].mean for i in reached]
        best = min(means)
        bare(axes)
        axes.errorbar(means, reached, xerr=[rows[i].spread for i in reached], fmt="none", ecolor="0.6", lw=1)
        colours = [PALETTE[4] if mean == best else PALETTE[3] for mean in means]
        axes.scatter(means, reached, c=colours, s=22, zorder=3)
        missing = [i for i in range(len(rows)) if i not in reached]
        axes.scatter([1.0] * len(missing), missing, marker="x", c="0.4", s=22, transform=axes.get_yaxis_transform())
        axes.set_xscale("log")
        decades(axes.xaxis)
        axes.set_title(place, fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
    panels[0].set_yticks(range(len(found.arms)), found.arms, fontsize=8)
    panels[0].invert_yaxis()
    figure.supxlabel(xlabel, fontsize=9)
    return figure


def on_logarithms(found: Found, xlabel: str, ylabel: str) -> Any:
    """Plot a line for each arm against places by their names, scores by their logarithms."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.subplots()
    bare(axes)
    for i, (arm, line) in enumerate(zip(found.arms, _lines(found.arms), strict=True)):
        rows = [found.get(arm, place) for place in found.places]
        means = [math.nan if row is None or math.isinf(row.mean) else row.mean for row in rows]
        axes.plot(range(len(means)), means, marker=MARKS[i % len(MARKS)], ms=5, label=arm, **line)
    axes.set_yscale("log")
    axes.set_xticks(range(len(found.places)), found.places)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
