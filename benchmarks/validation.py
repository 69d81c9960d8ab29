"""`bash run.sh validate-simulation`: real runs, and what a simulation says of each, fitted to another run.

Batches take workers a known random time, every second worker half as much again; all else is real: processes, messages,
synchronization rules, arithmetic. A run with two workers and a period of one (or with four, where two are to be
predicted) gives the machines of all others. Each run is kept in a folder, so that an interrupted validation resumes
where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..algorithms import AGN, AsyncSGD, LocalSGD, Scheme, SyncSGD
from ..common.arguments import positive
from ..common.cli import flags
from ..common.cli.imports import import_tensorflow
from ..common.cluster.cluster import Cluster
from ..common.cluster.platform import Platform
from ..common.contract.rounds import ENDLESS
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.data.recipes import Dataset
from ..common.launch.client import keep_warm
from ..common.messages.cut import even_sizes
from ..common.record.round_log import load_rounds
from ..common.record_format import read_arrays
from ..common.server.traffic import Traffic
from ..common.system import usable_cores
from ..common.tasks.job import make_job
from ..common.tasks.options import RunOptions
from ..simulator.fitting.fit import fit
from ..simulator.virtual_time.forecast import figures
from ..simulator.virtual_time.schedule import EventSchedule
from .complete import completed
from .crossing import crossing
from .outcome_files import CACHE, Output, sources, write
from .stragglers import slow_batches
from .tables import SIMULATION, update_page

FOLDER = CACHE / "validation"

DATASET, MODEL, BATCH = "digits", "mlp", 32
SLOWER = 1.5  # factor by which every second worker is slower
FIXED = 0.5  # part of a batch's time that is always the same; the rest is exponential
LEVEL = 0.6  # part of a run's time; the loss at that time is predicted
PERIOD = 10
IDLE = 0.25  # load for each core, above which a machine is busy
PATIENCE = 3  # limit of the steps of the fastest worker, in steps of the mean worker


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    seconds: float = 9.0
    """Seconds of training in a run, about."""
    milliseconds: float = 40.0
    """Mean milliseconds of a batch."""
    quick: bool = False
    """Measure two and four workers alone, in short runs."""
    fresh: bool = False
    """Measure everything anew."""

    def __post_init__(self):
        positive(seconds=self.seconds, milliseconds=self.milliseconds)


@dataclass(frozen=True)
class ValidationRun:
    """One run."""

    scheme: Scheme
    workers: int

    @property
    def name(self) -> str:
        """Return the name in the table."""
        backups = f" -b {self.scheme.backup_workers}" if isinstance(self.scheme, SyncSGD) else ""
        period = f" H={self.scheme.period}" if self.scheme.period > 1 else ""
        return f"{self.scheme.name}{backups.replace(' -b 0', '')}{period} W={self.workers}"

    def options(self, asked: Options, folder: Path | None) -> RunOptions:
        """Return the length of the run: asynchronous workers stop after so many updates of all together."""
        steps = max(1, round(1e3 * asked.seconds / asked.milliseconds / self.scheme.period))  # of a fast worker, alone
        seed = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:2], "big")
        options: dict[str, Any] = {"batch_size": BATCH, "seed": seed, "run_dir": folder}
        if self.scheme.sync.waits:
            return RunOptions(steps=max(20, round(steps / SLOWER / 1.3)) * self.scheme.period, **options)
        updates = round(steps * self.workers * (1 + 1 / SLOWER) / 2)
        return RunOptions(steps=PATIENCE * steps * self.scheme.period, stop_at_version=updates, **options)


def plan(quick: bool) -> list[tuple[ValidationRun, ValidationRun]]:
    """Return the runs, each with the one that it is predicted from."""
    two, four = ValidationRun(AsyncSGD(), 2), ValidationRun(AsyncSGD(), 4)
    found = []
    for workers in (2, 4) if quick else (2, 4, 8):
        schemes = [AsyncSGD(), SyncSGD(), AGN(communication_period=PERIOD), LocalSGD(communication_period=PERIOD)]
        schemes.insert(2, SyncSGD(backup_workers=max(1, workers // 4)))
        found += [(ValidationRun(scheme, workers), four if workers == 2 else two) for scheme in schemes]
    back = (four, ValidationRun(AGN(communication_period=PERIOD), 4))  # the other way: from rounds of ten steps
    return found if quick else [*found, back]


def main(arguments: list[str]) -> int:
    """Measure, predict, show and save; returns the exit code."""
    about = "Compare real runs on processes with a simulation that was fitted to another run."
    kinds = {"options": Options, "results": Output}
    options, place = flags.read("run.sh validate-simulation", about, arguments, kinds)
    import_tensorflow()
    console = Console(highlight=False)
    if options.quick:
        options = replace(options, seconds=options.seconds / 3)
    if options.fresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
    cores, load_before = usable_cores(), os.getloadavg()[0]
    if load_before > IDLE * cores:
        console.print(
            f"warning: the machine is busy (load {load_before:.1f}): what others do is not predicted", style="yellow"
        )
    data, runs = load(DATASET), plan(options.quick)
    folders: dict[str, Path] = {}
    with keep_warm():
        for planned, _ in runs:
            if planned.name not in folders:
                with console.status(f"{planned.name} ..."):
                    folders[planned.name] = measured(planned, data, options)
    rows = []
    for planned, other in runs:
        rows.append(compared(planned, data, options, folders[planned.name], other, folders[other.name]))
        console.print(line(rows[-1]), soft_wrap=True)
    facts = {"cores": cores, "load_before": round(load_before, 2), "tensorflow": version("tensorflow")}
    write(place.output / "validation.json", facts | {"options": asdict(options), "rows": rows})
    if place.is_shown:
        update_page(SIMULATION)
    console.print(f"written to {place.output / 'validation.json'}", soft_wrap=True)
    return 0


def measured(planned: ValidationRun, data: Dataset, options: Options) -> Path:
    """Return the folder of a real run: measured now, or before."""
    identity = [
        sources(planned.scheme.name),
        planned.name,
        options.seconds,
        options.milliseconds,
        SLOWER,
        FIXED,
        BATCH,
        MODEL,
    ]
    folder = (
        FOLDER / f"{planned.name.replace(' ', '_')}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]}"
    )
    result = folder / "result.json"
    if result.is_file() and json.loads(result.read_text())["outcome"] == "completed":
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    setup = planned.options(options, folder)
    train = slow_batches(data.train, batch_seconds(options.milliseconds), setup.seed, BATCH)
    job = make_job(planned.scheme, recipe(data, setup.seed), train, data.test, Cluster.local(planned.workers), setup)
    job.evaluate_later = True  # evaluation would take time from the workers
    completed(job, DATASET, MODEL)
    return folder


def batch_seconds(milliseconds: float) -> Any:
    """Return a function of generator and worker that draws a batch's time: shifted exponential, mean for worker 0."""

    def draw(rng: np.random.Generator, worker: int) -> float:
        return milliseconds / 1e3 * (SLOWER if worker % 2 else 1) * (FIXED + (1 - FIXED) * rng.exponential())

    return draw


