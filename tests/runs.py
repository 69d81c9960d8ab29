"""Runs of the code under test, in a form that the NumPy reference can replay."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import reference
from distsgd.common import Cluster
from distsgd.common.data import load, shard_rows
from distsgd.common.hooks import Callback
from distsgd.common.job import plan
from distsgd.common.models import FlatModel, ModelRecipe
from distsgd.common.record import EVENTS
from distsgd.common.scheme import Scheme
from distsgd.common.training import describe, make_job, run

DIGITS = load("digits")
HIDDEN = (32, 16)  # layers of three different shapes


@dataclass
class Recorded:
    """A finished run: where it started, what happened in which order, where it ended."""

    scheme: Scheme
    workers: int
    steps: int
    start: np.ndarray
    trace: dict[str, np.ndarray]
    center: np.ndarray
    gradient: reference.Gradient
    result: dict[str, Any]
    legs: Sequence[int] = ()  # steps of the runs that this one goes on from

    @property
    def order(self) -> list[int]:
        return self.trace["worker"].tolist()

    def replay(self) -> np.ndarray:
        """The center at the end by the paper's equations in the recorded order, float64."""
        return replay(self.scheme, self.start, self.gradient, self.trace, self.workers, self.steps, self.legs)

    def error(self) -> float:
        """Relative distance between the replay and the run."""
        return float(np.linalg.norm(self.replay() - self.center) / np.linalg.norm(self.center))


