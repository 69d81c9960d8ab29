"""`bash run.sh leaderboard [NAME ...]`: time and bytes to a target loss, with the same budget of trials for all.

Six workloads, two tasks on three described platforms, in virtual time. The rules are those of AlgoPerf's external
tuning (Dahl et al. 2023, arXiv:2306.07179), with fewer trials: see docs/leaderboard.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cloudpickle
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ..algorithms import SCHEMES, Scheme
from ..common.arguments import check_known
from ..common.cli import flags
from ..common.cli.imports import import_tensorflow
from ..common.cluster.fingerprint import class_digest
from ..common.cluster.platform import Platform
from ..common.errors import DistsgdError, UserError
from ..common.lazy import tf
from ..common.record.sheet import TableFormat
from ..common.system import usable_cores
from . import tables
from .grids import settings_of_trials
from .leaderboard_page import Entry, cells, keep, kept, renewed, sheet
from .outcome_files import Output
from .virtual import Reached, Task, simulated

PAGE = tables.PAGE.with_name("leaderboard.md")
WORKERS = 8
GRADIENTS = 6144  # of all workers together: a run that has not reached the target ends there
TRIALS = 8  # settings that are tried for each algorithm on each workload
TUNING_SEED, SEEDS = 1000, (0, 1, 2)  # results never have the seed of the trials


@dataclass(frozen=True)
class Place:
    """A platform, the communication period of algorithms that have one, and unequal labels of the workers if any."""

    name: str
    platform: Platform
    period: int
    skew: str | None = None


@dataclass(frozen=True)
class Goal:
    """A task and the test loss to reach."""

    name: str
    task: Task
    target: float


MACHINES = partial(Platform, step_ms=100, compute="lognormal:sigma=0.3", collective="ring")

# A message takes as long as one of a model of 25 million parameters on the preset networks one-rack and cloud-regions
# (bandwidths are divided by 6000), or one of a million parameters on federated (by 250). In the rack there are four ps
# tasks, and one machine in eight is slow.
RACK = MACHINES(network="one-rack", step_factors="1*7,2.5", uplink="4Mbit", downlink="4Mbit", ps_link="16Mbit")
REGIONS = MACHINES(
    network="cloud-regions",
    uplink="1.7Mbit",
    downlink="1.7Mbit",
    ps_link="4Mbit",
    regions="0ms/16Mbit,30ms/90kbit,70ms/156kbit,110ms/34kbit",
)
FEDERATED = MACHINES(network="federated", uplink="40kbit", downlink="200kbit", ps_link="40Mbit")

PLACES = (
    Place("rack", RACK, period=10),
    Place("regions", REGIONS, period=20),
    Place("federated", FEDERATED, period=10, skew="dirichlet:alpha=1"),
)

GOALS = (
    Goal("digits", Task("digits", "mlp:hidden=64"), 0.15),
    Goal("clusters", replace(Task(), model="mlp:hidden=128"), 0.9),
)

ALGORITHMS = (
    "sync_sgd", "all_reduce", "ef_sgd", "local_sgd", "diloco", "scaffold", "async_sgd", "ssp", "ringmaster", "agn",
    "async_diloco", "fedbuff",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which algorithms."""

    names: tuple[str, ...] = ()
    """Algorithms to measure: by default those of the table, or with --import those of the file."""
    table: TableFormat | None = None
    """Print the table as CSV, Markdown or LaTeX (booktabs): scores, and means and standard deviations over the seeds of
    the seconds to the target. Without names, of the results on file: nothing is measured."""

    def __post_init__(self):
        check_known("algorithm", *self.names, known=SCHEMES)


