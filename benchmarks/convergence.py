"""What every algorithm needs to come to a loss, in virtual time: `bash run.sh benchmark`.

The benchmark is a list of *studies*: an algorithm, with so many workers and such a period. A study is a few runs with
all settings of a grid, whose seeds are used for nothing else, and then runs of the best with seeds of their own. Each
of these, an *experiment*, is kept in a file that is named by a hash of all that it depends on, the sources included. So
an interrupted benchmark resumes where it stopped, and a changed algorithm is measured anew.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..algorithms import SCHEMES
from ..common.arguments import at_least, check_known, with_tuples
from ..common.cli import flags
from ..common.errors import DistsgdError
from ..common.system import usable_cores
from .experiments import Experiment
from .grids import beyond, candidates
from .outcome_files import CACHE, RESULTS, Output, merged, write

FILE = "convergence.json"

TARGET = 0.7  # a test loss that serial SGD has after some 1200 steps; it begins at 2.2, and gets to 0.5
WORKERS, PERIOD = 4, 10  # of the main comparison, and the period of all algorithms that have one
GRADIENTS, QUICK_GRADIENTS = 4096, 2048  # number of gradients of all workers together, each of 16 examples
TUNING_SEED = 1000  # first seed of the runs that choose settings; results never use these seeds
BEYOND = 4  # most steps that a search may leave its grid

PERIODS = 10, 30, 100
BY_PERIOD = "downpour", "agn", "aeasgd", "local_sgd", "slowmo", "bmuf", "diloco"
MANY_WORKERS = 1, 4, 16, 64, 256, 1024
BY_WORKERS = "async_sgd", "ringmaster", "agn", "dynsgd", "sync_sgd", "local_sgd", "slowmo"
# Most workers of algorithms whose gradients are computed one by one: more take minutes.
FEWER: dict[str, int] = dict.fromkeys(("async_sgd", "ringmaster"), 64)
STEPS = 128  # least local steps of each worker in a study of many workers
EASY_TARGET = 0.9  # a test loss that so few steps can reach


@dataclass(frozen=True)
class Options:
    """What every algorithm needs to come to a loss, in virtual time."""

    names: tuple[str, ...] = ()
    """Names of algorithms; all if not given."""
    parts: tuple[str, ...] = ()
    """Parts to measure: main, workers, period; all if not given."""
    seeds: int = 3
    """Number of runs of each setting that is shown; as many others choose the learning rates."""
    quick: bool = False
    """Measure the main comparison alone, with the settings that an earlier run chose, one seed and half the data."""
    fresh: bool = False
    """Measure everything anew."""
    processes: int = 0
    """Number of runs at the same time; the default is one for each core."""

    def __post_init__(self):
        at_least(1, seeds=self.seeds)
        at_least(0, processes=self.processes)
        check_known("algorithm", *self.names, known=SCHEMES)
        check_known("part", *self.parts, known=PARTS)


@dataclass(frozen=True)
class Study:
    """An algorithm at one place of the benchmark; its settings are chosen for that place."""

    part: str
    algorithm: str
    workers: int = WORKERS
    period: int = PERIOD
    gradients: int = GRADIENTS
    target: float = TARGET
    tuning_seeds: int = 3
    seeds: int = 3

    def tuning(self, settings: Sequence[Mapping[str, Any]]) -> list[Experiment]:
        """Return the runs for tuning, with some settings."""
        tried = tuple(dict(setting) for setting in settings)
        return [self._experiment("tuning", tried, TUNING_SEED + i) for i in range(self.tuning_seeds)]

    def showing(self, settings: Mapping[str, Any]) -> list[Experiment]:
        """Return the runs that are shown, with the chosen settings."""
        part = "sweep" if self.part == "workers" else "main"
        return [self._experiment(part, (dict(settings),), seed) for seed in range(self.seeds)]

    def _experiment(self, part: str, settings: tuple[dict[str, Any], ...], seed: int) -> Experiment:
        return Experiment(part, self.algorithm, settings, self.workers, seed, self.gradients, self.target)


def alone(algorithm: str) -> bool:
    """Return True if the algorithm has one worker only."""
    return not SCHEMES[algorithm]().sync.exchanges


def main_studies(options: Options) -> Iterator[Study]:
    """Yield a study of every algorithm."""
    gradients, seeds = (QUICK_GRADIENTS, 1) if options.quick else (GRADIENTS, options.seeds)
    for name in SCHEMES:
        yield Study("main", name, 1 if alone(name) else WORKERS, PERIOD, gradients, TARGET, seeds, seeds)


def worker_studies(options: Options) -> Iterator[Study]:
    """Yield studies with more and more workers."""
    seeds = min(options.seeds, 2)
    for workers in MANY_WORKERS:
        gradients = max(GRADIENTS, STEPS * workers)
        for name in (name for name in BY_WORKERS if workers <= FEWER.get(name, workers)):
            yield Study("workers", name, workers, PERIOD, gradients, EASY_TARGET, 1, seeds)


def period_studies(options: Options) -> Iterator[Study]:
    """Yield studies that communicate less and less often."""
    for period in PERIODS:
        for name in BY_PERIOD:
            yield Study("period", name, WORKERS, period, GRADIENTS, TARGET, options.seeds, options.seeds)


PARTS = {"main": main_studies, "workers": worker_studies, "period": period_studies}


def plan(options: Options) -> list[Study]:
    """Return the studies of the benchmark."""
    parts = ("main",) if options.quick else options.parts or tuple(PARTS)
    return [study for part in parts for study in PARTS[part](options) if study.algorithm in (options.names or SCHEMES)]


def chosen(outcomes: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Choose the settings that reach the target first, in the geometric mean over seeds.

    Those that do not with every seed come after those that do, by how often they do and then by their loss at the end.

    Args:
        outcomes: of each seed, of each of the settings.
    """

    def score(tried: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
        times = [outcome["reached"]["seconds"] for outcome in tried if outcome["reached"]]
        finals = [math.inf if outcome["final"] is None else outcome["final"] for outcome in tried]
        return len(tried) - len(times), sum(map(math.log, times)) if len(times) == len(tried) else sum(finals)

    return min(zip(*outcomes, strict=True), key=score)[0]["settings"]


def tried(study: Study, cache: Path) -> list[list[dict[str, Any]]]:
    """Return outcomes of a study's grid, and beyond it until the best is at no edge: of each seed, of each setting."""
    found = [experiment.outcomes(cache) for experiment in study.tuning(candidates(study.algorithm, study.period))]
    for _ in range(BEYOND):
        more = beyond(chosen(found), [outcome["settings"] for outcome in found[0]])
        if not more:
            break
        found = [
            a + b for a, b in zip(found, (experiment.outcomes(cache) for experiment in study.tuning(more)), strict=True)
        ]
    return found


def carry_out(study: Study, cache: Path, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Carry out a study from its experiments.

    Args:
        study: which.
        cache: folder of what was measured before.
        settings: that were chosen before; without them they are chosen.
    """
    search = [] if settings else tried(study, cache)
    settings = settings or chosen(search)
    runs = [experiment.outcomes(cache)[0] for experiment in study.showing(settings)]
    return {**asdict(study), "settings": dict(settings), "tried": search, "runs": runs}


def chosen_before() -> dict[str, dict[str, Any]]:
    """Return the settings of the main comparison in the committed results, by algorithm."""
    found = json.loads((RESULTS / FILE).read_text()) if (RESULTS / FILE).exists() else []
    return {row["algorithm"]: with_tuples(row["settings"]) for row in found if row["part"] == "main"}


def complete(options: Options, cache: Path, console: Console) -> tuple[list[dict[str, Any]], int]:
    """Return outcomes of all studies, and how many failed."""
    cache.mkdir(parents=True, exist_ok=True)
    studies, before = plan(options), chosen_before() if options.quick else {}
    found: dict[Study, dict[str, Any]] = {}
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    pool = ProcessPoolExecutor(
        min(len(studies), options.processes or usable_cores()), get_context("spawn"), initializer=_alone
    )
    with pool, Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(studies))
        futures = {pool.submit(carry_out, study, cache, before.get(study.algorithm)): study for study in studies}
        try:
            for future in as_completed(futures):
                study = futures[future]
                try:
                    found[study] = future.result()
                except DistsgdError as error:  # the others are still worth measuring
                    failed += 1
                    progress.console.print(f"failed: {study.part} of {study.algorithm}: {error}", markup=False)
                progress.update(task, advance=1, description=f"{study.part}: {study.algorithm}, W={study.workers}")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [found[study] for study in studies if study in found], failed


def _alone() -> None:
    """Silence a process of the pool, and leave Ctrl-C to its parent."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(arguments: list[str], cache: Path = CACHE) -> int:
    """Measure, plot and save; returns the exit code."""
    from .plots import draw
    from .tables import update_page

    about = "Measure the virtual time that each algorithm needs to reach a target loss: plots and tables."
    kinds = {"options": Options, "results": Output}
    options, place = flags.read("run.sh benchmark", about, arguments, kinds, positional="names")
    console = Console(highlight=False)
    if options.fresh:
        shutil.rmtree(cache, ignore_errors=True)
    try:
        outcomes, failed = complete(options, cache, console)
    except KeyboardInterrupt as interrupt:
        console.print("interrupted; the same command resumes from here")
        return getattr(interrupt, "exit_code", 130)
    outcomes = merged(outcomes, place.output / FILE)
    write(place.output / FILE, outcomes)
    for path in draw(outcomes, place.output):
        console.print(f"written to {path}", soft_wrap=True)
    if place.is_shown:
        update_page()
    return 1 if failed else 0