def replay(scheme: Any, start, gradient, trace, workers: int, steps: int, legs: Sequence[int] = ()) -> np.ndarray:
    """The last center of the NumPy transcription of that scheme."""
    joins = trace["event"] == EVENTS.index("join")
    order = np.where(joins, ~trace["worker"], trace["worker"]).tolist()
    local = {"steps": steps, "period": scheme.period}

    def in_order(transcription, **options):
        return transcription(start, gradient, order, workers, eta=scheme.learning_rate, **options)

    def in_rounds(transcription, **options):
        return transcription(start, gradient, workers, **options)

    def downpour(**options):
        first = [0] * workers
        for k, version, staleness in reversed(
            list(zip(*(trace[name] for name in ("worker", "version", "staleness")), strict=True))
        ):
            first[k] = int(version - staleness)
        parts = [scheme.rounds(end - begin, begin) for begin, end in itertools.pairwise((0, *legs, steps))]
        planned = list(itertools.chain.from_iterable(parts))
        rounds = [planned[: order.count(k)] for k in range(workers)]
        return reference.downpour(
            start,
            gradient,
            [(k, EVENTS[event]) for k, event in zip(trace["worker"].tolist(), trace["event"], strict=True)],
            workers,
            eta=scheme.learning_rate,
            lengths=[[length for length, _ in mine] for mine in rounds],
            first=first,
            **options,
        )

    def sync_sgd(backup_workers=0):
        messages = {name: values[~joins] for name, values in trace.items()}
        pulled = (messages["version"] - messages["staleness"]).tolist()
        path, kept = reference.sync_sgd(
            start,
            gradient,
            list(zip(messages["worker"].tolist(), pulled, strict=True)),
            workers,
            eta=scheme.learning_rate,
            updates=steps,
            backup=backup_workers,
            sizes=np.bincount(messages["version"][messages["accepted"] == 1]).tolist(),
        )
        assert kept == messages["accepted"].astype(bool).tolist()
        return path

    transcriptions = {
        "serial": lambda s: reference.serial(start, gradient, steps, eta=s.learning_rate),
        "multi_gpu": lambda s: reference.serial(start, gradient, steps, eta=s.learning_rate),
        "async_sgd": lambda s: in_order(reference.async_sgd),
        "hierarchical": lambda s: in_order(reference.async_sgd),
        "downpour": lambda s: downpour(gamma=s.server_learning_rate, accumulator=s.initial_accumulator),
        "downpour_easy": lambda s: downpour(),
        "agn": lambda s: in_order(reference.agn, gamma=s.server_learning_rate, **local),
        "adag": lambda s: in_order(reference.agn, distance_scale=s.distance_scale, **local),
        "dynsgd": lambda s: in_order(reference.dynsgd, **local),
        "aeasgd": lambda s: in_order(reference.aeasgd, alpha=s.beta / workers, **local),
        "aeamsgd": lambda s: in_order(reference.aeamsgd, alpha=s.beta / workers, delta=s.momentum, **local),
        "sync_sgd": lambda s: sync_sgd(s.backup_workers),
        "all_reduce": lambda s: sync_sgd(),
        "sync_sgd_lr": lambda s: in_rounds(
            reference.sync_sgd_lr,
            etas=s.learning_rates * (workers // len(s.learning_rates)),
            mean=s.reduction == "mean",
            steps=steps,
        ),
        "sagn": lambda s: in_rounds(reference.sagn, eta=s.learning_rate, gamma=s.server_learning_rate, **local),
        "easgd": lambda s: in_rounds(reference.easgd, eta=s.learning_rate, beta=s.beta, **local),
        "local_sgd": lambda s: in_rounds(
            reference.local_sgd, eta=s.learning_rate, synchronous=s.synchronous_steps, **local
        ),
        "diloco": lambda s: in_rounds(
            reference.diloco,
            eta=s.learning_rate,
            epsilon=s.outer_learning_rate,
            mu=s.momentum,
            weight_decay=s.weight_decay if s.inner_optimizer == "adamw" else None,
            **local,
        ),
    }
    return transcriptions[scheme.name](scheme)[-1]


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
    wait_seconds: float = 30,
    callbacks: Sequence[Callback] = (),
    towers: int | None = None,
    **options: Any,
) -> Recorded:
    """Train a tanh network on digits, and keep everything that a replay needs."""
    model = "mlp:hidden=" + "-".join(map(str, hidden))
    recipe = ModelRecipe.named(model, (64,), 10, seed)
    keras_model = recipe.build()
    start = FlatModel(keras_model).pack().astype(np.float64)
    job = make_job(
        scheme,
        recipe,
        DIGITS.train,
        None,
        Cluster.local(workers, ps=ps, backend=backend, wait_seconds=wait_seconds, towers=towers),
        epochs=1,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        run_dir=run_dir,
        schedule=schedule,
        **options,
    )
    in_process = keras_model if backend == "threads" else None
    config = describe(job, "digits", model)
    log, error = run(job, config, verbose=False, model=in_process, callbacks=callbacks)
    result = log.finish(error, picture=False)
    if error is not None:
        raise error
    with np.load(run_dir / "trace.npz") as file:
        trace = dict(file)
    with np.load(run_dir / "center.npz") as file:
        center = file["center"]
    gradient = network_gradient(job, [64, *hidden, 10])
    return Recorded(scheme, workers, job.steps, start, trace, center, gradient, result)


def network_gradient(job: Any, sizes: Sequence[int]) -> reference.Gradient:
    """The gradient of worker k's t-th batch of a job on digits."""
    x, y = DIGITS.train
    by_rows = reference.mlp_gradient(x, y, sizes)
    workers = job.cluster.workers
    shards = [shard_rows(len(x), k, workers, job.seed) for k in range(workers)]
    rows = [
        np.concatenate([np.zeros((0, job.batch_size), np.int32), *(batches for batches, _ in plan(job, k))])
        for k in range(workers)
    ]
    return lambda params, k, t: by_rows(params, shards[k][rows[k][t]])


# Problems small enough to be solved by hand, as Keras models: the "prediction" is the parameters themselves.


def quadratic(start: Sequence[float], curvature: float = 1.0) -> Any:
    """A Keras model whose loss is h/2 |x|², whatever the data."""
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(len(start), use_bias=False)])
    model.compile(loss=lambda y, p: curvature / 2 * keras.ops.sum(p * p, axis=-1))
    model.layers[0].kernel.assign(np.asarray(start, np.float32)[None])
    return model


ONES = (np.ones((64, 1), np.float32), np.zeros((64, 1), np.float32))


def wait_until(condition: Callable[[], Any], seconds: float = 40) -> Any:
    """The first value of a condition that counts as true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return value
