"""Runs of the code under test, in a form that the NumPy reference can replay."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.common import Cluster, Group
from distsgd.common.contract.scheme import Scheme
from distsgd.common.data.models import ModelRecipe
from distsgd.common.data.named import load
from distsgd.common.data.trial import try_out
from distsgd.common.launch.run import run
from distsgd.common.record.callbacks import Callback
from distsgd.common.record.round_log import load_rounds
from distsgd.common.record_format import EVENTS
from distsgd.common.replay.adapters import TRANSCRIPTIONS
from distsgd.common.replay.recorded import Hyperparameters, RecordedRun, Transcription
from distsgd.common.replay.reference import gradients
from distsgd.common.server.answers import Joined
from distsgd.common.server.trace import ends_round
from distsgd.common.tasks.calls import ObserverCalls
from distsgd.common.tasks.graph import TaskGraph
from distsgd.common.tasks.job import Job, describe, make_job
from distsgd.common.tasks.options import RunOptions
from distsgd.common.tasks.state_calls import StateCalls
from distsgd.common.tasks.worker_calls import WorkerCalls
from distsgd.common.worker.flat_model import FlatModel

DIGITS = load("digits")
HIDDEN = (32, 16)  # layers of three different shapes


def record(
    scheme: Scheme,
    run_dir: Path,
    *,
    workers: int = 3,
    ps: int = 1,
    backend: Any = "processes",
    steps: int = 120,
    batch_size: int = 16,
    seed: int = 0,
    schedule: Sequence[int] = (),
    hidden: Sequence[int] = HIDDEN,
    wait_seconds: float | None = None,
    callbacks: Sequence[Callback] = (),
    devices_per_worker: int | None = None,
    data: Any = DIGITS.train,
    test: Any = None,
    platform: Any = None,
    **options: Any,
) -> RecordedRun:
    """Train a tanh network on digits, and keep everything that a replay needs."""
    model = "mlp:hidden=" + "-".join(map(str, hidden))
    recipe = ModelRecipe.named(model, (64,), 10, seed)
    keras_model = recipe.build()
    cluster = Cluster.local(
        workers, ps=ps, backend=backend, wait_seconds=wait_seconds or patience(30),
        devices_per_worker=devices_per_worker, platform=platform,
    )  # fmt: skip
    options |= {"steps": steps, "batch_size": batch_size, "seed": seed, "run_dir": run_dir, "schedule": schedule}
    options = {"probe": False} | options  # a measurement as long as a small run, which has tests of its own
    job = make_job(scheme, recipe, data, test, cluster, RunOptions(**options))
    in_process = None if backend == "processes" else keras_model
    config = describe(job, "digits", model)
    log, error = run(job, config, verbose=False, model=in_process, callbacks=callbacks)
    result = log.finish(error, picture=False)
    if error is not None:
        raise error
    made = recorded_run(job, run_dir, hidden, result)
    check_rounds(run_dir, made.trace, result)
    return made


def recorded_run(job: Job, run_dir: Path, hidden: Sequence[int], result: dict[str, Any]) -> RecordedRun:
    """Return a run of a tanh network on digits that has ended, as a replay reads it."""
    trace = {}
    if job.options.record == "full":
        with np.load(run_dir / "trace.npz") as file:
            trace = dict(file)
    with np.load(run_dir / "center.npz") as file:
        center = file["center"]
    model = job.recipe.build()
    return RecordedRun(
        **rule_of(job.scheme),
        workers=job.cluster.workers,
        steps=job.steps,
        start=FlatModel(model).pack().astype(np.float64),
        trace=trace,
        center=center,
        gradient=network_gradient(job, [64, *hidden, 10]),
        result=result,
        seed=job.options.seed,
        servers_apart=job.servers_apart,
        shapes=[variable.shape for variable in model.get_weights()],
    )


def job_of(
    scheme: Scheme, workers: int = 2, *, ps: int = 1, backend: Any = "threads", model: Any = "softmax",
    data: Any = DIGITS.train, **options: Any,
) -> Job:  # fmt: skip
    """Return the job of a run on digits, or on other data, by the name of a model or its recipe."""
    recipe = ModelRecipe.named(model, (64,), 10, 0) if isinstance(model, str) else model
    options = {"steps": 40, "batch_size": 8, "seed": 0, "run_dir": Path("nowhere")} | options
    return make_job(scheme, recipe, data, None, Cluster.local(workers, ps=ps, backend=backend), RunOptions(**options))


def rule_of(scheme: Scheme) -> dict[str, Any]:
    """Return what a recorded run says of its algorithm; one without a transcription cannot be replayed."""
    values = Hyperparameters({own.name: getattr(scheme, own.name) for own in fields(scheme)})
    equations = TRANSCRIPTIONS.get(scheme.name, Transcription(lambda run, values: []))
    return {"algorithm": scheme.name, "hyperparameters": values, "equations": equations}


def check_rounds(run_dir: Path, trace: dict[str, np.ndarray], result: dict[str, Any]) -> None:
    """Check that each round of a run on one machine is logged, with ordered timestamps and shares of its time."""
    if spent := result["round"]:
        parts = [spent[name] or 0.0 for name in ("compute", "waiting", "communication", "between")]
        assert min(parts) >= 0, spent
        assert abs(sum(parts) - 1) < 1e-5, spent
    if not trace:
        assert not (run_dir / "rounds.npz").exists()
        assert not (run_dir / "rounds").exists()
        return
    rows = load_rounds(run_dir)
    events = {name: column[ends_round(trace["event"])] for name, column in trace.items()}
    of_rounds, of_events = rows[:, 0], events["worker"]
    if result["backend"] == "simulation":  # rounds are in the order of their replies
        of_rounds, of_events = np.sort(of_rounds), np.sort(of_events)
    assert np.array_equal(of_rounds, of_events)
    if (
        result["backend"] != "simulation"
        and result["outcome"] == "completed"
        and not result["recovery"]["resumed_from"]
    ):
        known = np.where(rows[:, 2:] == -1, rows[:, 2:].max(), rows[:, 2:])
        last = rows[:, [2, 3, 4, 7]].max()  # a run that a callback ends may lack its last replies
        assert result["seconds_training"] == pytest.approx((last - known[:, 0].min()) / 1e6, abs=2e-3)
    for k in np.unique(rows[:, 0]):
        mine = rows[rows[:, 0] == k]
        assert (np.diff(mine[:, 1]) == 1).all()
        stamped = mine[(mine[:, [2, 3, 7]] != -1).all(1)]
        ready, arrived, released = stamped[:, 3], stamped[:, 5], stamped[:, 6]
        arrived = np.where(arrived == -1, ready, arrived)
        released = np.where(released == -1, arrived, released)  # the end of the run let it go, and no message
        moments = np.stack([stamped[:, 2], ready, arrived, released, stamped[:, 7]], 1)
        assert (np.diff(moments.ravel()) >= 0).all(), (k, moments[np.diff(moments, axis=1).min(1) < 0])


def network_gradient(job: Any, sizes: Sequence[int]) -> gradients.Gradient:
    """Return the gradient of worker k's t-th batch of a job on digits."""
    return digits_gradient(sizes, workers=job.cluster.workers, seed=job.options.seed, batch_size=job.options.batch_size)


