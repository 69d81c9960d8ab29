"""Experiments of papers on failures: the share of its time that a machine of a million chips computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..algorithms.decoupled_diloco import DecoupledDiLoCo
from ..common.cluster.platform import Platform
from ..common.record.plot import bare, figure_class
from ..simulator.virtual_time.schedule import EventLoop
from .reproduced_experiment import Experiment, Numbers

YEAR = 365.25 * 24 * 3600
"""Mean time in seconds between two failures of a chip."""

CHIPS = 150, 300, 600, 1200, 2400  # thousands

# Percent of the time spent computing that the paper prints, for each number of chips.
TABLE: dict[str, tuple[int, ...]] = {
    "data-parallel": (72, 57, 38, 27, 18),
    "elastic": (88, 80, 69, 58, 40),
    "M = 2": (94, 88, 80, 70, 54),
    "M = 4": (96, 93, 89, 82, 73),
    "M = 8": (98, 96, 94, 88, 80),
    "M = 16": (99, 98, 96, 93, 86),
}

FAILURES = 10_000

WORKERS, PERIOD, DOWN, ROUNDS = 8, 24, 26, 1000  # of the runs with a quorum; steps and times in seconds


@dataclass(frozen=True)
class Stops:
    """The times for which a learner stands still, in seconds.

    Attributes:
        shrink: after a failure, until it continues without the slice of chips that failed.
        repair: until such a slice is whole.
        grow: once all its slices are whole, until it continues with all of them; 0 if that is a part of `shrink`.
    """

    shrink: float
    repair: float = 0.0
    grow: float = 0.0


ELASTIC = Stops(shrink=20, repair=120, grow=15)
"""Times with which most numbers of learners are those of the table; the paper's own are not known here."""

WHOLE = Stops(shrink=80)
"""The time that a job without elasticity stands still after a failure, fitted to the first row."""


@cache
def goodput(chips: float, stops: Stops) -> float:
    """Return the share of its time that a learner of so many chips computes.

    A failure while it stands still is a part of that stop; its slice needs the time of repair all the same.
    """
    failures = np.random.default_rng(0).exponential(YEAR / chips, FAILURES).cumsum()
    stopped, ends, whole = 0.0, 0.0, np.inf  # the end of the last stop, and the time when all slices are whole
    for now in failures:
        grows = max(whole, ends)
        if grows <= now:
            stopped, ends, whole = stopped + stops.grow, grows + stops.grow, np.inf
        if ends <= now:
            stopped, ends = stopped + stops.shrink, now + stops.shrink
        if stops.grow:
            whole = now + stops.repair
    return float(1 - stopped / failures[-1])


def learners(row: str) -> tuple[int, Stops]:
    """Return the number of learners that share the chips in a row of the table, and their stops."""
    return (1, WHOLE) if row == "data-parallel" else (1 if row == "elastic" else int(row[4:]), ELASTIC)


def with_quorum(quorum: int) -> float:
    """Return the share of their time in which workers make steps that count, if such a number makes an update.

    A worker fails as often as one of eight with 1.2 million chips in all, loses its round, and is down for a while.
    """
    every = YEAR / (CHIPS[3] * 1000 / WORKERS)
    machines = Platform(step_ms=1000, failures=f"crashes:every={every:.0f}s,down={DOWN}s")
    scheme = DecoupledDiLoCo(communication_period=PERIOD, quorum=quorum)
    sizes: dict[str, Any] = {"message_bytes": 0, "reply_bytes": 0}
    rounds = scheme.rounds(PERIOD * ROUNDS)
    trace = EventLoop(scheme, machines, workers=WORKERS, rounds=rounds, seed=0, **sizes).run().trace
    counted = trace["microseconds"][trace["accepted"] == 1]
    end = counted[-len(counted) // 10]  # while all workers are in the run
    return float((counted <= end).sum() * PERIOD / (WORKERS * end / 1e6))


def _table() -> Numbers:
    """Return our percentages for each row, how many are the paper's, and the others; and the shares with a quorum."""
    found: dict[str, list[float]] = {}
    misses, apart = [], []
    for row, printed in TABLE.items():
        number, stops = learners(row)
        found[row] = [100 * goodput(1000 * chips / number, stops) for chips in CHIPS]
        for chips, ours, paper in zip(CHIPS, found[row], printed, strict=True):
            apart.append(abs(round(ours) - paper))
            if apart[-1]:
                misses.append(f"{row} at {chips / 1000:g} million {ours:.0f}, not {paper}")
    hits, near = apart.count(0), sum(each <= 1 for each in apart)
    shares = {"one": 100 * with_quorum(1), "all": 100 * with_quorum(WORKERS)}
    return {"rows": found, "hits": hits, "near": near, "apart": max(apart), "misses": "; ".join(misses), **shares}


def _draw(numbers: Numbers) -> Any:
    """Draw the share of time over the number of chips, with the paper's numbers, filled where they are ours."""
    figure = figure_class()(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for i, (row, printed) in enumerate(TABLE.items()):
        axes.plot(CHIPS, numbers["rows"][row], color=f"C{i}", lw=1.2, label=row)
        for chips, ours, paper in zip(CHIPS, numbers["rows"][row], printed, strict=True):
            axes.plot(chips, paper, "o", mec=f"C{i}", mfc=f"C{i}" if round(ours) == paper else "none", ms=6)
    axes.set(xscale="log", xlabel="thousand chips", ylabel="time computing (%)", xticks=CHIPS, ylim=(0, 102))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.legend(loc="lower left", fontsize=8)
    bare(axes)
    return figure


EXPERIMENTS = [
    Experiment(
        "goodput",
        "`decoupled_diloco`",
        "Douillard et al. 2026 (arXiv:2604.21428), Table 1, as summaries of the paper print it: percent of the time "
        "spent computing; each of 150,000 to 2.4 million chips fails once a year. Four times are fitted: an elastic "
        "learner stands still for 20 s after a failure, and for 15 s when all is repaired, 2 min later; without "
        "elasticity all stand still for 80 s",
        "30 numbers: data-parallel without and with elasticity, and M = 2, 4, 8, 16 learners, for five numbers of "
        "chips",
        _table,
        "{hits} of 30 are the same, {near} within 1, the others off by at most {apart}. With a quorum of "
        "one of 8 workers that fail every 210 s, are down for 26 s and lose a round of 24 s, {one:.0f} % of the time "
        "counts; if all 8 wait for each other, {all:.0f} %",
        lambda found: found["hits"] >= 18 and found["apart"] <= 4 and found["one"] > found["all"] + 20,
        _draw,
    ),
]
