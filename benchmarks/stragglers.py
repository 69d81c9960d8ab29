"""`bash run.sh stragglers`: synchronous SGD with more and more backup workers, where some batches come late.

The delays are made here: each batch takes a worker `milliseconds`, and `slow_milliseconds` with probability
`slow_share`. All else is real: threads, barrier, dropped gradients. `async_sgd`, without any wait, is beside it.

Machines are fitted to the first run of each seed, as `simulate --like` does it, and all runs with that seed are
predicted from them: delays are drawn by seed and worker, so the first run has those of all.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from rich.console import Console

from ..algorithms import SCHEMES, AsyncSGD, Scheme, SyncSGD
from ..common.arguments import at_least, fraction, not_negative
from ..common.cli import flags
from ..common.cli.imports import import_tensorflow
from ..common.cluster.cluster import Cluster
from ..common.cluster.platform import Machines
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.data.recipes import Dataset
from ..common.errors import UserError
from ..common.launch.client import keep_warm
from ..common.lazy import tf
from ..common.server.traffic import Traffic
from ..common.system import usable_cores
from ..common.tasks.job import make_job
from ..common.tasks.options import RunOptions
from ..simulator.fitting.fit import fit
from ..simulator.virtual_time.schedule import EventLoop
from . import stamps
from .complete import completed
from .outcome_files import Output, write
from .plots import bare, colour
from .tables import update_page

ASYNCHRONOUS = "async_sgd"
DATASET = "synthetic:examples=4096,features=20,classes=8,noise=1.5"
MODEL, BATCH = "mlp:hidden=32", 16
SYNC_RATE, ASYNC_RATE = 0.4, 0.1  # the best by factors of two, with four workers and 8000 gradients
PREDICTIONS = 5  # simulations of each run, each with a seed of its own; their mean is the prediction


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    workers: int = 8
    """Number of worker threads."""
    backups: tuple[int, ...] = (0, 1, 2, 3, 4, 6)
    """Numbers of backup workers among them."""
    updates: int = 400
    """Number of updates of a synchronous run; the asynchronous one takes as many gradients as without backups."""
    milliseconds: float = 30
    """Milliseconds of a batch."""
    slow_milliseconds: float = 300
    """Milliseconds of a late batch."""
    slow_share: float = 0.02
    """Fraction of the batches that are late."""
    repetitions: int = 2
    """Number of runs of each kind, with seeds of their own."""

    def __post_init__(self):
        at_least(2, workers=self.workers)
        at_least(1, updates=self.updates, repetitions=self.repetitions)
        fraction(slow_share=self.slow_share)
        not_negative(milliseconds=self.milliseconds, slow_milliseconds=self.slow_milliseconds)
        wrong = [b for b in self.backups if not 0 <= b < self.workers]
        if wrong or not self.backups:
            raise UserError(
                f"backups must lie between 0 and {self.workers - 1}, below the number of workers. Received: {wrong}"
            )


def main(arguments: list[str]) -> int:
    """Measure, show, save and plot; returns the exit code."""
    about = "Measure sync_sgd with backup workers, where some batches come late."
    options, place = flags.read("run.sh stragglers", about, arguments, {"options": Options, "results": Output})
    import_tensorflow()
    console = Console(highlight=False)
    kinds: dict[str, Scheme] = {str(b): SyncSGD(learning_rate=SYNC_RATE, backup_workers=b) for b in options.backups}
    kinds[ASYNCHRONOUS] = AsyncSGD(learning_rate=ASYNC_RATE)
    data = load(DATASET)
    parameters = recipe_for(data, 0).flat().size
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with keep_warm():
        for seed in range(options.repetitions):
            machines: Machines | None = None
            for kind, scheme in kinds.items():
                with tempfile.TemporaryDirectory() as folder:
                    result = measure(scheme, data, options, seed, Path(folder))
                    machines = machines or fit(Path(folder), SCHEMES).machines()
                result["predicted"] = predict(scheme, machines, options, parameters)
                runs[kind].append(result)
                console.print(
                    f"{kind:>9}: {result['milliseconds']:.1f} ms/update, predicted "
                    f"{result['predicted']['milliseconds']:.1f}; test loss {result['loss']:.4f}"
                )
    shown = {k: v for k, v in asdict(options).items() if k != "backups"}
    about = {"cores": usable_cores(), "tensorflow": version("tensorflow"), "batch_size": BATCH}
    content = about | {"options": shown, "runs": runs}
    write(place.output / "stragglers.json", content)
    stamps.save(figure_of(content), place.output / "stragglers.png")
    if place.is_shown:
        update_page()
    return 0


def measure(scheme: Scheme, data: Dataset, options: Options, seed: int, folder: Path) -> dict[str, Any]:
    """Measure one run: milliseconds for each update, share of dropped gradients, test loss at the end and over time."""
    job = make_job(
        scheme,
        recipe_for(data, seed),
        late_batches(data.train, options, seed),
        data.test,
        Cluster.local(options.workers, backend="threads"),
        RunOptions(steps=options.updates, batch_size=BATCH, seed=seed, run_dir=folder),
    )
    job.evaluate_later = True  # evaluation would take time from the workers
    record, result = completed(job, DATASET, MODEL)
    history = record.history()
    start = history["seconds"][0]
    return {
        "milliseconds": 1000 * result["seconds_training"] / result["updates"],
        "dropped": dropped(scheme, options, result["dropped"], result["updates"]),
        "loss": result["test_loss"],
        "curve": {
            "seconds": [round(s - start, 3) for s in history["seconds"]],
            "loss": [round(loss, 5) for loss in history["test_loss"]],
        },
    }


def predict(scheme: Scheme, machines: Machines, options: Options, parameters: int) -> dict[str, float]:
    """Predict such a run on these machines: milliseconds for each update, share of dropped gradients."""
    traffic = Traffic(scheme, scheme.codecs()[0], options.workers, [parameters])
    sizes: dict[str, Any] = {"message_bytes": traffic.message, "reply_bytes": traffic.reply}
    rounds, found = scheme.rounds(options.updates), []
    for seed in range(PREDICTIONS):
        schedule = EventLoop(scheme, machines, workers=options.workers, rounds=rounds, seed=seed, **sizes).run()
        updates = int(schedule.trace["version"][-1]) + 1
        dropped_count = int((schedule.trace["accepted"] == 0).sum())
        found.append((1000 * schedule.seconds / updates, dropped(scheme, options, dropped_count, updates)))
    milliseconds, share = np.mean(found, axis=0).tolist()
    return {"milliseconds": milliseconds, "dropped": share}


def dropped(scheme: Scheme, options: Options, dropped_count: int, updates: int) -> float:
    """Return the share of gradients that came too late, of all that came."""
    used = options.workers - scheme.backup_workers if isinstance(scheme, SyncSGD) else 1  # gradients of an update
    return dropped_count / (dropped_count + used * updates)


def recipe_for(data: Dataset, seed: int) -> ModelRecipe:
    """Return the model."""
    return ModelRecipe.named(MODEL, data.train[0].shape[1:], data.classes, seed)


def late_batches(train: Any, options: Options, seed: int) -> Callable[[Any], Any]:
    """Return a data function whose batches are delayed; which ones are late depends on worker and seed."""

    def seconds(rng: np.random.Generator, worker: int) -> float:
        del worker
        is_late = rng.random() < options.slow_share
        return (options.slow_milliseconds if is_late else options.milliseconds) / 1000

    return slow_batches(train, seconds, seed)


def slow_batches(
    train: Any, seconds: Callable[[np.random.Generator, int], float], seed: int, batch: int = BATCH
) -> Callable[[Any], Any]:
    """Return a data function whose batches take as many `seconds` as are drawn for them, given generator and worker."""

    def make(context: Any) -> Any:
        worker, workers = context.input_pipeline_id, context.num_input_pipelines
        rng = np.random.default_rng((seed, worker))

        def wait() -> Any:
            time.sleep(seconds(rng, worker))
            return np.int32(0)

        def delayed(*arrays: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(wait, [], tf.int32, stateful=True)]):
                return tuple(tf.identity(part) for part in arrays)

        rows = tf.data.Dataset.from_tensor_slices(train).shard(workers, worker)
        examples = len(train[0]) // workers
        batches = rows.shuffle(examples, seed=seed).repeat().batch(batch, drop_remainder=True)
        patient = tf.data.Options()
        patient.experimental_optimization.inject_prefetch = False  # or the delay would overlap with the wait for others
        return batches.map(delayed).with_options(patient)

    return make


def figure_of(content: dict[str, Any]) -> Any:
    """Plot the time of an update against backup workers, and test loss against time."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    runs = {kind: repeats for kind, repeats in content["runs"].items() if kind != ASYNCHRONOUS}
    options = content["options"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    times, losses = figure.subplots(1, 2)
    backups = [int(b) for b in runs]
    means = [mean(r["milliseconds"] for r in repeats) for repeats in runs.values()]
    times.plot(backups, means, "o-")
    predicted = [mean(r["predicted"]["milliseconds"] for r in repeats) for repeats in runs.values()]
    times.plot(backups, predicted, "x", color="black", label="predicted from the first one")
    times.legend(fontsize=8)
    for b, value, repeats in zip(backups, means, runs.values(), strict=True):
        text = f"{mean(r['dropped'] for r in repeats):.0%}"
        times.annotate(text, (b, value), (0, 8), textcoords="offset points", ha="center", fontsize=8)
    times.set(xlabel=f"backup workers (of {options['workers']})", ylabel="milliseconds", ylim=(0, 1.15 * max(means)))
    times.set_title("time of an update, and dropped gradients")
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(runs)))
    colours = dict(zip(runs, shades, strict=True)) | {ASYNCHRONOUS: colour(ASYNCHRONOUS)}
    for kind, repeats in content["runs"].items():
        for i, run in enumerate(repeats):
            name = kind if kind == ASYNCHRONOUS else f"{kind} backup workers"
            losses.plot(*run["curve"].values(), color=colours[kind], lw=1, label=name if i == 0 else None)
    losses.set(xlabel="seconds", ylabel="test loss", title="test loss of the center")
    losses.legend(fontsize=8)
    for axes in (times, losses):
        bare(axes)
    return figure
