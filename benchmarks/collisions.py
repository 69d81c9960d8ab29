"""`bash run.sh collisions`: Hogwild with and without the lock, where examples collide rarely and where they always do.

Sparse logistic regression on the threads back end. For each number of workers: examples per second, and the training
loss after the same number of epochs. The learning rate of a problem is the best of `GRID` with one worker.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..algorithms import AsyncSGD, Hogwild, Scheme
from ..common.arguments import at_least
from ..common.cli import flags
from ..common.cli.imports import import_tensorflow
from ..common.cluster.cluster import Cluster
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.data.recipes import Dataset
from ..common.data.sparse_data import sparsity
from ..common.launch.run import run
from ..common.system import usable_cores
from ..common.tasks.job import describe, make_job
from ..common.tasks.options import RunOptions
from . import stamps
from .outcome_files import Output, write

PROBLEMS = {
    "rare": "sparse:examples=16384,features=4096,active=4,noise=1",
    "certain": "sparse:examples=16384,features=4096,active=4,noise=1,collisions=1",
}
GRID = (0.25, 0.5, 1, 2, 4, 8)
SCHEMES: dict[str, Any] = {"lock-free": Hogwild, "locked": AsyncSGD}
BATCH = 8
EPOCHS = 3


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    workers: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of workers."""
    repetitions: int = 3
    """Number of runs of each kind, interleaved; the median counts."""

    def __post_init__(self):
        at_least(1, repetitions=self.repetitions, workers=min(self.workers, default=0))


def main(arguments: list[str]) -> int:
    """Measure, show, save and plot; returns the exit code."""
    about = "Measure hogwild on sparse data, with and without a lock."
    options: Options
    options, place = flags.read("run.sh collisions", about, arguments, {"options": Options, "results": Output})
    import_tensorflow()
    console = Console(highlight=False)
    problems: dict[str, Any] = {}
    for name, text in PROBLEMS.items():
        data = load(text)
        rate = min(GRID, key=lambda rate: measure(Hogwild(learning_rate=rate), data, workers=1)["loss"])
        numbers = sparsity(data.train[0], data.features)
        problems[name] = {"dataset": text, "learning_rate": rate, "sparsity": numbers, "runs": {}}
        console.print(f"{name}: rho {numbers['rho']:.3f}, learning rate {rate:g}")
        kinds = list(itertools.product(SCHEMES, options.workers))
        runs: dict[str, list[dict[str, float]]] = {f"{scheme} {workers}": [] for scheme, workers in kinds}
        for seed, (scheme, workers) in itertools.product(range(options.repetitions), kinds):
            result = measure(SCHEMES[scheme](learning_rate=rate), data, workers, seed)
            runs[f"{scheme} {workers}"].append(result)
            console.print(f"  {scheme}, {workers} workers: {result['rate']:.0f} examples/s, loss {result['loss']:.4f}")
        problems[name]["runs"] = {
            kind: {key: [r[key] for r in results] for key in results[0]} for kind, results in runs.items()
        }
    content = {
        "cores": usable_cores(),
        "tensorflow": version("tensorflow"),
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "workers": options.workers,
        "problems": problems,
    }
    write(place.output / "hogwild.json", content, indent=2)
    stamps.save(figure_of(content), place.output / "hogwild.png")
    console.print(table(content))
    return 0


def measure(scheme: Scheme, data: Dataset, workers: int, seed: int = 0) -> dict[str, float]:
    """Measure one run: examples per second, training loss at the end, mean staleness."""
    recipe = ModelRecipe.named("logistic", data.shape, data.classes, seed)
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(
            scheme,
            recipe,
            data.train,
            None,
            Cluster.local(workers, backend="threads"),
            RunOptions(epochs=EPOCHS, batch_size=BATCH, seed=seed, run_dir=Path(folder)),
        )
        record, error = run(job, describe(job, "sparse", "logistic"), verbose=False, model=recipe.build())
        result = record.finish(error)
        if error is not None:
            raise error
        with np.load(Path(folder) / "center.npz") as saved:
            loss = logistic_loss(saved["center"], data)
    return {"rate": result["examples_per_second"], "loss": loss, "staleness": result["staleness"]["mean"]}


def logistic_loss(params: np.ndarray, data: Dataset) -> float:
    """Return the mean loss on the training data."""
    (indices, values), y = data.train
    logits = (params[indices] * values).sum(1)
    return float(np.mean(np.logaddexp(0, np.where(y == 1, -logits, logits))))


def table(content: dict[str, Any]) -> Table:
    """Return a table of the medians."""
    result = Table(box=None, pad_edge=False)
    for i, column in enumerate(("collisions", "", "workers", "examples/s", "training loss", "mean staleness")):
        result.add_column(column, justify="right" if i > 1 else "left")
    for name, problem in content["problems"].items():
        for scheme, workers in itertools.product(SCHEMES, content["workers"]):
            runs = problem["runs"][f"{scheme} {workers}"]
            rate, loss, staleness = (median(runs[key]) for key in ("rate", "loss", "staleness"))
            result.add_row(name, scheme, str(workers), f"{rate:.0f}", f"{loss:.4f}", f"{staleness:.1f}")
    return result


def figure_of(content: dict[str, Any]) -> Any:
    """Plot throughput and loss against workers, for both collision rates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for column, (name, problem) in zip(axes.T, content["problems"].items(), strict=True):
        for scheme, style in zip(SCHEMES, ("o-", "s--"), strict=True):
            for axis, key in zip(column, ("rate", "loss"), strict=True):
                runs = [problem["runs"][f"{scheme} {workers}"][key] for workers in content["workers"]]
                axis.plot(content["workers"], [median(values) for values in runs], style, label=scheme)
                axis.fill_between(content["workers"], [min(v) for v in runs], [max(v) for v in runs], alpha=0.2)
        column[0].set_title(f"collisions are {name} (ρ = {problem['sparsity']['rho']:.2g})")
        column[0].set_ylim(bottom=0)
        column[1].set_xlabel("workers (threads)")
        column[1].set_xscale("log", base=2)
        column[1].set_xticks(content["workers"], [str(n) for n in content["workers"]])
    axes[0, 0].set_ylabel("examples per second")
    axes[1, 0].set_ylabel(f"training loss after {content['epochs']} epochs")
    axes[0, 0].legend()
    return figure
