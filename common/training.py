"""`train`: one call from a model, data and an algorithm to a result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

from rich.console import Console

from .arguments import a_text, checked_call
from .cluster.cluster import BackendName, Cluster
from .cluster.fingerprint import given_name, model_digest
from .contract.checks import check_kind
from .contract.decay import weight_decay_of
from .contract.hyperparameters import check_values
from .contract.scheme import Scheme
from .data.agreement import check_order
from .data.examples import read, yields_batches
from .data.inputs import Sharded, build_on, first_batches, prepared, sizes_vary
from .data.models import ModelRecipe, name_for
from .data.named import load
from .data.suspects import bad_example, between_classes, of_worker
from .data.trial import fails, try_out, unconnected
from .errors import Interrupted, UserError
from .launch.gpus import gpus
from .launch.run import run
from .lazy import keras, require_tensorflow
from .record import checkpoint
from .record.callbacks import Callback
from .record.display import in_notebook
from .record.keras_callbacks import KerasCallbacks, check_keras_callbacks
from .record.latest import named
from .record.saved_runs import picture, read_run
from .record.summary import summary, summary_html
from .settings import refuse, use_tensorflow, using
from .signals import added, held
from .tasks.job import Job, describe, make_job
from .tasks.options import Keywords, Recovery, RunOptions, options_of, takes_options
from .tasks.weighing import weigh

USAGE = "train(model, (x, y), Downpour())"

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Result:
    """The results of a run.

    Attributes:
        model: the Keras model, with the weights of the center.
        history: metrics of the center over time: `seconds`, `version`, `examples`, `test_loss`, ...
        metrics: the content of result.json.
        run_dir: folder with all other results.

    Example:
        >>> result.metrics["outcome"]
        'completed'
        >>> losses = result.history["test_loss"]  # one for each evaluation of the center
    """

    model: Any
    history: dict[str, list[Any]]
    metrics: dict[str, Any]
    run_dir: Path

    def plot(self, *others: Result | str | Path, x: str = "seconds") -> Any:
        """Return a Matplotlib figure with loss and error of this run, and of others.

        Args:
            others: results or run directories of runs to compare with.
            x: horizontal axis: "seconds" since the first update, "updates" of the center, "examples" of all workers, or
                "bytes" in both directions.

        Example:
            >>> result.plot(x="examples").savefig(result.run_dir / "mine.png")

        Raises:
            UserError: there is no such axis, or a run directory has no curves.
        """
        folders = [
            self.run_dir,
            *(other.run_dir if isinstance(other, Result) else named(Path(other)) for other in others),
        ]
        return picture([read_run(folder) for folder in folders], x)

    def __repr__(self) -> str:
        """Return the outcome and the folder in one line; model, history and metrics would fill screens."""
        return f"<{self.metrics['algorithm']}: {self.metrics['outcome']}, {self.run_dir}>"

    def _repr_html_(self) -> str:
        """Return the summary and the plot of the run, as notebooks show them."""
        return summary_html(self.metrics, self.run_dir / "plot.png")


def in_the_order_of_fit(function: Function) -> Function:
    """Let `train` also take x and y as Keras' `fit` does, as two arguments, and the algorithm before the data."""

    @functools.wraps(function)
    def ordered(*values: Any, **named: Any) -> Any:
        model, data, scheme = _in_order(list(values), named)
        return function(model, data, scheme, **named)

    return cast(Function, ordered)


