"""How a run ends: with its last update, and for the right reason."""

import contextlib
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import AllReduce, AsyncSGD, Hogwild, LocalSGD, Serial, SyncSGD
from distsgd.common import Cluster, train
from distsgd.common.data.models import ModelRecipe
from distsgd.common.errors import CannotWrite, Diverged, TaskFailed, WaitTimeout
from distsgd.common.record.callbacks import Callback
from distsgd.common.record_format import EVENTS
from distsgd.common.replay.reference import gradients
from distsgd.common.server.failures import failed_step, is_absence, own_failure
from distsgd.common.tasks import worker_recovery as recovery
from distsgd.common.tasks.graph import TaskGraph
from distsgd.common.tasks.observer import Observer
from distsgd.common.tasks.options import Recovery
from distsgd.common.tasks.worker_calls import WorkerCalls
from distsgd.common.tasks.worker_loop import WorkerLoop
from distsgd.common.worker.flat_model import FlatModel
from distsgd.common.worker.replica import Stream
from runs import DIGITS, SPOILED, job_of, patience, record, spoiled

LIMIT = 60.0  # seconds for what must happen


class Tells(Callback):
    """Sets an event when the center has had that number of updates."""

    def __init__(self, version):
        self.version, self.reached = version, threading.Event()

    def on_test_end(self, logs):
        if logs["version"] >= self.version:
            self.reached.set()


def held_up(worker, release):
    """A data function: one worker has no batch until it is released."""

    def make(context):
        def wait():
            release.wait(LIMIT)
            return np.int32(0)

        def delayed(*batch):
            with tf.control_dependencies([tf.numpy_function(wait, [], tf.int32, stateful=True)]):
                return tuple(tf.identity(part) for part in batch)

        batches = tf.data.Dataset.from_tensor_slices(DIGITS.train).repeat().batch(8, drop_remainder=True)
        return batches.map(delayed) if context.input_pipeline_id == worker else batches

    return make


def softmax():
    return ModelRecipe.named("softmax", (64,), 10, 0).build()


def metrics_of(scheme, data, workers, run_dir, **options):
    """Train a linear model on threads; return the metrics of the run."""
    how = {"batch_size": 8, "run_dir": run_dir, "verbose": False} | options
    return train(softmax(), data, scheme, cluster=Cluster.local(workers, backend="threads"), **how).metrics


@pytest.mark.rotating
def test_a_run_with_backup_workers_ends_with_its_last_update(tmp_path):
    """A late worker once worked off all its rounds alone, to be dropped: up to a fifth of the time of a run."""
    tells = Tells(20)
    data, scheme = held_up(2, tells.reached), SyncSGD(backup_workers=1)
    result = metrics_of(scheme, data, 3, tmp_path, steps=20, callbacks=[tells])
    trace = dict(np.load(tmp_path / "trace.npz"))
    assert np.bincount(trace["worker"], minlength=3).tolist() == [20, 20, 0]
    assert trace["accepted"].all()
    assert (result["updates"], result["steps"], result["dropped"]) == (20, 40, 0)


# What is not finite, where no ps refuses it.


