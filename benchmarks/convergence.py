"""Every algorithm on the same model, data and number of examples: `bash run.sh benchmark`.

The benchmark is a list of *cells*, each one run. The outcome of a cell is kept in a file of its own, named by a hash of
all that the cell depends on, the sources included, so that an interrupted benchmark goes on where it stopped, and a
changed algorithm is measured anew.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..algorithms import SCHEMES, Scheme
from ..common.cli import flags
from ..common.cluster.cluster import Cluster
from ..common.cluster.placement import BackendName
from ..common.errors import DistsgdError, Diverged, Interrupted, UserError, at_least
from ..common.launch.client import keep_warm
from ..common.launch.run import run
from ..common.problems.data import load
from ..common.problems.dataset import Dataset
from ..common.problems.models import ModelRecipe
from ..common.run.job import describe, make_job
from ..common.run.options import RunOptions
from ..common.spec import nearest
from .kept import choose, merged, sources, write

RESULTS = Path(__file__).parent / "results"
CACHE = Path(__file__).parent / "cache"
PARTIAL = RESULTS / "partial"
TUNING = RESULTS / "tuning.json"

DATASET = "synthetic:examples=4096,features=20,classes=8,noise=1.5"  # hard enough that algorithms differ
MODEL = "mlp:hidden=32"
BATCH = 16
WORKERS = 4
PERIOD = 10  # of every algorithm that has one
GRADIENTS, QUICK_GRADIENTS = 8000, 1600  # of all workers together
TUNING_SEED = 1000  # never used for results
VALIDATION = 0.2  # part of the training data on which learning rates are chosen

PERIODS = 1, 4, 16, 64
BY_PERIOD = "downpour", "downpour_easy", "agn", "aeasgd", "aeamsgd", "local_sgd"
MANY_WORKERS = 1, 2, 4, 8, 16, 32
BY_WORKERS = "downpour", "downpour_easy", "agn", "dynsgd"
THROUGHPUT_WORKERS = 1, 2, 4, 8

# Values that are tried. An algorithm that is not named here gets RATES for its `learning_rate`.
RATES = 0.05, 0.1, 0.2, 0.4, 0.8, 1.6
GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "downpour": {"learning_rate": (0.05, 0.2, 0.8, 1.6), "server_learning_rate": (0.05, 0.1, 0.2, 0.4)},
    "agn": {"learning_rate": (0.05, 0.2, 0.8), "server_learning_rate": (0.4, 0.8, 1.6, 3.2)},
    "sagn": {"learning_rate": (0.2, 0.4, 0.8, 1.6), "server_learning_rate": (1.6, 3.2, 6.4, 12.8, 25.6)},
    "adag": {"learning_rate": (0.4, 0.8, 1.6, 3.2), "distance_scale": (0.01, 0.1, 1.0, 10.0, 100.0)},
    "sync_sgd_lr": {"learning_rates": tuple((rate,) for rate in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6))},
    "aeamsgd": {"learning_rate": (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)},
    "diloco": {
        "learning_rate": (0.002, 0.004, 0.008, 0.016, 0.032),
        "outer_learning_rate": (0.05, 0.1, 0.2, 0.4, 0.7, 1.0),
    },
    "async_diloco": {
        "learning_rate": (0.002, 0.004, 0.008, 0.016, 0.032),
        "outer_learning_rate": (0.05, 0.1, 0.2, 0.4, 0.7, 1.0),
    },
    "signsgd_mv": {"learning_rate": (0.0003, 0.001, 0.003, 0.01, 0.03)},
    "ef_sgd": {"learning_rate": (0.05, 0.1, 0.2, 0.4, 0.8)},
    "slowmo": {"learning_rate": (0.05, 0.1, 0.2, 0.4, 0.8), "slow_momentum": (0.2, 0.4, 0.6, 0.8)},
    "bmuf": {"learning_rate": (0.05, 0.1, 0.2, 0.4, 0.8), "block_learning_rate": (0.25, 0.5, 1.0)},
    "dc_asgd": {"learning_rate": (0.05, 0.1, 0.2, 0.4), "compensation": (0.04, 0.4, 4.0)},
}


@dataclass(frozen=True)
class Options:
    """Every algorithm on the same model, data and number of examples."""

    names: tuple[str, ...] = ()
    """Algorithms; all if not given."""
    seeds: int = 3
    """Repetitions of each measurement of convergence."""
    quick: bool = False
    """One seed, fewer examples and settings: less than three minutes on two cores."""
    tune: bool = False
    """Choose the learning rates instead, and write them to tuning.json."""
    fresh: bool = False
    """Forget what was measured before."""
    times: bool = True
    """Keep seconds, and measure throughput: of a machine that has nothing else to do."""
    backend: BackendName = "processes"
    """Where convergence and throughput are measured."""
    output: Path | None = None
    """Folder of the results, where those of other algorithms stay. Without it: benchmarks/results if all is measured,
    else its folder `partial`."""

    def __post_init__(self):
        at_least(1, seeds=self.seeds)
        for name in self.names:
            if name not in SCHEMES:
                raise UserError(f"unknown algorithm {name!r}. {nearest(name, SCHEMES)}")

    @property
    def algorithms(self) -> list[str]:
        """The chosen ones, in the order of the catalogue."""
        return [name for name in SCHEMES if not self.names or name in self.names]

    @property
    def folder(self) -> Path:
        """Where results go: less than everything does not replace the committed ones."""
        return self.output or (PARTIAL if self.names or self.quick else RESULTS)


@dataclass(frozen=True)
class Cell:
    """One run, and all that it depends on."""

    part: str  # convergence, throughput, period, workers, tuning
    algorithm: str
    settings: dict[str, Any]
    workers: int
    seed: int
    backend: BackendName
    gradients: int
    dataset: str = DATASET
    model: str = MODEL
    batch_size: int = BATCH
    timed: bool = True

    @property
    def file(self) -> str:
        """Name of the file that keeps the outcome."""
        text = json.dumps(asdict(self) | {"sources": sources(self.algorithm)}, sort_keys=True)
        return f"{self.part}-{self.algorithm}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    @property
    def scheme(self) -> Scheme:
        """The algorithm with its settings."""
        return SCHEMES[self.algorithm](**{k: tuple(v) if isinstance(v, list) else v for k, v in self.settings.items()})


def tuned(algorithm: str) -> dict[str, Any]:
    """Settings of an algorithm: those in tuning.json, or the defaults of its module."""
    table = json.loads(TUNING.read_text())["settings"] if TUNING.exists() else {}
    return with_period(algorithm, PERIOD) | table.get(algorithm, {})


def with_period(algorithm: str, period: int) -> dict[str, Any]:
    """The setting of the communication period, if the algorithm has one."""
    has = "communication_period" in {field.name for field in fields(SCHEMES[algorithm])}
    return {"communication_period": period} if has else {}


def alone(algorithm: str) -> bool:
    """True if one worker is all there is."""
    return not SCHEMES[algorithm]().gate.exchanges


def plan(options: Options) -> list[Cell]:
    """The cells of the benchmark, repetitions in turn, so that a busy minute does not hit one algorithm alone."""
    if options.tune:
        return list(tuning_cells(options))
    return [*convergence_cells(options), *throughput_cells(options), *sweep_cells(options)]


def convergence_cells(options: Options) -> Iterator[Cell]:
    """Each algorithm, several seeds."""
    gradients = QUICK_GRADIENTS if options.quick else GRADIENTS
    for seed in range(1 if options.quick else options.seeds):
        for name in options.algorithms:
            workers = 1 if alone(name) else WORKERS
            timed = options.times
            yield Cell("convergence", name, tuned(name), workers, seed, options.backend, gradients, timed=timed)


def throughput_cells(options: Options) -> Iterator[Cell]:
    """Each algorithm, without evaluation, more and more workers."""
    for workers in THROUGHPUT_WORKERS if options.times and not options.quick else ():
        for name in options.algorithms:
            if not alone(name) or workers == 1:
                yield Cell("throughput", name, tuned(name), workers, 0, options.backend, GRADIENTS)


def sweep_cells(options: Options) -> Iterator[Cell]:
    """The communication period, and the number of workers, of the algorithms that the papers compare."""
    gradients = QUICK_GRADIENTS if options.quick else GRADIENTS
    for seed in range(1 if options.quick else options.seeds):
        for name in set_order(BY_PERIOD, options):
            for period in (1, 16) if options.quick else PERIODS:
                settings = tuned(name) | with_period(name, period)
                yield Cell("period", name, settings, WORKERS, seed, "threads", gradients)
        for name in set_order(BY_WORKERS, options):
            for workers in (2, 16) if options.quick else MANY_WORKERS:
                yield Cell("workers", name, tuned(name), workers, seed, "threads", gradients)


def set_order(names: Sequence[str], options: Options) -> list[str]:
    """Those of the names that were chosen."""
    return [name for name in names if name in options.algorithms]


def tuning_cells(options: Options) -> Iterator[Cell]:
    """Each algorithm with each combination of its grid, on the threads back end, a seed of its own."""
    for name in options.algorithms:
        grid = GRIDS.get(name, {"learning_rate": RATES})
        for values in itertools.product(*grid.values()):
            settings = with_period(name, PERIOD) | dict(zip(grid, values, strict=True))
            yield Cell("tuning", name, settings, 1 if alone(name) else WORKERS, TUNING_SEED, "threads", GRADIENTS)


def dataset_of(cell: Cell) -> Dataset:
    """The data; for tuning, a part of the training data takes the place of the test data."""
    data = load(cell.dataset)
    if cell.part != "tuning":
        return data
    cut = round(len(data.train[0]) * (1 - VALIDATION))
    return Dataset(tuple(a[:cut] for a in data.train), tuple(a[cut:] for a in data.train), data.classes)


def measure(cell: Cell) -> dict[str, Any]:
    """Run a cell. Divergence is an outcome; other failures are raised."""
    scheme, data = cell.scheme, dataset_of(cell)
    folder = Path(tempfile.mkdtemp(prefix="distsgd-benchmark-"))
    try:
        job = make_job(
            scheme,
            ModelRecipe.named(cell.model, data.train[0].shape[1:], data.classes, cell.seed),
            data.train,
            None if cell.part == "throughput" else data.test,
            Cluster.local(cell.workers, backend=cell.backend, wait_seconds=120),
            RunOptions(
                steps=max(1, cell.gradients // (cell.workers * scheme.default_devices_per_worker)),
                batch_size=cell.batch_size * scheme.default_devices_per_worker,  # each device has the same batch
                seed=cell.seed,
                run_dir=folder,
            ),
        )
        job.evaluate_later = cell.part == "convergence"
        record, error = run(job, describe(job, cell.dataset, cell.model), verbose=False)
        result = record.finish(error, picture=False)
        if isinstance(error, Interrupted):
            raise error
        if error is not None and not isinstance(error, Diverged):
            raise error
        return outcome(cell, result, record.history())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def outcome(cell: Cell, result: dict[str, Any], history: dict[str, list[Any]]) -> dict[str, Any]:
    """What is kept of a run."""
    kept = {k: result[k] for k in ("outcome", "examples", "updates", "seconds_training", "examples_per_second")}
    kept |= {k: result[k] for k in ("test_loss", "test_accuracy", "staleness", "bytes_pushed", "bytes_pulled")}
    curve: dict[str, list[float]] = {}
    if cell.part == "convergence" and history.get("examples"):
        zero = history["seconds"][0]
        sent = zip(history["bytes_pushed"], history["bytes_pulled"], strict=True)
        curve = {
            "examples": history["examples"],
            "seconds": [round(second - zero, 3) for second in history["seconds"]],
            "bytes": [pushed + pulled for pushed, pulled in sent],
            "loss": [round(value, 5) for value in history["test_loss"]],
            "accuracy": [round(value, 5) for value in history["test_accuracy"]],
        }
    if not cell.timed:
        kept |= {"seconds_training": None, "examples_per_second": None}
        curve.pop("seconds", None)
    return {"cell": asdict(cell), **kept, "curve": curve}


def complete(cells: Sequence[Cell], cache: Path, console: Console) -> tuple[list[dict[str, Any]], int]:
    """Outcomes of all cells, those measured before from their files; and how many failed."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not (cache / cell.file).exists()]
    if len(missing) < len(cells):
        console.print(f"{len(cells) - len(missing)} of {len(cells)} runs were measured before (--fresh forgets them)")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    failed = 0
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress, keep_warm():
        task = progress.add_task("", total=len(missing))
        for cell in missing:
            progress.update(task, description=f"{cell.part}: {cell.algorithm}, {cell.workers} workers")
            try:
                write(cache / cell.file, measure(cell))
            except DistsgdError as error:  # the others are still worth measuring
                failed += 1
                progress.console.print(f"failed: {cell.part} of {cell.algorithm}: {error}", markup=False)
            progress.advance(task)
    found = [cache / cell.file for cell in cells]
    return [json.loads(path.read_text()) for path in found if path.exists()], failed


def main(arguments: list[str], cache: Path = CACHE) -> int:
    """Measure, plot and save; returns the exit code."""
    from .plots import draw
    from .tables import update_page

    about = "Every algorithm on the same model, data and number of examples: plots and tables."
    options: Options = flags.read("run.sh benchmark", about, arguments, {"options": Options}, positional="names")[0]
    console = Console(highlight=False)
    cells = plan(options)
    if options.fresh:
        for cell in cells:
            (cache / cell.file).unlink(missing_ok=True)
    try:
        outcomes, failed = complete(cells, cache, console)
    except KeyboardInterrupt as signal:
        console.print("interrupted; the same command goes on from here")
        return getattr(signal, "exit_code", 130)
    if options.tune:
        target = (options.output or RESULTS) / "tuning.json"
        choose(outcomes, target)
        console.print(f"written to {target}", soft_wrap=True)
        return 1 if failed else 0
    file = options.folder / "convergence.json"
    if options.folder != PARTIAL:
        outcomes = merged(outcomes, file)
    write(file, outcomes)
    for path in draw(outcomes, options.folder):
        console.print(f"written to {path}", soft_wrap=True)
    if options.folder.resolve() == RESULTS.resolve():
        update_page()
    return 1 if failed else 0