def digits_gradient(sizes: Sequence[int], **drawn: int) -> gradients.Gradient:
    """Return the gradient of worker k's t-th batch of a tanh network on digits."""
    x, y = DIGITS.train
    return gradients.batch_gradient(gradients.mlp_gradient(x, y, sizes), examples=len(x), **drawn)


def averaged(run: RecordedRun, most: float, period: int = 1) -> np.ndarray:
    """Return the moving average of the replayed means of workers that gossip; rounds have `period` steps."""
    average = run.start
    for number, center in enumerate(run.equations.execute(run, run.hyperparameters)):
        decay = min(most, (1 + number * period) / (10 + number * period))
        average = decay * average + (1 - decay) * center
    return average


class PlayedRun:
    """A run of a `Group` on the batches of `record`: the same network, the same start."""

    def __init__(
        self, scheme: Scheme, *, workers: int = 3, hidden: Sequence[int] = HIDDEN, seed: int = 0, **options: Any
    ):
        model = ModelRecipe.named("mlp:hidden=" + "-".join(map(str, hidden)), (64,), 10, seed).build()
        self.seed = seed
        self.scheme, self.workers, self.start = scheme, workers, FlatModel(model).pack().astype(np.float64)
        self.shapes = [weights.shape for weights in model.get_weights()]
        batch_size = options.pop("batch_size", 16)
        self.gradient = digits_gradient([64, *hidden, 10], workers=workers, seed=seed, batch_size=batch_size)
        self.group = Group(scheme, self._arrays(self.start), workers=workers, seed=seed, **options)
        self.rounds = [scheme.rounds(10**6, 0, k, seed).after(0) for k in range(workers)]
        self.done, self.left = [0] * workers, [0] * workers  # local steps, and those that follow an early message

    def _arrays(self, vector: np.ndarray) -> list[np.ndarray]:
        parts = np.split(vector, np.cumsum([np.prod(shape) for shape in self.shapes])[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @property
    def center(self) -> np.ndarray:
        return np.concatenate([array.ravel() for array in self.group.center])

    def step(self, k: int) -> None:
        point = np.concatenate([array.ravel() for array in self.group.point(k)])
        self.group.step(k, self._arrays(self.gradient(point, k, self.done[k])))
        self.done[k] += 1

    def until_event(self, k: int) -> None:
        """Make the steps of worker k before the one that ends with its next event."""
        length, _ = next(self.rounds[k])
        later = min(length, self.scheme.overlap)
        steps, self.left[k] = self.left[k] + length - later, later
        for _ in range(steps - 1):
            self.step(k)

    def play(self, schedule: Sequence[int]) -> PlayedRun:
        """Play one round of a worker after the other."""
        for k in schedule:
            self.until_event(k)
            self.step(k)
        return self

    def in_turn(self, steps: int) -> PlayedRun:
        """Let the workers make one local step after the other, so many each."""
        for k in list(range(self.workers)) * steps:
            self.step(k)
        return self

    def replay(self, trace: Mapping[str, np.ndarray]) -> PlayedRun:
        """Play the order of a trace; each event must find the recorded version and staleness.

        Where computations are cancelled, the group has already done what the trace has as a pull.
        """
        kept = ends_round(trace["event"])
        for k, event, *recorded in zip(
            *(trace[name][kept].tolist() for name in ("worker", "event", "version", "staleness")), strict=True
        ):
            if self.scheme.sync.cancel_late and EVENTS[event] == "pull":
                assert [self.group.version, self.group.staleness(k)] == [recorded[0], 0]
                self.done[k] += 1
                continue
            self.until_event(k)
            assert [self.group.version, self.group.staleness(k)] == recorded
            self.step(k)
        return self

    def recorded(self, trace: Mapping[str, np.ndarray]) -> RecordedRun:
        """Return the run as a replay reads it, of whole rounds in the order of a trace."""
        return RecordedRun(
            **rule_of(self.scheme),
            workers=self.workers,
            steps=10**4,
            start=self.start,
            trace=dict(trace),
            center=self.center,
            gradient=self.gradient,
            result={"updates": self.group.version, "recovery": {"evicted": []}},
            seed=self.seed,
            shapes=self.shapes,
        )


# Problems small enough to be solved by hand, as Keras models: the "prediction" is the parameters themselves.


def quadratic(start: Sequence[float], curvature: float = 1.0) -> Any:
    """Build a Keras model whose loss is h/2 |x|², whatever the data."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(len(start), use_bias=False)])
    model.compile(loss=lambda y, p: curvature / 2 * keras.ops.sum(p * p, axis=-1))
    model.layers[0].kernel.assign(np.asarray(start, np.float32)[None])
    return model


def linear() -> Any:
    """Build a Keras model whose gradient is y, whatever its five parameters are."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(5, use_bias=False, kernel_initializer="zeros")])
    model.compile(loss=lambda y, p: keras.ops.sum(y * p, axis=-1))
    return model


ONES = (np.ones((64, 1), np.float32), np.zeros((64, 1), np.float32))


# Data that the tasks of a run read from a function: it has to be in a module that they can import.

SPOILED = (DIGITS.train[0][:64].copy(), DIGITS.train[1][:64])
SPOILED[0][17] = np.nan  # one batch of each epoch of one worker


def spoiled(context):
    """Each worker's share in its order, batches of 8."""
    rows = tf.data.Dataset.from_tensor_slices(SPOILED)
    return rows.shard(context.num_input_pipelines, context.input_pipeline_id).batch(8, drop_remainder=True)


def slow_batches(context, milliseconds=100):
    """Return batches of 8 at intervals: a run that lasts until a test ends it leaves the cores to others."""
    from tensorflow.python.data.experimental.ops.testing import sleep

    rows = tf.data.Dataset.from_tensor_slices(DIGITS.train)
    rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id).batch(8, drop_remainder=True)
    return rows.apply(sleep(1000 * milliseconds))


# A run of 48 s, if a test does not end it. A run of 500 rounds has 16 in a call: such a graph takes seconds to build.
LASTING: dict[str, Any] = {"steps": 480, "data": slow_batches, "batch_size": 8}


def patience(seconds: float) -> float:
    """Return the timeout of a task in a test, in seconds: up to five times as long where others keep the machine busy.

    A run on an idle machine answers in less than half of the seconds; with twice as many threads as cores, in as many.
    """
    return seconds * min(5.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 2))


