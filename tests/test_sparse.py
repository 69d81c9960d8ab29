"""Hogwild's setting: sparse logistic regression, gathered and scattered, with and without the lock."""

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from sleeping import Sleeping

from distsgd.algorithms import AsyncSGD, Hogwild, Serial
from distsgd.common import Cluster, UserError
from distsgd.common.data.models import ModelRecipe, name_for
from distsgd.common.data.named import load
from distsgd.common.data.recipes import Dataset
from distsgd.common.data.sparse_data import sparsity
from distsgd.common.launch.run import run
from distsgd.common.replay.reference import asynchronous_rules, gradients
from distsgd.common.tasks.job import describe, make_job
from distsgd.common.tasks.options import Recovery, RunOptions
from doubles import CountingAsyncSGD, CountingHogwild

DATA = load("sparse:examples=480,features=200,active=5,collisions=0.3")


@dataclass
class Trained:
    job: Any
    trace: dict[str, np.ndarray]
    center: np.ndarray
    result: dict[str, Any]
    model: Any

    def rows(self, k: int) -> np.ndarray:
        """The examples of worker k, [steps, batch size]."""
        job = self.job
        shard = gradients.rows(job.options.seed, k, len(job.train[1]), job.cluster.workers)
        return shard[
            [gradients.batch(job.options.seed, k, t, len(shard), job.options.batch_size) for t in range(job.steps)]
        ]


def trained(scheme, tmp_path, data: Dataset = DATA, *, workers=3, ps=1, backend="threads", steps=60, batch=8, **more):
    recipe = ModelRecipe.named("logistic", data.shape, data.classes, 0)
    cluster = Cluster.local(workers, ps=ps, backend=backend, wait_seconds=60)
    folder = tmp_path / f"{scheme.name}-{workers}-{len(list(tmp_path.iterdir()))}"
    options = {"epochs": 1, "steps": steps, "batch_size": batch, "seed": 0, "run_dir": folder, **more}
    job = make_job(scheme, recipe, data.train, data.test, cluster, RunOptions(**options))
    model = recipe.build() if backend == "threads" else None
    log, error = run(job, describe(job, "sparse", "logistic"), verbose=False, model=model)
    result = log.finish(error, picture=False)
    if error is not None:
        raise error
    with np.load(folder / "trace.npz") as trace, np.load(folder / "center.npz") as center:
        return Trained(job, dict(trace), center["center"], result, model)


@pytest.mark.parametrize(("scheme", "ps"), [(Hogwild(), 2), (AsyncSGD(), 1)])
@pytest.mark.rotating
def test_gradients_that_are_not_finite_reach_no_coordinate(scheme, ps, tmp_path):
    """Each is dropped, with its round; without a lock it once spoiled the center."""
    (indices, values), y = DATA.train
    values = values.copy()
    values[::60] = np.nan
    data = replace(DATA, train=((indices, values), y))
    run = trained(scheme, tmp_path, data, workers=2, ps=ps, steps=60, recovery=Recovery(on_nan="drop"))
    spoiled = sum(np.isnan(values[rows]).any() for k in range(2) for rows in run.rows(k))
    assert 10 < spoiled < 60
    assert run.result["dropped"] == sum(run.result["recovery"]["refused"].values()) == spoiled
    assert run.result["updates"] == 120 - spoiled
    assert np.isfinite(run.center).all()
    assert (run.center != 0).any()


def replayed(run: Trained) -> np.ndarray:
    (indices, values), y = run.job.train
    by_rows = gradients.sparse_logistic_gradient(indices, values, y)
    rows = [run.rows(k) for k in range(run.job.cluster.workers)]
    events = list(zip(run.trace["worker"], run.trace["version"] - run.trace["staleness"], strict=True))
    start, eta = np.zeros(len(run.center)), run.job.scheme.learning_rate
    gradient = lambda x, k, t: by_rows(x, rows[k][t])  # noqa: E731
    return asynchronous_rules.async_sgd_reading_apart(start, gradient, events, len(rows), eta=eta)[-1]


def distance(a, b) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize(("backend", "ps"), [("threads", 1), ("processes", 3)])
@pytest.mark.rotating
def test_the_locked_twin_replays(backend, ps, warm, tmp_path):
    # Workers that sleep between pull and push overlap; others may take turns by chance, and be never stale.
    run = trained(Sleeping(learning_rate=1.0), tmp_path, backend=backend, ps=ps, steps=12)
    assert run.job.sparse
    assert run.trace["staleness"].max() > 0
    assert distance(replayed(run), run.center) < 1e-5


@pytest.mark.rotating
def test_one_worker_is_serial_sgd_which_takes_dense_vectors(tmp_path):
    serial, *others = (trained(kind(learning_rate=1.0), tmp_path, workers=1) for kind in (Serial, Hogwild, AsyncSGD))
    assert not serial.job.sparse
    for one in others:
        assert one.job.sparse
        assert distance(one.center, serial.center) < 1e-5
        assert distance(replayed(one), one.center) < 1e-5


def disjoint(workers: int, per_worker: int) -> Dataset:
    """Examples that share no coordinate with each other."""
    examples = workers * per_worker
    rng = np.random.default_rng(0)
    x = np.arange(3 * examples, dtype=np.int32).reshape(examples, 3), rng.normal(size=(examples, 3)).astype(np.float32)
    train = x, rng.integers(2, size=examples).astype(np.int32)
    return Dataset(train, train, classes=2, features=3 * examples)


