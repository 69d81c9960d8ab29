"""`train`: one call from a model, data and an algorithm to a result."""

from __future__ import annotations

import contextlib
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cluster.cluster import Cluster
from .cluster.fingerprint import class_digest, data_digest, identity, model_digest
from .contract.scheme import Scheme
from .engine.flat_model import FlatModel
from .errors import CannotWrite, Interrupted, UserError, at_least, at_most, fraction, not_negative, one_of, positive
from .files import Lock, in_one_line, read_json
from .launch.launcher import launch
from .launch.listener import Audience
from .problems.dataset import is_arrays, leaves, num_examples, split_off, weighted
from .problems.models import ModelRecipe, plain
from .problems.trial import telling, try_out
from .record import checkpoint
from .record.callbacks import Callback, CallbackList
from .record.display import Display
from .record.run_directory import RecordMode, RunRecord, new_run_dir
from .run.job import Job
from .run.options import Recovery

MAX_SEED = 2**32 - 1  # what NumPy and Keras take

MAX_STEPS = 10**12  # of a worker: more than any run does, and whatever counts them has room

CALLBACK_ROOM = 100  # events may wait for the callbacks before those of progress are thinned


@dataclass(frozen=True)
class Result:
    """What a run produced.

    Attributes:
        model: the Keras model, with the weights of the center.
        history: metrics of the center over time: `seconds`, `version`, `examples`, `test_loss`, ...
        metrics: the content of result.json.
        run_dir: where everything else is.
    """

    model: Any
    history: dict[str, list[Any]]
    metrics: dict[str, Any]
    run_dir: Path


def train(
    model: Any,
    data: Any,
    scheme: Scheme,
    *,
    cluster: Cluster | None = None,
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int = 32,
    validation_data: Any = None,
    validation_split: float = 0.0,
    class_weight: Mapping[int, float] | None = None,
    seed: int = 0,
    run_dir: str | Path | None = None,
    verbose: bool = True,
    schedule: Sequence[int] = (),
    clip_norm: float | None = None,
    l2: float = 0.0,
    ema_decay: float | None = None,
    recovery: Recovery | None = None,
    callbacks: Sequence[Callback] = (),
    stop_at_version: int | None = None,
    stop_at_accuracy: float | None = None,
    tensorboard: bool = False,
    record: RecordMode = "full",
) -> Result:
    """Train a compiled Keras model with a distributed algorithm.

    On several machines, start the same script on each of them, with `cluster=Cluster.from_tf_config()`,
    `Cluster.from_slurm()` or `Cluster.at(...)`: each call runs one task, a ps just serves, and returns (or raises) when
    the whole run has ended. Where `cluster.evaluates` is true (the chief, or the evaluator task if there is one), the
    model then has the weights of the center, and `run_dir` all the results; elsewhere the model is left as it was, and
    `run_dir` holds the log of that task.

    Args:
        model: a built Keras 3 model, compiled with a loss. Its optimizer is not used. It receives the weights of the
            center at the end. Refused are models with a `train_step` of their own, with constraints on trainable
            variables, with trainable variables other than float32, or that train in float16.
        data: (x, y) or (x, y, sample_weight) of NumPy arrays, possibly nested as the model takes them; each worker
            trains on its own shard. Or a function that returns a `tf.data.Dataset` of batches of `batch_size`: with one
            parameter it is given a `tf.distribute.InputContext` and does the sharding, without parameters
            every worker takes its share of the batches. One batch is tried before anything is started.
        scheme: the algorithm, for instance `Downpour(communication_period=5)`.
        cluster: where to run; the default is `Cluster.local()`, 1 ps and 2 workers in processes.
        epochs: passes over the data.
        steps: local steps of each worker, instead of `epochs`.
        batch_size: examples of one local step.
        validation_data: (x, y) or (x, y, sample_weight) of arrays, or a function that returns a `tf.data.Dataset`, on
            which the center is evaluated with the model's own metrics.
        validation_split: without `validation_data`, this fraction of the arrays is that, taken from their end.
        class_weight: a weight for the examples of each class, by its number; 1 for those that are not named.
        seed: of shards and batches.
        run_dir: folder of the record; a fresh one in `runs/` if not given.
        verbose: show progress.
        schedule: threads only: the workers whose rounds come one after the other, so that staleness is an input.
        clip_norm: gradients longer than this, as one vector, are shortened to it.
        l2: adds l2/2 |x|² to the loss.
        ema_decay: keep an exponential moving average of the center, evaluate it, and give it to the model at the end.

        recovery: checkpoints, restarts, and what else the run does about faults.
        callbacks: told of the run as it goes on; see `distsgd.common.hooks`.
        stop_at_version: end the run after so many updates (a few more may slip through).
        stop_at_accuracy: end the run when the center has this accuracy on the validation data.
        tensorboard: write summaries of the center to `tb/` in the run directory.
        record: "full" keeps every event, 48 bytes each and as much again in `trace.npz` at the end; "off" keeps what
            they add up to, for runs of days.

    Raises:
        UserError: something in the input; nothing was started.
        KeyboardInterrupt: Ctrl-C, after all processes have ended.
        DistsgdError: the run failed; `result.json` in the run directory says how.
    """
    _check_kinds(scheme, cluster, recovery, callbacks)
    cluster = cluster or Cluster.local(workers=2 if scheme.gate.exchanges else 1)
    if run_dir == "":
        raise UserError("run_dir must not be empty; leave it out for a fresh folder in runs/")
    data, validation_data = _prepared(data, validation_data, validation_split, class_weight)
    job = make_job(
        scheme,
        ModelRecipe.of(model),
        data,
        validation_data,
        cluster,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        run_dir=Path(run_dir) if run_dir is not None else new_run_dir(scheme.name),
        schedule=schedule,
        clip_norm=clip_norm,
        l2=l2,
        ema_decay=ema_decay,
        recovery=recovery,
        stop_at_version=stop_at_version,
        stop_at_accuracy=stop_at_accuracy,
        tensorboard=tensorboard,
        record=record,
    )
    if cluster.task is None or cluster.task.job != "ps":  # a ps needs no data
        job.recipe = try_out(job.recipe, model, *_batches(job))
    log, error = run(job, describe(job, dataset="own data", model=model.name), verbose, model, callbacks)
    metrics = log.finish(error)
    if error is not None:
        raise error
    return Result(model, log.history(), metrics, job_dir(job))