def without_the_spoiled(workers, learning_rate):
    """The center by the book when a mean gradient that is not finite is left out, and how many were."""
    gradient = gradients.mlp_gradient(*SPOILED, [64, 10])
    center, bad = FlatModel(softmax()).pack().astype(np.float64), 0
    for t in range(40):
        rows = [np.arange(k, 64, workers).reshape(-1, 8)[t % (8 // workers)] for k in range(workers)]
        with np.errstate(invalid="ignore"):
            mean = np.mean([gradient(center, batch) for batch in rows], axis=0)
        if np.isfinite(mean).all():
            center = center - learning_rate * mean
        else:
            bad += 1
    return center, bad


def job_on(data, scheme, workers, run_dir, **recovery):
    return job_of(scheme, workers, data=data, run_dir=run_dir, recovery=Recovery(**recovery))


@contextlib.contextmanager
def looping(job):
    """Give the prepared loop of worker 0, alone with its session."""
    graph = TaskGraph(job, [0])
    with tf.compat.v1.Session(graph=graph.graph) as session:
        loop = WorkerLoop(job, session, graph, 0, lambda **_: None)
        loop.prepare()
        yield loop, session


@pytest.mark.parametrize(("scheme", "workers"), [(Serial(), 1), (AllReduce(), 2)], ids=["serial", "all_reduce"])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_step_that_is_not_finite_is_left_out_by_all_alike(scheme, workers, tmp_path):
    """Once it went into the center, and the run ended as completed."""
    expected, bad = without_the_spoiled(workers, scheme.learning_rate)
    result = metrics_of(scheme, spoiled, workers, tmp_path, steps=40, recovery=Recovery(on_nan="drop"))
    assert bad == (5 if workers == 1 else 10)
    assert result["recovery"]["refused"] == {f"worker {k}": bad for k in range(workers)}
    np.testing.assert_allclose(np.load(tmp_path / "center.npz")["center"], expected, rtol=1e-4, atol=1e-5)
    if workers == 1:
        assert result["updates"] == 40 - bad


@pytest.mark.parametrize(("workers", "in_place"), [(1, False), (1, True), (2, False)])
@pytest.mark.rotating
def test_a_message_that_is_not_finite_is_dropped_without_a_lock_too(workers, in_place, monkeypatch, tmp_path):
    """It once reached the center: without a lock nothing looked at it."""
    monkeypatch.setattr("distsgd.common.tasks.graph.IN_PLACE_FLOATS", 0 if in_place else 1 << 40)
    result = metrics_of(Hogwild(), spoiled, workers, tmp_path, steps=40, recovery=Recovery(on_nan="drop"))
    center = np.load(tmp_path / "center.npz")["center"]
    assert sum(result["recovery"]["refused"].values()) == result["dropped"] == (5 if workers == 1 else 10)
    assert (result["steps"], result["updates"]) == (40 * workers, 40 * workers - result["dropped"])
    assert np.isfinite(center).all()
    if workers == 1:
        expected, bad = without_the_spoiled(1, Hogwild().learning_rate)
        assert bad == 5
        np.testing.assert_allclose(center, expected, rtol=1e-4, atol=1e-5)


def test_a_run_alone_ends_as_diverged_with_a_finite_center(tmp_path):
    job = job_on(spoiled, Serial(), 1, tmp_path)
    with looping(job) as (loop, session):
        with pytest.raises(Diverged, match=r"gradient of worker 0 was not finite in its round 0, at version 35"):
            loop.run()
        loop.state.end()
        (center,) = session.run(loop.calls.graph.operations["_snapshot"].fetches["vectors"]["center"])
    assert np.isfinite(center).all()
    assert not np.array_equal(center, loop.calls.graph.initial[0])


@pytest.mark.parametrize("on_nan", ["drop", "stop"])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_center_that_overflowed_is_never_a_completed_run(on_nan, tmp_path):
    """Each gradient is finite; what the first step makes of it is not."""
    large = 1e3 * DIGITS.train[0], DIGITS.train[1]
    with pytest.raises(Diverged):
        metrics_of(Serial(learning_rate=3e38), large, 1, tmp_path, steps=20, recovery=Recovery(on_nan=on_nan))
    assert json.loads((tmp_path / "result.json").read_text())["outcome"] == "diverged"


def test_the_last_center_is_on_disk_before_it_is_evaluated(monkeypatch, tmp_path):
    """A signal in evaluations that took longer than the launcher waits had left no center."""

    def last(self, point):
        raise CannotWrite("these evaluations never end")

    monkeypatch.setattr(Observer, "_evaluate_snapshots", last)
    with pytest.raises(CannotWrite, match="never end"):
        metrics_of(AllReduce(), DIGITS.train, 2, tmp_path, steps=4, batch_size=8)
    with np.load(tmp_path / "center.npz") as found:
        assert np.isfinite(found["center"]).all()
    assert (tmp_path / "model.keras").exists()
    assert json.loads((tmp_path / "result.json").read_text())["updates"] == 4


def test_counters_of_steps_count_beyond_sixteen_million(tmp_path):
    """In float32, x + 1 = x from 2**24 on: a schedule stood still there."""
    scheme = Serial(learning_rate=lambda step: 1e-8 * step)
    job = job_on((DIGITS.train[0][:64], DIGITS.train[1][:64]), scheme, 1, tmp_path)
    with looping(job) as (loop, session):
        loop.state.end()
        (clock,) = (v for v in tf.compat.v1.global_variables() if "clock" in v.name)
        loop.calls.set_clock(2**24)
        for _ in range(2):
            rows, event = next(loop.plan.batches(0))
            loop.calls.rounds(event, rows[None])
        assert session.run(clock) == 2**24 + 80


# Errors of a worker's own code are no faults of others.

OWN = """From /job:worker/replica:0/task:1:
Error in user-defined function passed to MapDataset:1 transformation with iterator: Iterator::Root: /data; No such file
\t [[{{node ReadFile}}]]
\t [[StatefulPartitionedCall/IteratorGetNext]]"""
BEFORE_IT_WAS_MADE = """From /job:worker/replica:0/task:1:
Could not find variable v. This could mean that the variable has been deleted. (Could not find resource: ps/v)
\t [[{{function_node __inference_172}}{{node Read/ReadVariableOp}}]]
Additional GRPC error information from remote target /job:ps/replica:0/task:0 while calling RecvTensor:"""
ON_THE_PS = """From /job:ps/replica:0/task:0:
Could not find variable version. (Could not find resource: ps/version)
\t [[{{node Read/ReadVariableOp}}]]"""
WAITED = (
    OWN.replace("worker/replica:0/task:1", "ps/replica:0/task:0")
    + """
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling RecvTensor:
\t [[StatefulPartitionedCall/PartitionedCall/concat_S35]]"""
)
CUT_SHORT = """From /job:worker/replica:0/task:1:
RecvAsync is cancelled.
\t [[{{node Read/ReadVariableOp_S12}}]]"""


def together(*said):
    """As TensorFlow puts what several tasks say of one call."""
    return "\n".join(["=====================", *said, "====================="])


@pytest.mark.parametrize(
    ("kind", "text", "absence"),
    [
        ("NotFoundError", OWN, False),
        ("FailedPreconditionError", OWN, False),
        ("NotFoundError", together(f"NOT_FOUND: {OWN}", f"NOT_FOUND: {WAITED}"), False),
        ("NotFoundError", together(f"NOT_FOUND: {WAITED}", f"NOT_FOUND: {OWN}"), False),
        ("FailedPreconditionError", together(f"FAILED_PRECONDITION: {ON_THE_PS}", f"CANCELLED: {CUT_SHORT}"), True),
        ("FailedPreconditionError", BEFORE_IT_WAS_MADE, True),
        ("FailedPreconditionError", ON_THE_PS, True),
        ("NotFoundError", "Session handle is not found: 3f", True),
        ("UnavailableError", "Socket closed", True),
        ("DeadlineExceededError", "Operation timed out.", True),
        ("UnknownError", OWN, False),
    ],
)
def test_a_file_missing_in_a_worker_s_own_data_is_no_lost_peer(kind, text, absence):
    """These are TensorFlow's words."""
    error = getattr(tf.errors, kind)(None, None, text)
    assert is_absence(error) is absence
    assert ("/data; No such file" in own_failure(error)) is (not absence and kind != "UnknownError")


LABEL = "Received a label value of 7 which is outside the valid range of [0, 3).  Label values: 0 7"


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (
            "InvalidArgumentError",
            f"Graph execution error:\n\n{LABEL}\n\t [[{{{{node loss}}}}]]",
            f"worker 1 failed: {LABEL}",
        ),
        (
            "InvalidArgumentError",
            "Graph execution error:\n\nDetected at node 'x' defined at (most recent call last):\nNode: 'x'\n"
            + together(
                "CANCELLED: From /job:worker/replica:0/task:0:\nRecvAsync is cancelled.",
                f"INVALID_ARGUMENT: From /job:worker/replica:0/task:2:\n{LABEL}\n\t [[{{{{node loss}}}}]]",
            ),
            f"worker 2 failed: {LABEL}",
        ),
        (
            "UnknownError",
            "2 root error(s) found.\n  (0) UNKNOWN: KeyError: 'x'\nTraceback",
            "worker 1 failed: KeyError: 'x'",
        ),
        (
            "NotFoundError",
            "Graph execution error:\n\n/data; No such file\n\t [[{{node ReadFile}}]]",
            "failed: /data; No",
        ),
        ("NotFoundError", OWN, "worker 1 failed: Error in user-defined function passed to MapDataset:1"),
        ("InternalError", "", "worker 1 failed: InternalError"),
        ("InvalidArgumentError", "[refused] a message", ""),
        ("FailedPreconditionError", ON_THE_PS, ""),
        ("AbortedError", "This request was received twice", ""),
        ("CancelledError", "Session was closed. [[{{node x}}]]", ""),
    ],
    ids=str,
)
def test_a_step_that_fails_names_the_worker_and_the_reason_in_one_line(kind, text, told):
    """Of a data function with a class out of range, threads raised a graph's error, and processes told its title."""
    error = getattr(tf.errors, kind)(None, None, text)
    found = failed_step(error, 1)
    assert told in found
    assert bool(told) == bool(found)
    assert "\n" not in found


@pytest.mark.rotating
@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_a_class_out_of_range_in_a_data_function_ends_a_run_in_one_line(backend, warm, tmp_path):
    def batches():
        x, y = DIGITS.train[0][:64], DIGITS.train[1][:64].copy()
        y[56] = 99
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    with pytest.raises(TaskFailed, match=r"a step of worker 1 failed: .* 99 .* \(InvalidArgumentError\)$"):
        train(
            softmax(), batches, AsyncSGD(), cluster=Cluster.local(2, backend=backend), steps=8, batch_size=8,
            run_dir=tmp_path / "run", verbose=False,
        )  # fmt: skip


def test_rejoins_without_progress_take_longer_each_time_and_end(tmp_path, monkeypatch):
    """A fault that comes back at once was answered by rejoining for ever."""
    naps, rejoined = [], []
    monkeypatch.setattr(recovery.time, "sleep", naps.append)
    job = job_on(DIGITS.train, AsyncSGD(), 2, tmp_path, max_restarts=2)
    rule = job.restarts
    calls = SimpleNamespace(
        graph=SimpleNamespace(sync=job.scheme.sync, sees_waiting=job.sees_waiting),
        index=0,
        wait_seconds=60.0,
        reconnect=lambda seconds: None,
    )
    progress = SimpleNamespace(rounds=3)
    worker = recovery.WorkerRecovery(calls, progress, None, None, rule, lambda **event: None)
    worker.join = lambda: rejoined.append(progress.rounds)
    error = tf.errors.UnavailableError(None, None, "Socket closed")
    worker.recover(error)
    progress.rounds += 1
    for _ in range(1 + recovery.ATTEMPTS + 2):
        worker.recover(error)
    with pytest.raises(tf.errors.UnavailableError):
        worker.recover(error)
    assert rejoined == [3] + [4] * (1 + recovery.ATTEMPTS + 2)
    assert naps == sorted(naps)
    assert sum(naps) > 10


TWICE = "From /job:ps/replica:0/task:0:\nThe same RunGraph (Worker) request was received twice. step_id: 7"


@pytest.mark.parametrize("scheme", [AsyncSGD(), SyncSGD()], ids=lambda scheme: scheme.name)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_call_that_was_delivered_twice_ends_no_run(scheme, tmp_path, monkeypatch):
    """Seen in runs of a million updates: TensorFlow's transport repeats a call, and the ps refuses the repetition."""
    calls = iter(range(1000))
    plain = WorkerCalls.rounds

    def sometimes_twice(worker, *arguments, **options):
        result = plain(worker, *arguments, **options)
        if worker.index == 1 and next(calls) in (3, 4, 9):
            raise tf.errors.AbortedError(None, None, TWICE)
        return result

    monkeypatch.setattr(WorkerCalls, "rounds", sometimes_twice)
    run = record(scheme, tmp_path, workers=2, steps=20, backend="threads", hidden=(8,), batch_size=8)
    assert run.result["steps"] == 40
    assert run.error() < 1e-5
    assert np.bincount(run.trace["worker"][run.trace["event"] != EVENTS.index("join")]).tolist() == [20, 20]


@pytest.mark.rotating
def test_a_missing_file_ends_a_run_that_may_restart_its_tasks(warm, tmp_path):
    """Once: 56 rejoins in three minutes, and no word."""

    def batches():
        rows = tf.data.Dataset.from_tensor_slices(DIGITS.train).repeat().batch(8, drop_remainder=True)

        def read(i, batch):
            text = tf.cond(i < 20, lambda: tf.constant(""), lambda: tf.io.read_file("/nowhere/to/be/found"))
            x, y = batch
            return x + tf.cast(tf.strings.length(text), tf.float32), y

        return rows.enumerate().map(read)

    with pytest.raises(
        TaskFailed,
        match=r"worker-\d: a step of worker \d failed: .*/nowhere/to/be/found.* \(NotFoundError\)",
    ):
        train(
            softmax(), batches, AsyncSGD(), cluster=Cluster.local(2, wait_seconds=patience(20)), steps=200,
            batch_size=8, run_dir=tmp_path / "run", recovery=Recovery(max_restarts=3), verbose=False,
        )  # fmt: skip
    assert json.loads((tmp_path / "run" / "result.json").read_text())["recovery"]["restarts"] == {}


def test_a_worker_that_connects_anew_continues_with_its_next_batch():
    """The iterator of a data function went away with the session: a worker that rejoined after the ps had none."""
    graph = tf.Graph()
    with graph.as_default():
        stream = Stream(tf.data.Dataset.range(10), "worker_0")
        (batch,) = stream.batch(None)
    server = tf.distribute.Server.create_local_server()
    with tf.compat.v1.Session(server.target, graph=graph) as session:
        session.run(stream.initialize)
        assert session.run(batch) == 0
    with tf.compat.v1.Session(server.target, graph=graph) as session:
        assert session.run(batch) == 1


# The first round.


@pytest.mark.rotating
def test_local_steps_of_a_first_round_may_take_longer_than_a_wait(tmp_path):
    """Waiting begins when a worker has arrived; it once began with the call, and the first round had no other time."""
    release = threading.Event()
    job = job_on(held_up(0, release), LocalSGD(communication_period=40), 1, tmp_path)
    with looping(job) as (loop, _):
        loop.join()
        loop.state.end()
        loop.calls.wait_seconds = 0.2
        late = threading.Timer(1.5, release.set)
        late.start()
        loop._rounds(lambda: None)
        late.join()
        loop.calls.wait_seconds = 60.0  # of the call for the version
        assert (loop.progress.rounds, loop.progress.steps) == (1, 40)
        assert loop.calls.version() == 1


@pytest.mark.rotating
def test_workers_missing_in_the_first_round_are_named_after_one_wait(tmp_path):
    job = job_on(DIGITS.train, LocalSGD(), 3, tmp_path)
    with looping(job) as (loop, _):
        loop.join()
        loop.calls.wait_seconds = 1.0
        with pytest.raises(WaitTimeout, match=r"worker 0 waited 1 s at the barrier for worker 1, worker 2"):
            loop.run()
        loop.state.end()
