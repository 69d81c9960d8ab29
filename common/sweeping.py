"""`sweep`: runs of several algorithms with several seeds, from Python, and their table and plot."""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from .arguments import at_least, checked_call
from .cluster.cluster import BackendName, Cluster
from .cluster.fingerprint import class_digest, data_digest, model_digest
from .contract.scheme import Scheme
from .data.dataset import leaves
from .errors import DistsgdError, Interrupted, UserError
from .launch.client import keep_warm
from .lazy import keras, require_tensorflow
from .messages.torch_tensors import seed_torch
from .record.bands import Band
from .record.latest import ROOT
from .record.plot import Axis, Width
from .record.repeats import FINISHED, completed
from .record.saved_runs import SavedRun, by_seed, picture_of_means, read_run, sheet_of
from .record.sheet import TableFormat
from .tasks.options import Keywords, Recovery, RunOptions, options_of, takes_options
from .training import check_kinds, cluster_of, train


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep.

    Attributes:
        runs: each run, as its folder has it: `folder`, `config`, `result`, `rows`.
    """

    runs: list[SavedRun]

    def table(self, form: TableFormat = "md") -> str:
        """Return a table as "csv", "md" or "latex": a row for each algorithm, means and deviations over the seeds."""
        return sheet_of(by_seed(self.runs)).in_format(form)

    def plot(self, x: Axis = "seconds", *, band: Band = "deviation", width: Width | None = None) -> Any:
        """Return a Matplotlib figure with the mean curve of each algorithm, and a band around it.

        Args:
            x: horizontal axis, as in `Result.plot`.
            band: extent of the band: "deviation", the standard deviation, or "range", from the least to the greatest.
            width: "column" or "page" for a picture of 3.3 or 6.9 inches for a paper, None for a screen.

        Raises:
            UserError: there is no such axis, or no curves.
        """
        groups = by_seed(self.runs)
        drawn = [group for group in groups if completed(run.result for run in group)]
        return picture_of_means(drawn or groups, x, band, width)

    def __repr__(self) -> str:
        """Return the number of runs; their rows would fill screens."""
        return f"<Sweep: {len(self.runs)} runs>"


@checked_call
@takes_options
def sweep(
    model: Callable[[], Any],
    data: Any,
    schemes: Iterable[Scheme],
    *,
    seeds: int = 3,
    cluster: Cluster | None = None,
    workers: int | None = None,
    ps: int | None = None,
    backend: BackendName | None = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[Any] = (),
    verbose: bool = True,
    **options: Unpack[Keywords],
) -> Sweep:
    """Train with each algorithm and each seed; a run that an earlier call has finished is not made again.

    Runs with the same seed have the same initial weights, shards and order of batches: the generators of Python, NumPy,
    Keras and PyTorch are seeded before `model` is called. A run that fails stands in the table. The folder of a run,
    `runs/ALGORITHM/sweep-...`, is named by its algorithm, options, initial model and data; of data that a function
    reads, by the name of the function.

    Args:
        model: a function that returns a compiled Keras model.
        data: as in `train`.
        schemes: the algorithms, such as `[SyncSGD(), DiLoCo()]`.
        seeds: number of runs of each algorithm, with the seeds from `seed` on.
        cluster: where to run, on this machine; the default is that of `train`.
        workers: as in `train`; so are ps and backend.
        ps: number of parameter servers.
        backend: "processes", "threads" or "simulation".
        validation_data: as in `train`.
        validation_split: as in `train`.
        class_weight: as in `train`.
        callbacks: as in `train`; they change no name of a folder.
        verbose: show progress.
        **options: the fields of `RunOptions`, but `run_dir`:

        {options}

    Example:
        >>> from distsgd import AsyncSGD, SyncSGD, sweep
        >>> def build():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile(loss="mse")
        ...     return model
        >>> cluster = Cluster.local(workers=2, backend="threads")
        >>> options = {"cluster": cluster, "validation_split": 0.2, "epochs": 1, "verbose": False}
        >>> found = sweep(build, (x, y), [SyncSGD(), AsyncSGD()], seeds=2, **options)
        >>> print(found.table("csv"))
        algorithm,...
        sync_sgd,2,...
        async_sgd,2,...

    Raises:
        UserError: the input is invalid.
        KeyboardInterrupt: Ctrl-C; the same call makes the runs that are missing.
    """
    require_tensorflow()
    at_least(1, seeds=seeds)
    listed: list[Any] = list(schemes) if isinstance(schemes, Iterable) and not isinstance(schemes, str) else [schemes]
    short = {"workers": workers, "ps": ps, "backend": backend}
    is_short = any(value is not None for value in short.values())
    first = _checked(model, listed, cluster, options).seed
    options.pop("seed", None)
    problem = {"validation_data": validation_data, "validation_split": validation_split, "class_weight": class_weight}
    common = {name: _in_words(value) for name, value in {"data": data, **problem, **options}.items()}
    runs = []
    with keep_warm():
        for scheme, seed in itertools.product(listed, range(first, first + seeds)):
            run_cluster = cluster_of(scheme, cluster, **short) if is_short else cluster
            keras.utils.set_random_seed(seed)
            seed_torch(seed)
            built = model()
            if not isinstance(built, keras.Model):
                raise UserError(f"model must return a compiled Keras model. Received: {type(built).__name__}")
            identity = [class_digest(type(scheme)), scheme, seed, model_digest(built), data_digest(built.get_weights())]
            folder = _folder(scheme, [*identity, run_cluster, common])
            if not _is_finished(folder):
                settings = {**problem, **options, "callbacks": callbacks, "verbose": verbose, "cluster": run_cluster}
                try:
                    train(built, data, scheme, run_dir=folder, seed=seed, **settings)
                except (UserError, Interrupted):
                    raise
                except DistsgdError as error:
                    print(f"{scheme.name}, seed {seed}: {error}")  # noqa: T201
            runs.append(read_run(folder))
    return Sweep(runs)


def _checked(model: Any, schemes: Sequence[Any], cluster: Cluster | None, options: Any) -> RunOptions:
    """Return the options of each run, once no argument is of another type than a sweep takes."""
    if not callable(model) or isinstance(model, keras.Model):
        raise UserError(
            "model must be a function that returns a compiled Keras model: each seed has initial weights of its own. "
            f"Received: {type(model).__name__}"
        )
    if not schemes:
        raise UserError("schemes must be a list of algorithms, such as [SyncSGD(), DiLoCo()]. Received: none")
    for scheme in schemes:
        check_kinds(scheme, cluster, (), "sweep(build, (x, y), [SyncSGD(), DiLoCo()])")
    if "run_dir" in options:
        raise UserError("each run of a sweep has a folder of its own: leave run_dir out")
    if cluster is not None and cluster.task is not None:
        raise UserError("a sweep trains on this machine: give Cluster.local(...)")
    return options_of(options, inspect.signature(sweep).parameters, (Cluster.local, Recovery))


def _in_words(value: Any) -> Any:
    """Return arrays as their digest, and other values as a text that is the same in each process."""
    arrays = any(hasattr(leaf, "shape") or callable(leaf) for leaf in leaves(value))
    return data_digest(value) if arrays else value


def _folder(scheme: Scheme, identity: Sequence[Any]) -> Path:
    """Return the folder of a run: the finished one, or one without a result."""
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:10]
    folders = (ROOT / scheme.name / f"sweep-{digest}{f'-{n}' * (n > 1)}" for n in itertools.count(1))
    return next(folder for folder in folders if _is_finished(folder) or not (folder / "result.json").exists())


def _is_finished(folder: Path) -> bool:
    return (folder / "result.json").is_file() and read_run(folder).result.get("outcome") in FINISHED
