"""Hogwild's setting: sparse logistic regression, gathered and scattered, with and without the lock."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import reference
from distsgd.algorithms import AsyncSGD, Hogwild, Serial
from distsgd.common import Cluster
from distsgd.common.data import Dataset, load, shard_rows
from distsgd.common.models import ModelRecipe
from distsgd.common.tasks import plan
from distsgd.common.training import describe, make_job, run
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
        shard = shard_rows(len(self.job.train[1]), k, self.job.cluster.workers, self.job.seed)
        return shard[np.concatenate([batch for batch, _ in plan(self.job, k)])]


def trained(scheme, tmp_path, data: Dataset = DATA, *, workers=3, ps=1, backend="threads", steps=60, batch=8, **more):
    recipe = ModelRecipe.named("logistic", data.shape, data.classes, 0)
    cluster = Cluster.local(workers, ps=ps, backend=backend, wait_seconds=60)
    folder = tmp_path / f"{scheme.name}-{workers}-{len(list(tmp_path.iterdir()))}"
    options = {"epochs": 1, "steps": steps, "batch_size": batch, "seed": 0, "run_dir": folder, **more}
    job = make_job(scheme, recipe, data.train, data.test, cluster, **options)
    model = recipe.build() if backend == "threads" else None
    log, error = run(job, describe(job, "sparse", "logistic"), verbose=False, model=model)
    result = log.finish(error)
    if error is not None:
        raise error
    with np.load(folder / "trace.npz") as trace, np.load(folder / "center.npz") as center:
        return Trained(job, dict(trace), center["center"], result, model)


def replayed(run: Trained) -> np.ndarray:
    (indices, values), y = run.job.train
    by_rows = reference.sparse_logistic_gradient(indices, values, y)
    rows = [run.rows(k) for k in range(run.job.cluster.workers)]
    events = list(zip(run.trace["worker"], run.trace["version"] - run.trace["staleness"], strict=True))
    start, eta = np.zeros(len(run.center)), run.job.scheme.learning_rate
    gradient = lambda x, k, t: by_rows(x, rows[k][t])  # noqa: E731
    return reference.async_sgd_reading_apart(start, gradient, events, len(rows), eta=eta)[-1]


def distance(a, b) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize(("backend", "ps"), [("threads", 1), ("processes", 1), ("processes", 3)])
def test_the_locked_twin_replays(backend, ps, warm, tmp_path):
    run = trained(AsyncSGD(learning_rate=1.0), tmp_path, backend=backend, ps=ps)
    assert run.job.sparse
    assert run.trace["staleness"].max() > 0
    assert distance(replayed(run), run.center) < 1e-5


@pytest.mark.parametrize("scheme", [Hogwild(learning_rate=1.0), AsyncSGD(learning_rate=1.0)], ids=lambda s: s.name)
def test_one_worker_is_serial_sgd_which_takes_dense_vectors(scheme, tmp_path):
    serial = trained(Serial(learning_rate=1.0), tmp_path, workers=1)
    run = trained(scheme, tmp_path, workers=1)
    assert run.job.sparse
    assert not serial.job.sparse
    assert distance(run.center, serial.center) < 1e-5
    assert distance(replayed(run), run.center) < 1e-5


def disjoint(workers: int, per_worker: int) -> Dataset:
    """Examples that share no coordinate with each other."""
    examples = workers * per_worker
    rng = np.random.default_rng(0)
    x = np.arange(3 * examples, dtype=np.int32).reshape(examples, 3), rng.normal(size=(examples, 3)).astype(np.float32)
    train = x, rng.integers(2, size=examples).astype(np.int32)
    return Dataset(train, train, classes=2, features=3 * examples)


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_without_collisions_any_interleaving_of_hogwild_is_serial(backend, warm, tmp_path):
    data = disjoint(4, 16)
    run = trained(Hogwild(learning_rate=0.5), tmp_path, data, workers=4, steps=64, batch=2, backend=backend)
    (indices, values), y = data.train
    by_rows = reference.sparse_logistic_gradient(indices, values, y)
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


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_no_update_is_lost_under_the_lock(backend, warm, tmp_path):
    run = trained(CountingAsyncSGD(), tmp_path, backend=backend, workers=4, batch=32)
    assert lost(run) == (0, 4 * 60 * 32 * 5)


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_hogwild_loses_next_to_nothing(backend, warm, tmp_path):
    missing, total = lost(trained(CountingHogwild(), tmp_path, backend=backend, workers=4, batch=32))
    assert missing < 0.01 * total