def _check_kinds(scheme: Any, cluster: Any, recovery: Any, callbacks: Any) -> None:
    """Raise `UserError` for arguments of another type than `train` takes."""
    if isinstance(scheme, type) and issubclass(scheme, Scheme):
        raise UserError(f"scheme must be an algorithm, not its class: write {scheme.__name__}(). Received: {scheme}")
    if not isinstance(scheme, Scheme):
        received = repr(scheme) if isinstance(scheme, str) else type(scheme).__name__
        raise UserError(
            "scheme must be an algorithm such as Downpour(), and x and y are one argument: "
            f"train(model, (x, y), Downpour()). Received: {received}"
        )
    for name, value, kind, example in (
        ("cluster", cluster, Cluster, "Cluster.local(workers=4)"),
        ("recovery", recovery, Recovery, "Recovery(max_restarts=5)"),
    ):
        if value is not None and not isinstance(value, kind):
            raise UserError(f"{name} must be a {kind.__name__}, as in {name}={example}. Received: {value!r}")
    for callback in callbacks if isinstance(callbacks, list | tuple) else [callbacks]:
        if not isinstance(callback, Callback):
            raise UserError(
                "callbacks must be a list of distsgd.common.Callback; Keras' own act on a loop that is not here: use "
                "stop_at_accuracy, stop_at_version, tensorboard, or a Callback that sets stop_training. Received: "
                f"{type(callback).__module__}.{type(callback).__name__}"
            )


def _prepared(data: Any, validation: Any, split: float, class_weight: Mapping[int, float] | None) -> tuple[Any, Any]:
    """Training and validation data, after what Keras' `fit` does with arrays before it trains."""
    fraction(validation_split=split)
    if callable(data):
        if split or class_weight:
            raise UserError("validation_split and class_weight need arrays: a data function can do both itself")
        return data, validation
    data = _arrays(data, "data")
    if split and validation is None:
        data, validation = split_off(data, split)
    return weighted(data, class_weight) if class_weight else data, validation


def _batches(job: Job) -> tuple[Any, Any]:
    """A batch of the training data, as large as one of a tower, and one of the validation data if there are any."""
    size = job.batch_size // job.towers
    train = _dataset(job.train, job.cluster.workers) if callable(job.train) else job.train
    test = _dataset(job.test) if callable(job.test) else job.test
    return _batch(train, size), None if test is None else _batch(test, size)