@dataclass(frozen=True)
class Study:
    """An algorithm on a workload: trials on a seed of their own, then runs of the best."""

    kind: type[Scheme]
    place: Place
    goal: Goal
    trials: int = TRIALS
    seeds: Sequence[int] = SEEDS

    def entry(self) -> Entry:
        """Return the settings that reached the target first, and what each seed took with them."""
        settings = settings_of_trials(self.kind, self.place.period, self.trials)
        best, _ = min(
            zip(settings, self._run(settings, TUNING_SEED), strict=True), key=lambda trial: self._rank(trial[1])
        )
        found = [self._run([best], seed)[0][0] for seed in self.seeds]
        return Entry(
            self.kind.name,
            self.place.name,
            self.goal.name,
            dict(best),
            [reached and round(reached.seconds, 3) for reached in found],
            [reached and round(reached.bytes / 1e6, 3) for reached in found],
        )

    def _run(self, settings: Sequence[Mapping[str, Any]], seed: int) -> list[tuple[Reached | None, float]]:
        """Return what it took to reach the target, if it was reached, and the last loss, for each of the settings."""
        place, goal = self.place, self.goal
        curves = simulated(
            self.kind,
            settings,
            workers=WORKERS,
            seed=seed,
            gradients=GRADIENTS,
            platform=place.platform,
            task=replace(goal.task, skew=place.skew),
            until=goal.target,
        )
        return [(curve.to(goal.target), curve.final) for curve in curves]

    def _rank(self, outcome: tuple[Reached | None, float]) -> tuple[float, float]:
        reached, final = outcome
        return (reached.seconds if reached else math.inf), final


def measured(studies: Sequence[Study], console: Console) -> Iterator[Entry]:
    """Yield the entries of all studies, measured in processes of their own; studies that fail are reported."""
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        futures = {pool.submit(_execute, cloudpickle.dumps(study)): study for study in studies}
        try:
            for future in track(as_completed(futures), "workloads", len(futures), console=console, transient=True):
                try:
                    yield future.result()
                except DistsgdError as error:
                    where = f"{futures[future].kind.name}, {futures[future].place.name}, {futures[future].goal.name}"
                    console.print(f"failed: {where}: {error}", markup=False, soft_wrap=True)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _execute(study: bytes) -> Entry:
    import_tensorflow()
    tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced again, for each run
    loaded: Study = cloudpickle.loads(study)
    try:
        return loaded.entry()
    except Exception as error:
        if isinstance(error, DistsgdError) or not class_digest(loaded.kind):
            raise
        raise UserError(f"{type(error).__name__}: {error}") from None  # in the rule of an imported file


def main(arguments: list[str], results: Path = tables.RESULTS) -> int:
    """Measure, save the rows of the catalogue, and print the table with one's own rows; return the exit code."""
    about = "Measure virtual time and bytes to a target loss on three platforms, with eight trials for each algorithm."
    kinds = {"options": Options, "results": Output}
    options, place = flags.read("run.sh leaderboard", about, arguments, kinds, positional="names")
    if options.table and not options.names:
        print(sheet(kept(results)).in_format(options.table))
        return 0
    console = Console(highlight=False, stderr=options.table is not None)
    imported = [name for name, kind in SCHEMES.items() if class_digest(kind)]
    names = options.names or imported or ALGORITHMS
    studies = [Study(SCHEMES[name], *workload) for name in names for workload in itertools.product(PLACES, GOALS)]
    found = []
    for entry in measured(studies, console):
        found.append(entry)
        if entry.algorithm not in imported:
            keep([entry], place.output)
    if place.is_shown:
        tables.update_page(PAGE)
    entries = renewed(kept(results), found)
    if options.table:
        print(sheet(entries).in_format(options.table))
    else:
        console.print(_table(cells(entries), names))
    return 0 if len(found) == len(studies) else 1


def _table(rows: Sequence[Sequence[str]], names: Sequence[str]) -> Table:
    """Return the table for a terminal of 80 columns; the rows of these names are bold."""
    titles, *others = (
        [cell.replace(" ", "\n", 1) if ":" in cell else cell.replace(", ", "\n") for cell in row] for row in rows
    )
    table = Table(*titles, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for row in others:
        table.add_row(*row, style="bold" if row[0] in names else None)
    return table