@pytest.mark.rotating
def test_without_collisions_any_interleaving_of_hogwild_is_serial(warm, tmp_path):
    data = disjoint(4, 16)
    run = trained(Hogwild(learning_rate=0.5), tmp_path, data, workers=4, steps=64, batch=2, backend="processes")
    (indices, values), y = data.train
    by_rows = gradients.sparse_logistic_gradient(indices, values, y)
    theta = np.zeros(data.features)
    for k in reversed(range(4)):  # one worker after the other, the last one first
        for rows in run.rows(k):
            theta = theta - 0.5 * by_rows(theta, rows)
    assert distance(run.center, theta) < 1e-5


def lost(run: Trained) -> tuple[float, float]:
    """How much of the sum of all contributions is not in the center, and that sum."""
    indices = run.job.train[0][0]
    rows = np.concatenate([run.rows(k).ravel() for k in range(run.job.cluster.workers)])
    sums = np.bincount(indices[rows].ravel(), minlength=len(run.center))
    assert (run.center + sums >= 0).all()  # nothing is counted twice
    return float((run.center + sums).sum()), float(sums.sum())


CERTAIN = load("sparse:examples=8192,features=64,active=16,collisions=1")  # all examples in 32 coordinates


@pytest.mark.gate
def test_no_update_is_lost_under_the_lock(tmp_path):
    run = trained(CountingAsyncSGD(), tmp_path, CERTAIN, workers=4, batch=1024, steps=20)
    assert lost(run) == (0, 4 * 20 * 1024 * 16)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one core additions hardly ever meet")
@pytest.mark.rotating
def test_hogwild_loses_some_updates_where_all_examples_collide(tmp_path):
    """TensorFlow's scatter takes no lock, and its addition is no atomic one. Seldom, so it is given several chances."""
    shares = []
    while len(shares) < 8 and not any(shares):
        missing, total = lost(trained(CountingHogwild(), tmp_path, CERTAIN, workers=8, batch=1024, steps=40))
        shares.append(missing / total)
    assert 0 < max(shares) < 0.1


@pytest.mark.rotating
def test_hogwild_loses_next_to_nothing_where_they_seldom_do(warm, tmp_path):
    run = trained(CountingHogwild(), tmp_path, backend="processes", workers=4, batch=32)
    missing, total = lost(run)
    assert missing < 0.01 * total
    bytes_of_entries = 4 * 32 * 5 * run.result["updates"]
    assert (run.result["bytes_pushed"], run.result["bytes_pulled"]) == (3 * bytes_of_entries, bytes_of_entries)


def test_the_collision_rate_is_what_it_was_asked_to_be():
    few, many = (
        sparsity(load(f"sparse:examples=2000,features=4096,active=4,{rate}").train[0], 4096)
        for rate in ("noise=0.5", "collisions=1")
    )
    assert few["omega"] == many["omega"] == 4
    assert few["rho"] < 0.02
    assert many["rho"] > 0.9
    assert many["delta"] == pytest.approx(0.5, abs=0.05)  # each example takes 4 of 8


def test_sparsity_is_counted_as_the_paper_defines_it():
    indices = np.array([[0, 1], [1, 2], [3, 3]], np.int32)
    values = np.array([[1, 1], [1, 1], [1, 0]], np.float32)  # the last row has one coordinate, and padding
    assert sparsity((indices, values), 5) == {"omega": 2, "delta": pytest.approx(2 / 3), "rho": pytest.approx(2 / 3)}


def test_a_libsvm_file_is_read_as_it_is_written(tmp_path):
    (tmp_path / "a.svm").write_text("+1 1:0.5 3:2\n-1 2:1\n+1\n-1 1:1 2:1 3:1\n")
    (tmp_path / "b.svm").write_text("-1 5:1.5\n")
    made = load(f"libsvm:path={tmp_path / 'a.svm'},test={tmp_path / 'b.svm'}")
    dense = np.zeros((4, 5), np.float32)
    np.add.at(dense, (np.arange(4)[:, None], made.train[0][0]), made.train[0][1])
    assert dense.tolist() == [[0.5, 0, 2, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert made.train[1].tolist() == [1, 0, 1, 0]
    assert (made.test[0][0].max(), made.test[1].tolist(), made.shape) == (4, [0], (5,))
    assert set(made.train[0][0][0]) == {0, 2}  # padding repeats a coordinate of the row


def test_every_fifth_row_of_a_libsvm_file_without_test_file_is_for_tests(tmp_path):
    (tmp_path / "a.svm").write_text("".join(f"{'+-'[row % 2]}1 1:{row}\n" for row in range(1, 12)))
    made = load(f"libsvm:path={tmp_path / 'a.svm'}")
    assert made.test[0][1].ravel().tolist() == [5, 10]
    assert made.train[0][1].ravel().tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 11]
    assert (made.test[1].tolist(), made.train[1].tolist()) == ([0, 1], [0, 1, 0, 1, 1, 0, 1, 0, 0])


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read"), ("hello world\n", "cannot read"), ("1 1:1\n2 1:1\n3 1:1\n", "needs two different labels")],
)
def test_a_file_that_is_no_libsvm_is_refused(content, message, tmp_path):
    if content:
        (tmp_path / "a.svm").write_text(content)
    with pytest.raises(UserError, match=message):
        load(f"libsvm:path={tmp_path / 'a.svm'}")


def test_a_sparse_data_set_and_its_model_belong_together():
    with pytest.raises(UserError, match="needs a file"):
        load("libsvm")
    with pytest.raises(UserError, match="a sparse data set needs the model logistic"):
        name_for("mlp", "sparse")
    with pytest.raises(UserError, match="the model logistic needs a sparse data set"):
        name_for("logistic", "dense")
    assert [name_for(None, kind) for kind in ("sparse", "dense", "text")] == ["logistic", "mlp", "transformer"]
    with pytest.raises(UserError, match="features must be at least 4"):
        load("sparse:features=10,active=8")
