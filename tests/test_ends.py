"""How a run ends: with its last update, and for the right reason."""

import json
import threading

import numpy as np
import pytest

import reference
from distsgd.algorithms import AllReduce, Serial, SyncSGD
from distsgd.common import Cluster, train
from distsgd.common.data import shard_rows
from distsgd.common.errors import Diverged
from distsgd.common.graph import TaskGraph
from distsgd.common.hooks import Callback
from distsgd.common.job import plan
from distsgd.common.loop import WorkerLoop
from distsgd.common.models import FlatModel, ModelRecipe
from distsgd.common.recovery import Recovery
from distsgd.common.training import make_job
from runs import DIGITS

LIMIT = 60.0  # seconds for what must happen


class Tells(Callback):
    """Sets an event when the center has had so many updates."""

    def __init__(self, version):
        self.version, self.reached = version, threading.Event()

    def on_test_end(self, logs):
        if logs["version"] >= self.version:
            self.reached.set()


def held_up(worker, release):
    """A data function: one worker has no batch until it is released."""

    def make(context):
        import tensorflow as tf

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


def test_a_run_with_backup_workers_ends_with_its_last_update(tmp_path):
    """Whoever was late once worked off all its rounds alone, to be dropped: up to a fifth of the time of a run."""
    tells = Tells(20)
    result = train(
        softmax(),
        held_up(2, tells.reached),
        SyncSGD(backup_workers=1),
        cluster=Cluster.local(3, backend="threads"),
        steps=20,
        batch_size=8,
        run_dir=tmp_path,
        callbacks=[tells],
        verbose=False,
    )
    trace = dict(np.load(tmp_path / "trace.npz"))
    assert np.bincount(trace["worker"], minlength=3).tolist() == [20, 20, 0]
    assert trace["accepted"].all()
    assert (result.metrics["updates"], result.metrics["steps"], result.metrics["dropped"]) == (20, 40, 0)


# What is not finite, where no ps refuses it.

SPOILED = (DIGITS.train[0][:64].copy(), DIGITS.train[1][:64])
SPOILED[0][17] = np.nan  # one batch of each epoch of one worker


def job_on(data, scheme, workers, run_dir, **recovery):
    return make_job(
        scheme,
        ModelRecipe.named("softmax", (64,), 10, 0),
        data,
        None,
        Cluster.local(workers, backend="threads"),
        epochs=1,
        steps=40,
        batch_size=8,
        seed=0,
        run_dir=run_dir,
        recovery=Recovery(**recovery),
    )


def without_the_spoiled(job, stop=False):
    """The center by the book when a mean gradient that is not finite is left out, and how many were."""
    gradient = reference.mlp_gradient(*SPOILED, [64, 10])
    shards = [shard_rows(64, k, job.cluster.workers, 0) for k in range(job.cluster.workers)]
    rows = [np.concatenate([batch for batch, _ in plan(job, k)]) for k in range(job.cluster.workers)]
    center, bad = FlatModel(job.recipe.build()).pack().astype(np.float64), 0
    for t in range(40):
        mean = np.mean(
            [gradient(center, shard[batches[t]]) for shard, batches in zip(shards, rows, strict=True)], axis=0
        )
        if np.isfinite(mean).all():
            center = center - job.scheme.learning_rate * mean
        else:
            bad += 1
    return center, bad


@pytest.mark.parametrize(
    ("scheme", "workers", "backend"),
    [(Serial(), 1, "threads"), (AllReduce(), 2, "threads"), (AllReduce(), 2, "processes")],
    ids=["serial", "all_reduce on threads", "all_reduce on processes"],
)
def test_a_step_that_is_not_finite_is_left_out_by_all_alike(scheme, workers, backend, warm, tmp_path):
    """Once it went into the center, and the run ended as completed."""
    with np.errstate(invalid="ignore"):
        expected, bad = without_the_spoiled(job_on(SPOILED, scheme, workers, tmp_path / "plan"))
    result = train(
        softmax(),
        SPOILED,
        scheme,
        cluster=Cluster.local(workers, backend=backend),
        steps=40,
        batch_size=8,
        run_dir=tmp_path / "run",
        recovery=Recovery(on_nan="drop"),
        verbose=False,
    )
    assert bad == (5 if workers == 1 else 10)
    assert result.metrics["recovery"]["refused"] == {f"worker {k}": bad for k in range(workers)}
    np.testing.assert_allclose(np.load(tmp_path / "run" / "center.npz")["center"], expected, rtol=1e-4, atol=1e-5)
    if workers == 1:
        assert result.metrics["updates"] == 40 - bad


def test_a_run_alone_that_is_to_stop_ends_as_diverged_with_a_finite_center(tmp_path):
    import tensorflow as tf

    job = job_on(SPOILED, Serial(), 1, tmp_path)
    graph = TaskGraph(job, [0])
    with tf.compat.v1.Session(graph=graph.graph) as session:
        loop = WorkerLoop(session, graph, 0, lambda **_: None)
        loop.prepare()
        with pytest.raises(Diverged, match=r"gradient of worker 0 was not finite in its round 0, at version 35"):
            loop.run()
        loop.keeper.end(save=False)
        center = session.run(graph.ops["center"])
    assert np.isfinite(center).all()
    assert not np.array_equal(center, graph.initial[0])


@pytest.mark.parametrize("on_nan", ["drop", "stop"])
def test_a_center_that_overflowed_is_never_a_completed_run(on_nan, tmp_path):
    """Each gradient is finite; what the first step makes of it is not."""
    with pytest.raises(Diverged):
        train(
            softmax(),
            (1e3 * DIGITS.train[0], DIGITS.train[1]),
            Serial(learning_rate=3e38),
            cluster=Cluster.local(1, backend="threads"),
            steps=20,
            run_dir=tmp_path,
            recovery=Recovery(on_nan=on_nan),
            verbose=False,
        )
    assert json.loads((tmp_path / "result.json").read_text())["outcome"] == "diverged"


def test_counters_of_steps_go_on_after_sixteen_million(tmp_path):
    """In float32, x + 1 = x from 2**24 on: a schedule stood still there."""
    import tensorflow as tf

    scheme = Serial(learning_rate=lambda step: 1e-8 * step)
    graph = TaskGraph(job_on((DIGITS.train[0][:64], DIGITS.train[1][:64]), scheme, 1, tmp_path), [0])
    with tf.compat.v1.Session(graph=graph.graph) as session:
        loop = WorkerLoop(session, graph, 0, lambda **_: None)
        loop.prepare()
        loop.keeper.end(save=False)
        (clock,) = (v for v in tf.compat.v1.global_variables() if "clock" in v.name)
        loop._run("set_clock", {loop.ops["steps_done"]: 2**24})
        for _ in range(2):
            rows, event = next(plan(loop.job, 0))
            loop.call[event, 1](rows[None])
        assert session.run(clock) == 2**24 + 80
