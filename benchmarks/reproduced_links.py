"""Experiments of papers on links: how fast they must be for workers to compute most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..common.record.plot import bare, figure_class
from ..simulator.cli.bandwidth import GIGABIT, GRID
from ..simulator.virtual_time.layers import Exchange, LayeredStep, utilisation
from .reproduced_experiment import Experiment, Numbers

UTILISATIONS = 0.5, 0.8, 0.9, 0.95, 0.99

PERIOD = 100

# Layers, and for each method the Gbit/s that the paper prints, by size of the model.
TABLE: dict[str, tuple[int, dict[str, tuple[float, ...]]]] = {
    "1B": (24, {
        "data-parallel": (86.8, 152.6, 184.2, 222.3, 569.0),
        "DiLoCo": (1.4, 6.2, 13.3, 23.3, 86.8),
        "streaming": (1.4, 5.2, 9.1, 16.0, 28.1),
        "with overlap": (1.4, 4.3, 6.2, 9.1, 11.0),
        "with FP4": (0.4, 0.9, 1.7, 2.0, 3.0),
    }),
    "10B": (48, {
        "data-parallel": (104.8, 222.3, 222.3, 268.3, 471.5),
        "DiLoCo": (1.7, 7.5, 16.0, 33.9, 104.8),
        "streaming": (1.7, 5.2, 9.1, 13.3, 19.3),
        "with overlap": (1.7, 3.6, 5.2, 6.2, 7.5),
        "with FP4": (0.4, 0.9, 1.4, 1.4, 1.7),
    }),
    "100B": (108, {
        "data-parallel": (184.2, 323.8, 390.7, 390.7, 471.5),
        "DiLoCo": (3.0, 11.0, 23.3, 49.4, 184.2),
        "streaming": (2.4, 6.2, 9.1, 11.0, 19.3),
        "with overlap": (1.7, 3.6, 4.3, 5.2, 5.2),
        "with FP4": (0.5, 0.9, 1.1, 1.1, 1.4),
    }),
}  # fmt: skip

FITTED = {"1B": 0.118, "10B": 0.95, "100B": 6.07}
"""Seconds of a step with which most numbers are those of the table, one for each model."""


def step_of(size: str) -> LayeredStep:
    """Return the step of a model of the table."""
    return LayeredStep(layers=TABLE[size][0], seconds=FITTED[size], parameters=float(size[:-1]) * GIGABIT)


def exchange(method: str, layers: int) -> Exchange:
    """Return what workers send: 16 bits a parameter, and 4 with FP4; fragments have three layers."""
    whole = Exchange(bits_up=16, bits_down=16)
    streaming = replace(whole, period=PERIOD, fragments=layers // 3)
    return {
        "data-parallel": whole,
        "DiLoCo": replace(whole, period=PERIOD),
        "streaming": streaming,
        "with overlap": replace(streaming, delay=1),
        "with FP4": replace(streaming, delay=1, bits_up=4, bits_down=4),
    }[method]


def point(printed: float) -> int:
    """Return the point of the grid that the paper has printed with one decimal."""
    return int(np.abs(GRID - printed).argmin())


@cache
def curve(step: LayeredStep, sent: Exchange) -> list[float]:
    """Return the utilisation at each point of the grid."""
    return [utilisation(step, sent, rate) for rate in GIGABIT * GRID]


def first_points(step: LayeredStep, sent: Exchange) -> Iterator[int]:
    """Yield the first point of the grid that reaches each utilisation."""
    reached = curve(step, sent)
    for wanted in UTILISATIONS:
        yield next((i for i, found in enumerate(reached) if found >= wanted), len(GRID))


def _table() -> Numbers:
    """Return the points of the grid for each model and method, how many are those of the paper, and the others."""
    found: dict[str, list[int]] = {}
    misses, hits, distance = [], 0, 0
    for size, (layers, rows) in TABLE.items():
        step = step_of(size)
        for method, printed in rows.items():
            points = found[f"{size} {method}"] = list(first_points(step, exchange(method, layers)))
            for wanted, ours, paper in zip(UTILISATIONS, points, printed, strict=True):
                apart = abs(ours - point(paper))
                hits, distance = hits + (apart == 0), max(distance, apart)
                if apart:
                    misses.append(f"{size} {method} at {wanted:.0%} {GRID[ours]:.1f}, not {paper}")
    return {"points": found, "hits": hits, "apart": distance, "misses": "; ".join(misses)}


def _draw(numbers: Numbers) -> Any:
    """Draw the utilisation over bandwidth, with the paper's numbers, filled where they are ours."""
    figure = figure_class()(figsize=(12, 4.4), layout="constrained")
    for axes, size in zip(figure.subplots(1, 3, sharey=True), TABLE, strict=True):
        layers, rows = TABLE[size]
        step = step_of(size)
        for i, (method, printed) in enumerate(rows.items()):
            line = np.multiply(100, curve(step, exchange(method, layers)))
            axes.plot(GRID, line, color=f"C{i}", lw=1.2, label=method)
            for wanted, ours, paper in zip(UTILISATIONS, numbers["points"][f"{size} {method}"], printed, strict=True):
                filled = f"C{i}" if ours == point(paper) else "none"
                axes.plot(GRID[point(paper)], 100 * wanted, "o", mec=f"C{i}", mfc=filled, ms=6)
        axes.set(xscale="log", xlabel="Gbit/s", title=f"{size}, {layers} layers, {FITTED[size]} s a step")
        axes.xaxis.set_major_formatter("{x:g}")
        bare(axes)
        if size == "1B":
            axes.set_ylabel("time computing (%)")
            axes.legend(loc="lower right", fontsize=8)
    return figure


EXPERIMENTS = [
    Experiment(
        "utilisation",
        "`all_reduce`, `diloco`, Streaming DiLoCo",
        "Douillard et al. 2025 (arXiv:2501.18512), Table 4: Gbit/s for a utilisation of 50, 80, 90, 95 and 99 %; each "
        "number is the first of 50 bandwidths that reaches it. The seconds of a step are fitted, one number for each "
        "model (0.118, 0.95 and 6.07; the paper prints 0.1, 0.8 and 4.9)",
        "75 numbers for models of 1, 10 and 100 billion parameters and five methods",
        _table,
        "{hits} of 75 are the same of the 50 bandwidths, the others are off by {apart}",
        lambda found: found["hits"] >= 69 and found["apart"] <= 1,
        _draw,
    ),
]