def _in_order(values: list[Any], named: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return model, data and algorithm of a call, and take out of `named` those that have names there.

    Raises:
        UserError: one of them is missing, or it is not certain which is which.
    """
    schemes = [named.pop("scheme")] if "scheme" in named else []
    schemes += [value for value in values if isinstance(value, Scheme)]
    others = [named.pop("model")] if "model" in named else []
    others += [value for value in values if not isinstance(value, Scheme)]
    model, *data = [*others, *(named.pop(name) for name in ("data", "x", "y") if name in named)] or [None]
    if not schemes and len(data) == 2:
        return model, *data  # the second is no algorithm, and will be refused
    if len(schemes) != 1 or not data:
        raise UserError(f"train needs a model, data and an algorithm, as in {USAGE}")
    if len(data) == 1:
        return model, data[0], schemes[0]
    if any(isinstance(value, tuple) or callable(value) or yields_batches(value) for value in data):
        raise UserError(
            f"train takes one argument of data, as in {USAGE}; those for validation are validation_data=..."
        )
    return model, tuple(data), schemes[0]


@takes_options
@in_the_order_of_fit
def train(
    model: Any,
    data: Any,
    scheme: Scheme,
    *,
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
) -> Result:
    """Train a compiled Keras model with a distributed algorithm.

    On several machines, start the same script on each of them, with `cluster=Cluster.from_tf_config()`,
    `Cluster.from_slurm()` or `Cluster.at(...)`: each call runs one task (a ps task only serves), and returns (or
    raises) when the whole run has ended. Where `cluster.evaluates` is true (the chief, or the evaluator task if the
    cluster has one), the model then has the weights of the center, and `run_dir` holds all results; elsewhere the model
    is unchanged, and `run_dir` holds the log of that task.

    Args:
        model: a Keras 3 model, compiled with a loss. Its optimizer is not used. It receives the weights of the
            center at the end. Rejected are models with their own `train_step`, with constraints on trainable
            variables, with trainable variables other than float32, or that train in float16.
        data: (x, y) or (x, y, sample_weight), or x alone for a model whose loss needs no labels. Each is an array, or
            a list or dict of arrays as the model takes its inputs; an array is NumPy's, a tensor, a list of numbers or
            a pandas DataFrame or Series. Each worker trains on its own shard, which is shuffled in every epoch.

            Or an object that yields batches of these: a `tf.data.Dataset`, a `keras.utils.PyDataset`, a Python
            generator. It is read once, before the run, into memory, and then is the same as arrays; `batch_size` is by
            default that of its first batch. A Dataset may also yield single examples: the shapes of `model.inputs`
            tell single examples from batches. If it has no end, or a length that is not known, `steps` batches are
            read for each worker. On several machines it must yield the same examples in the same order.

            Or, for data larger than the memory or augmented at random, a function that returns a `tf.data.Dataset` of
            batches of `batch_size`, which each worker reads by itself: with one parameter the function receives a
            `tf.distribute.InputContext` and does the sharding, without parameters every worker takes its share of the
            batches. One batch is tried before any process is started.
        scheme: the algorithm, for instance `Downpour(communication_period=5)`.
        cluster: where to run; the default is `Cluster.local()`, 1 ps and 2 workers in processes.
        workers: number of workers on this machine, in place of `cluster=Cluster.local(workers=...)`.
        ps: number of parameter servers on this machine, likewise.
        backend: "processes", "threads" or "simulation", likewise.
        validation_data: data of the same kinds, on which the center is evaluated with the model's own metrics.
        validation_split: fraction of the examples, taken from their end, to use as `validation_data` if none is given.
        class_weight: a weight for the examples of each class, by its number; 1 for classes that are not named.
        callbacks: `Callback` objects, notified of the events of the run, and Keras' own callbacks, called at each
            evaluation of the center as at the end of an epoch, where `cluster.evaluates` is true.
        verbose: show progress.
        **options: the fields of `RunOptions`:

        {options}

    Example:
        >>> import keras, numpy as np
        >>> from distsgd import Cluster, Downpour, train
        >>> x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
        >>> y = x.sum(axis=1, keepdims=True)
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> cluster = Cluster.local(workers=2)
        >>> result = train(model, (x, y), Downpour(), cluster=cluster, epochs=3, validation_split=0.2, verbose=False)
        >>> result.metrics["outcome"]
        'completed'

    Raises:
        UserError: the input is invalid; no process was started.
        KeyboardInterrupt: Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 or one of `stop_signals`; all processes have ended. The
            model has the center that was reached, and the run directory has a checkpoint from which to resume.
        DistsgdError: the run failed; `result.json` in the run directory has the reason.
    """
    require_tensorflow()
    refuse()
    callbacks = [*callbacks] if isinstance(callbacks, list | tuple) else [callbacks] if callbacks is not None else []
    check_kinds(scheme, cluster, callbacks)
    parsed = options_of(options, inspect.signature(train).parameters, (type(scheme), Cluster.local, Recovery))
    cluster = cluster_of(scheme, cluster, workers=workers, ps=ps, backend=backend)
    data, size = read(data, "data", model, options.get("batch_size"), parsed.steps and parsed.steps * cluster.workers)
    if size is not None:
        parsed = replace(parsed, batch_size=size)
    if validation_data is not None:
        validation_data, _ = read(validation_data, "validation_data", model)
    data, validation_data = prepared(data, validation_data, validation_split, class_weight)
    build_on(data, model, cluster.workers)
    recipe = ModelRecipe.of(model).excluding(parsed.exclude_from_weight_decay, model)
    job = make_job(scheme, recipe, data, validation_data, cluster, parsed)
    try_on_a_batch(job, model)
    config = {**describe(job, dataset="own data", model=given_name(model)), "architecture": model_digest(model)}
    hooks, keras_hook = _hooks(job, model, callbacks)
    with added(parsed.recovery.signals):
        record, error = run(job, config, verbose, model, hooks)
        with held() as noted:
            metrics = record.finish(error)
            if verbose:
                _show(metrics, error, bool(noted))
            if error is not None:
                noted.clear()
        if error is not None:
            raise error
        if keras_hook is not None:
            keras_hook.end()
    return Result(model, record.history(), metrics, job.run_dir)


def _show(metrics: dict[str, Any], error: BaseException | None, signalled: bool) -> None:
    """Show the result in a notebook, or after a signal, which takes it from the caller, and how to continue."""
    failed = error is not None and not isinstance(error, Interrupted)
    if failed or not (in_notebook() or error is not None or signalled):
        return
    Console().print(summary(metrics))
    if metrics["outcome"] == Interrupted.outcome and checkpoint.found(Path(metrics["run_dir"])):
        print(f"to continue: train(..., recovery=Recovery(resume={metrics['run_dir']!r}))")  # noqa: T201


def cluster_of(scheme: Scheme, cluster: Cluster | None, **short: Any) -> Cluster:
    """Return the cluster of a call of `train`: the given one, or one on this machine with the `short` arguments.

    Raises:
        UserError: both are given.
    """
    chosen = {name: value for name, value in short.items() if value is not None}
    if cluster is None:
        return Cluster.local(**{"workers": 2 if scheme.sync.exchanges else 1, **chosen})
    for name, value in chosen.items():
        raise UserError(f"cluster and {name} exclude each other: write cluster=Cluster.local({name}={value!r})")
    return cluster


@checked_call
def problem(dataset: str, model: str | None = None, *, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return a compiled Keras model, training data and validation data by their names on the command line.

    Args:
        dataset: a data set with its options, as in "quadratic:dim=1729,noise=0.01".
        model: a model with its options; None for the usual model of these data.
        seed: random seed for the initial weights.

    Example:
        >>> from distsgd import AsyncSGD, Cluster, problem, train
        >>> model, data, validation_data = problem("quadratic:dim=20,noise=0.1")
        >>> cluster = Cluster.local(workers=2, backend="threads")
        >>> how = {"validation_data": validation_data, "verbose": False, "steps": 50}
        >>> result = train(model, data, AsyncSGD(), cluster=cluster, **how)
        >>> result.metrics["test_loss"] < 1.0
        True

    Raises:
        UserError: a name or an option is unknown, or the model is not for these data.
    """
    a_text(dataset=dataset)
    check_values(RunOptions, {"seed": seed})
    if model is not None:
        a_text(model=model)
    require_tensorflow()
    use_tensorflow()
    found = load(dataset)
    recipe = ModelRecipe.named(name_for(model, found.kind, found.model), found.shape, found.classes, seed)
    return recipe.build(), found.train, found.test


def try_on_a_batch(job: Job, model: Any) -> None:
    """Try the Keras model of a job on a batch of its data, and add the findings to its recipe.

    Raises:
        UserError: the model cannot be trained on these data, not in a simulation, or not with XLA.
    """
    if job.cluster.simulated is not None:
        job.cluster.placement.back_end.refuse_loops(model)
    if job.cluster.task is None or job.cluster.task.job != "ps":  # a ps task needs no data
        batches = first_batches(
            job.train, job.test, job.options.batch_size // job.devices_per_worker, job.cluster.workers
        )
        if isinstance(job.train, Sharded) and job.cluster.workers > 1:
            check_order(job.train.whole, job.options.seed, job.cluster.placement.in_process)
        gpu = bool(gpus())
        xla = job.compiles(gpu) and job.cluster.simulated is None
        with using(job.recipe.settings), _naming_examples(job, model):
            job.recipe = try_out(
                job.recipe,
                model,
                *batches,
                xla=("GPU" if gpu else "CPU") if xla else "",
                decays=bool(weight_decay_of(job.scheme)),
            )
            if job.codec.spreads and (unused := unconnected(job.recipe.flat(model), batches[0])):
                job.warnings.append(moves_unused([model.trainable_variables[i].path for i in unused]))
        weigh(job, sizes_vary=job.cluster.workers > 1 and sizes_vary(job.train, job.cluster.workers))
        if xla and job.recipe.without_xla and job.options.jit == "on":
            raise UserError(f"{job.recipe.without_xla}. Leave jit out, or change the model. Received: jit='on'")
        if xla and job.recipe.without_xla:
            job.warnings.append(f"{job.recipe.without_xla}. Workers compute without XLA")
        if job.regions and job.recipe.statistics:  # it would travel to the global server in each round
            raise UserError(
                f"{job.regions} regions with a ps task each keep no state beside the parameters, such as that of "
                f"batch normalisation: choose a model without, or leave ps out. Received: ps={job.ps}"
            )


def moves_unused(paths: Sequence[str]) -> str:
    """Return the warning that variables without a gradient move with the others of their block."""
    return (
        f"the loss does not depend on {', '.join(paths)}, but blocks of the cosine transform reach from a variable "
        "into the next, so that some elements move: set trainable=False on the layer"
    )


@contextmanager
def _naming_examples(job: Job, model: Any) -> Iterator[None]:
    """Let an error of the trial name the bad example of arrays, and the worker that would train on it.

    A label between two classes, which a sparse loss cuts off without an error, is refused after the trial.
    """
    read = [("data", job.train, True), ("validation_data", job.test, False)]
    read = [(role, arrays, training) for role, arrays, training in read if isinstance(arrays, tuple)]

    def place(row: int, role: str, training: bool) -> str:
        owner = "worker" if job.options.participation is None else "client"
        return f"example {row} of {role}{of_worker(row, job.plan.shards(), owner) if training else ''}"

    try:
        yield
    except UserError as error:
        for role, arrays, training in read:
            row = bad_example(arrays, partial(fails, model, role=role, training=training))
            if row is not None:
                raise UserError(f"{error}. The fault is in {place(row, role, training)}") from None
        raise
    for role, arrays, training in read:
        if len(arrays) > 1 and (found := between_classes(model.loss, arrays[1])):
            raise UserError(
                f"the loss takes a class as a whole number. Received: {found[1]:g} in {place(found[0], role, training)}"
            )


def check_kinds(scheme: Any, cluster: Any, callbacks: Any, usage: str = USAGE) -> None:
    """Raise `UserError` for arguments of another type than `train` takes, with the call as it should be."""
    check_kind(scheme, usage)
    if cluster is not None and not isinstance(cluster, Cluster):
        raise UserError(f"cluster must be a Cluster, as in cluster=Cluster.local(workers=4). Received: {cluster!r}")
    for callback in callbacks:
        if not isinstance(callback, Callback | keras.callbacks.Callback):
            raise UserError(
                "callbacks must be a list of distsgd.common.Callback and keras.callbacks.Callback objects. Received: "
                f"{type(callback).__module__}.{type(callback).__name__}"
            )
    check_keras_callbacks(callbacks)


def _hooks(job: Job, model: Any, callbacks: Sequence[Any]) -> tuple[list[Callback], KerasCallbacks | None]:
    """Return the subscribers to events, with one that calls Keras' own callbacks; and that one, None without these."""
    hooks = [callback for callback in callbacks if isinstance(callback, Callback)]
    others = [callback for callback in callbacks if not isinstance(callback, Callback)]
    if not others or not job.cluster.evaluates:
        return hooks, None
    job.shows_centers = True
    params = {"epochs": job.options.epochs, "steps": job.steps, "verbose": 0}
    keras_hook = KerasCallbacks(others, job.recipe.flat(model), job.run_dir, params)
    return [*hooks, keras_hook], keras_hook