def recipe(data: Dataset, seed: int) -> ModelRecipe:
    """Return the model."""
    return ModelRecipe.named(MODEL, data.train[0].shape[1:], data.classes, seed)


def compared(
    planned: ValidationRun, data: Dataset, options: Options, real: Path, other: ValidationRun, recorded: Path
) -> dict[str, Any]:
    """Compare a real run with its prediction, from machines that are fitted to another run."""
    network = fit(recorded, {other.scheme.name: type(other.scheme)}).write(recorded)
    folder = real.with_name(f"{real.name}-predicted")
    shutil.rmtree(folder, ignore_errors=True)
    setup = planned.options(options, folder)
    cluster = Cluster.local(planned.workers, backend="simulation", platform=Platform(network=str(network)))
    model = recipe(data, setup.seed)
    job = make_job(planned.scheme, model, data.train, data.test, cluster, setup)
    completed(job, DATASET, MODEL, model=model.build())
    curves = [curve(place) for place in (real, folder)]
    seconds, losses = curves[0]
    level = float(np.interp(LEVEL * seconds[-1], seconds, losses))
    run_figures = [
        figures_of(planned, place) | {"seconds_to": seconds_to(level, *points)}
        for place, points in zip((real, folder), curves, strict=True)
    ]
    return {
        "name": planned.name,
        "fitted_to": other.name,
        "level": round(level, 5),
        "real": run_figures[0],
        "predicted": run_figures[1],
    }


def figures_of(planned: ValidationRun, folder: Path) -> dict[str, Any]:
    """Return figures of a recorded run, between its first third and its end."""
    trace = read_arrays(folder, "trace.npz")
    size = len(read_arrays(folder, "center.npz")["center"])
    traffic = Traffic(planned.scheme, planned.scheme.codecs()[0], planned.workers, even_sizes(size, 1))
    rounds = [planned.scheme.rounds(ENDLESS, 0, worker) for worker in range(planned.workers)]
    forecast = figures(EventSchedule(trace, load_rounds(folder), 0.0), planned.scheme, traffic, rounds)
    counted = trace["accepted"] == 1
    return {
        "updates": round(forecast.updates, 4),
        "staleness": round(forecast.staleness, 4),
        "waiting": round(forecast.waiting, 4),
        "slow": round(float((trace["worker"][counted] % 2).mean()), 4),
    }


def curve(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return test loss over time, since each worker has made an update or so: what comes before is start-up."""
    trace, lines = read_arrays(folder, "trace.npz"), (folder / "metrics.jsonl").read_text().splitlines()
    centers = [row for row in map(json.loads, lines) if row["kind"] == "center"]
    versions, moments = trace["version"] + 1, trace["microseconds"] / 1e6
    first = int(trace["worker"].max()) + 1
    at = [(row["version"], row["test_loss"]) for row in centers if row["version"] >= first]
    places = np.searchsorted(versions, [first, *(version for version, _ in at)])
    times = moments[np.minimum(places, len(moments) - 1)]
    return times[1:] - times[0], np.array([loss for _, loss in at])


def seconds_to(level: float, seconds: Sequence[float] | np.ndarray, losses: np.ndarray) -> float | None:
    """Return the seconds to a loss, interpolated between two evaluations."""
    point = crossing(losses.tolist(), level)
    return round(float(point.of(list(seconds))), 3) if point else None


def line(row: dict[str, Any]) -> str:
    """Return one line for the terminal."""
    real, predicted = row["real"], row["predicted"]
    wrong = predicted["updates"] / real["updates"] - 1
    return (
        f"{row['name']:<24} from {row['fitted_to']:<20} {real['updates']:6.2f} updates/s, predicted "
        f"{predicted['updates']:6.2f} ({wrong:+.0%}); staleness {real['staleness']:.2f}, "
        f"predicted {predicted['staleness']:.2f}"
    )