def updates_logged(run_dir: Path) -> int:
    """Return the newest version of the center in the metrics of a run that may still be writing them."""
    try:
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return 0
    return max((row.get("version", 0) for row in rows), default=0)


def wait_until(condition: Callable[[], Any], seconds: float = 300) -> Any:
    """Return the first true value of a condition, polled until then."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return value


def change(folder: Path, name: str, **values: Any) -> None:
    """Put other values into a file of a run directory."""
    path = folder / name
    if name.endswith(".json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
        return
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | values)


class Harness:
    """The graph of a run in one session, for tests that run its operations one by one, in an order of their own."""

    def __init__(
        self,
        scheme: Scheme,
        *,
        workers: int = 2,
        ps: int = 1,
        devices_per_worker: int = 1,
        data: Any = None,
        model: Any = None,
        start: Any = None,
        test: Any = None,
        **options: Any,
    ):
        data = data or DIGITS
        named = "logistic" if data.features else "softmax"
        recipe = ModelRecipe.named(named, data.shape, data.classes, 0)
        cluster = Cluster.local(workers, ps=ps, devices_per_worker=devices_per_worker, backend="threads")
        options = {"epochs": 1, "steps": 10, "batch_size": 8, "seed": 0, "run_dir": Path("nowhere"), **options}
        self.job = make_job(scheme, recipe, data.train, test, cluster, RunOptions(**options))
        flat = None
        if model is not None:
            flat = try_out(ModelRecipe.of(model), model, [array[:2] for array in data.train]).flat(model)
        if start is not None:
            flat = recipe.flat()
            flat.load(start, flat.pack_state())
        self.graph = TaskGraph(self.job, range(workers), flat)
        self.session = tf.compat.v1.Session(graph=self.graph.graph)
        self.state_calls = StateCalls(self.session, self.graph, cluster.wait_seconds)
        self.state_calls.initialize(restoration=1)
        self.observer = ObserverCalls(self.session, self.graph, cluster.wait_seconds)
        operations = self.graph.operations
        self.fetches = {name.lstrip("_"): operation.fetches for name, operation in operations.items()}
        self.fetches |= self.fetches["snapshot"]
        self.fetches |= self.fetches.pop("vectors")
        self.fetches |= {f"drain_{name}": tensor for name, tensor in self.fetches["drain"]._asdict().items()}
        self.fetches |= {f"saved/{name}": tensor for name, tensor in self.fetches["values"].items()}

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def run(self, name: str) -> Any:
        found = self.session.run(self.fetches[name])
        return np.concatenate(found) if isinstance(found, list) else found  # the slices of a vector

    def state(self) -> dict[str, Any]:
        """Return all variables of a checkpoint, and the length of the record."""
        names = [name for name in self.fetches if name.startswith("saved/")]
        return {name: np.array(self.run(name)).tolist() for name in [*names, "recorded"]}

    def worker(self, k: int) -> HarnessWorker:
        return HarnessWorker(self, k)


class HarnessWorker:
    """Worker k of a harness: it takes its slot, and does a round when a test calls for one."""

    def __init__(self, harness: Harness, k: int):
        job, self.harness = harness.job, harness
        self.calls = WorkerCalls(harness.session, harness.graph, k, job.cluster.wait_seconds)
        self.calls.prepare(job.plan.shard(k))
        self.joined = self.join()

    def join(self) -> Joined:
        return self.calls.join()

    def run(self, name: str, seconds: float = 100) -> Any:
        """Run one of its operations, by name."""
        operations = self.calls.operations
        return self.calls.run(operations.get(name) or operations[f"_{name}"], seconds=seconds)

    def round(self, event: str = "exchange", steps: int = 1) -> Any:
        """Do one round on the first rows of its shard; return the loss."""
        return self.calls.rounds(event, np.zeros((1, steps, self.harness.job.options.batch_size), np.int32))[0]

    def starts(self, event: str = "exchange") -> Future:
        """Start a round in a thread of its own; return when its message is logged."""
        before = self.harness.run("recorded")
        future = in_thread(lambda: self.round(event))
        wait_until(lambda: future.done() or self.harness.run("recorded") > before)
        return future


def before(operation: Any) -> set[Any]:
    """Return all operations that must run before an operation, itself included, in its graph."""
    found, left = set(), [operation]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += [*one.control_inputs, *(tensor.op for tensor in one.inputs)]
    return found


def in_thread(action: Callable[[], Any]) -> Future:
    """Start an action in a thread and return its future; a test that fails does not wait for it."""
    future: Future = Future()

    def act() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=act, daemon=True).start()
    return future