def _batch(data: Any, size: int) -> Any:
    """So many examples of arrays, or of the first batch of a data set."""
    import keras

    if isinstance(data, tuple):
        return telling(data, size)
    try:
        batch = next(iter(data), None)
    except Exception as error:
        raise UserError(f"the first batch of the data function cannot be read: {plain(error)}") from None
    if not (isinstance(batch, tuple) and len(batch) in (2, 3)):
        raise UserError(
            "the data function must return a tf.data.Dataset of (x, y) or (x, y, sample_weight). Received: "
            f"{'no batch' if batch is None else type(batch).__name__}"
        )
    return keras.tree.map_structure(lambda leaf: leaf[:size], batch)


def make_job(
    scheme: Scheme,
    recipe: ModelRecipe,
    train_data: Any,
    test_data: Any,
    cluster: Cluster,
    *,
    epochs: int,
    steps: int | None,
    batch_size: int,
    seed: int,
    run_dir: Path,
    schedule: Sequence[int] = (),
    clip_norm: float | None = None,
    l2: float = 0.0,
    ema_decay: float | None = None,
    recovery: Recovery | None = None,
    stop_at_version: int | None = None,
    stop_at_accuracy: float | None = None,
    tensorboard: bool = False,
    record: RecordMode = "full",
) -> Job:
    """Check everything that can be checked before anything is started.

    Raises:
        UserError: in one line, what is wrong.
    """
    from .run.job import Job

    at_least(1, epochs=epochs, batch_size=batch_size, **({} if steps is None else {"steps": steps}))
    at_least(0, seed=seed)
    at_most(MAX_SEED, seed=seed)
    scheme.check(cluster.workers)
    _check_tasks(scheme, cluster, recovery or Recovery())
    if cluster.task is not None and bool(cluster.task.addresses.ps) != scheme.gate.uses_ps:
        need = "needs a ps: give --ps_hosts" if scheme.gate.uses_ps else "has no ps: leave --ps_hosts out"
        raise UserError(f"{scheme.name} {need}. Received: {cluster.task.addresses.as_dict()}")
    one_of(("full", "off"), record=record)
    not_negative(l2=l2)
    if stop_at_version is not None:
        at_least(1, stop_at_version=stop_at_version)
    if stop_at_accuracy is not None:
        fraction(stop_at_accuracy=stop_at_accuracy)
    if not scheme.gate.uses_ps and (stop_at_version is not None or stop_at_accuracy is not None):
        raise UserError("a run without a parameter server cannot be stopped early: it does all its steps")
    if clip_norm is not None:
        positive(clip_norm=clip_norm)
    if ema_decay is not None:
        fraction(ema_decay=ema_decay)
    towers = cluster.towers or scheme.default_towers
    if batch_size % towers:
        raise UserError(
            f"batch_size must be a multiple of the towers of a worker. Received: batch_size={batch_size}, "
            f"towers={towers}"
        )
    if schedule and cluster.backend != "threads":
        raise UserError("a schedule needs the threads back end: Cluster.local(..., backend='threads')")
    if any(worker not in range(cluster.workers) for worker in schedule):
        raise UserError(f"schedule names workers below {cluster.workers}. Received: {list(schedule)}")
    if callable(train_data):
        train_data = _sharding(train_data)
        if steps is None:
            steps = epochs * _steps_of_epoch(train_data, cluster.workers)
    else:
        train_data = _arrays(train_data, "data")
        shard = num_examples(train_data) // cluster.workers
        if batch_size > shard:
            raise UserError(
                f"batch_size must not be larger than the shard of a worker, {shard} examples "
                f"({num_examples(train_data)} for {cluster.workers} workers). Received: batch_size={batch_size}"
            )
        steps = steps or epochs * (shard // batch_size)
    at_most(MAX_STEPS, steps=steps)
    if test_data is not None and not callable(test_data):
        test_data = _arrays(test_data, "validation_data")
    own_dir = run_dir if cluster.evaluates else run_dir / str(cluster.task)
    return Job(
        scheme=scheme,
        recipe=recipe,
        train=train_data,
        test=test_data,
        cluster=cluster,
        batch_size=batch_size,
        seed=seed,
        steps=steps,
        run_dir=own_dir,
        schedule=tuple(schedule),
        clip_norm=clip_norm,
        l2=l2,
        ema_decay=ema_decay,
        recovery=recovery or Recovery(),
        stop_at_version=stop_at_version,
        stop_at_accuracy=stop_at_accuracy,
        tensorboard=tensorboard,
        record=record,
        legs=_legs(_source(recovery.resume, cluster) if recovery and recovery.resume else own_dir, steps),
    )


def _check_tasks(scheme: Scheme, cluster: Cluster, recovery: Recovery) -> None:
    if cluster.task is None and cluster.ps > 1 and not scheme.gate.uses_ps:
        raise UserError(f"{scheme.name} has no parameter server: leave ps out. Received: ps={cluster.ps}")
    if recovery.min_workers is not None and recovery.min_workers > cluster.workers:
        raise UserError(
            f"min_workers must be at most the workers, {cluster.workers}. Received: min_workers={recovery.min_workers}"
        )


def _legs(before: Path, steps: int) -> list[int]:
    """Steps of the runs that this one goes on from: their last rounds may have been shorter."""
    try:
        if not checkpoint.found(before):
            return []
    except OSError as error:
        raise UserError(f"cannot use the folder {before}: {error.strerror}") from None
    config = read_json(before / "config.json")
    return [leg for leg in (*config["legs"], config["steps_per_worker"]) if leg < steps]


def _source(resume: Path, cluster: Cluster) -> Path:
    """Where a run directory has the checkpoints: beside the results, or with a chief that does not evaluate."""
    return resume if cluster.task is None or not cluster.task.separate_evaluator else resume / "worker-0"


def _arrays(data: Any, name: str) -> tuple[Any, ...]:
    """(x, y) or (x, y, sample_weight) as a tuple; `UserError` for anything else."""
    if not (isinstance(data, tuple | list) and len(data) in (2, 3) and is_arrays(tuple(data))):
        kinds = sorted({_kind(leaf) for leaf in leaves(data)})
        raise UserError(
            f"{name} must be (x, y) or (x, y, sample_weight) of NumPy arrays, or a function that returns a "
            f"tf.data.Dataset. Received: {type(data).__name__} of {', '.join(kinds) or 'nothing'}"
        )
    wrong = sorted({str(leaf.dtype) for leaf in leaves(data) if leaf.dtype.kind in "OMmV"})
    if wrong:
        raise UserError(f'{name} must hold numbers, as after array.astype("float32"). Received: {", ".join(wrong)}')
    if not num_examples(data):
        raise UserError(f"{name} must hold examples. Received: arrays of length 0")
    return tuple(data)


def _kind(leaf: Any) -> str:
    return f"{type(leaf).__module__.split('.')[0]}.{type(leaf).__name__}".removeprefix("builtins.")


def _sharding(make: Callable[..., Any]) -> Callable[[Any], Any]:
    """A data function of an InputContext, whatever the user's takes."""
    if inspect.signature(make).parameters:
        return make
    return lambda context: _checked(make()).shard(context.num_input_pipelines, context.input_pipeline_id)


def _checked(dataset: Any) -> Any:
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        raise UserError(f"the data function must return a tf.data.Dataset. Received: {_kind(dataset)}")
    return dataset


def _dataset(make: Callable[..., Any], workers: int | None = None) -> Any:
    """What a data function returns, for the first of so many workers or for the evaluation."""
    import tensorflow as tf

    try:
        return _checked(make(tf.distribute.InputContext(workers, 0, workers)) if workers else make())
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the data function fails: {plain(error)}") from None


def _steps_of_epoch(make: Callable[..., Any], workers: int) -> int:
    count = int(_dataset(make, workers).cardinality())
    if count <= 0:
        raise UserError("the length of the tf.data.Dataset is not known: give steps=, local steps of each worker")
    return count


def describe(job: Job, dataset: str, model: str) -> dict[str, Any]:
    """The configuration of a run, as it is written and shown."""
    return {
        "algorithm": job.scheme.name,
        "hyperparameters": {
            name: value if not callable(value) else repr(value) for name, value in vars(job.scheme).items()
        },
        "backend": job.cluster.backend,
        "workers": job.cluster.workers,
        "ps": job.cluster.ps if job.uses_ps else 0,
        "isolation": job.cluster.isolation,
        "dataset": dataset,
        "model": model,
        "batch_size": job.batch_size,
        "towers": job.towers,
        "clip_norm": job.clip_norm,
        "l2": job.l2,
        "ema_decay": job.ema_decay,
        "steps_per_worker": job.steps,
        "legs": list(job.legs),
        "seed": job.seed,
        "record": job.record,
    }


def job_dir(job: Job) -> Path:
    """The run directory of a job that was made by `make_job`."""
    return job.run_dir or Path()


def run(
    job: Job,
    config: dict[str, Any],
    verbose: bool,
    model: Any = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[RunRecord, BaseException | None]:
    """Run a job; returns its record and what went wrong, if anything did.

    With `model`, threads live in this process, and the model receives the center.
    """
    if job.cluster.task is not None:
        job.identity = identity(config, job.cluster.task, _own(job, model))
        job.program = uuid.uuid4().hex
    lock = Lock(job_dir(job))  # until the record is finished
    try:
        said = _resume(job, job.recovery.resume) if job.recovery.resume is not None else []
        said += checkpoint.tidy(job_dir(job))
        record = RunRecord(job_dir(job), config, job.cluster.task, lock)
        hooks = CallbackList(callbacks, config, job_dir(job))
    except BaseException:
        lock.release()
        raise
    display = Display(config)
    audience = _audience(record, hooks, display, verbose)
    record.tell = audience.tell
    error: BaseException | None = None
    try:
        with display if verbose else contextlib.nullcontext(), audience:
            for message in said:
                audience.tell({"event": "warning", "message": message})
            if job.cluster.task is not None and verbose:
                display.task(job.cluster.task, job.cluster.wait_seconds)
            if model is not None and job.cluster.backend == "threads":
                from .launch.threads import run_threads

                run_threads(job, lambda **event: audience.tell(event), job.recipe.flat(model))
            else:
                launch(job, job_dir(job), audience.tell)
        if record.unwritten:
            raise CannotWrite("; ".join(record.unwritten))
        if model is not None and job.cluster.evaluates:
            _load_center(job.recipe.flat(model), job_dir(job))
    except Interrupted as signal:
        error = signal
    except KeyboardInterrupt:
        error = Interrupted(2)
    except Exception as problem:
        error = in_one_line(problem)
    return record, error


def _audience(record: RunRecord, hooks: CallbackList, display: Display, verbose: bool) -> Audience:
    """Who is told of a run: callbacks, the record, and the display if it is wanted. The others hear who is late."""
    audience = Audience(announce=display.console.print)
    disk = f"the disk of {record.run_dir}"

    def tell(name: str, seconds: float) -> None:
        text = f"{name} cannot keep up, and is {seconds:.0f} s behind: it may be told of some progress only"
        audience.tell({"event": "warning", "message": text})

    if hooks.callbacks:
        audience.add(hooks.on_event, hooks.slowest, room=CALLBACK_ROOM, on_late=lambda s: tell(hooks.slowest(), s))
    audience.add(record.on_event, lambda: disk, on_late=lambda s: tell(disk, s))
    if verbose:
        audience.add(display.on_event, lambda: "the display", room=0)
    return audience


def _own(job: Job, model: Any) -> dict[str, Any]:
    """What the configuration does not say of a run, and its tasks must have in common."""
    recovery = {name: getattr(job.recovery, name) for name in ("max_restarts", "min_workers", "on_nan")}
    own: dict[str, Any] = {"recovery": recovery, "source": class_digest(type(job.scheme))}
    if model is not None:
        own |= {"model": model_digest(model), "data": data_digest((job.train, job.test))}
        own["weights that do not train"] = data_digest(FlatModel(model).frozen_values())  # the chief sends the others
    return own


def _resume(job: Job, source: Path) -> list[str]:
    """Copy what the run goes on from: the chief needs the checkpoint, an evaluator elsewhere the record."""
    if job.cluster.is_chief:
        return checkpoint.take_over(_source(source, job.cluster), job_dir(job))
    if job.cluster.evaluates:
        checkpoint.take_over_record(source, job_dir(job))
    return []


def _load_center(model: FlatModel, run_dir: Path) -> None:
    import numpy as np

    with np.load(run_dir / "center.npz") as saved:
        model.load(saved["average" if "average" in saved else "center"], saved["state"])
