"""Means that workers take within a round."""

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import means
import numpy as np
import pytest
import tensorflow as tf
from means import AtServer, Normalised, PowerSGD, WithoutPS

from distsgd.common import Platform, Recovery, UserError
from distsgd.common.contract import Alone, Async, Bounded
from distsgd.common.errors import WaitTimeout
from distsgd.common.tasks.worker_calls import WorkerCalls
from distsgd.simulator import forecast
from runs import Harness, record

HIDDEN = (8,)


def normalised(run):
    period = run.hyperparameters.communication_period
    return means.normalised(run.start, run.gradient, run.workers, run.steps, 0.1, period)


def power_sgd(run):
    return means.power_sgd(run.start, run.gradient, run.workers, run.steps, 0.1)


VECTORS = PowerSGD(), power_sgd, 20
IN_CALLS = Normalised(communication_period=1), normalised, 504  # so long that several rounds are one call


@pytest.mark.parametrize(
    ("backend", "scheme", "replay", "steps"),
    [
        pytest.param("threads", *VECTORS, id="vectors on threads"),
        pytest.param("simulation", *VECTORS, id="vectors in a simulation"),
        pytest.param("processes", *IN_CALLS, id="long on processes", marks=pytest.mark.rotating),
    ],
)
@pytest.mark.rotating
def test_means_are_those_of_the_equations(backend, scheme, replay, steps, tmp_path):
    run = record(scheme, tmp_path, workers=3, backend=backend, steps=steps, batch_size=8, hidden=HIDDEN)
    expected = replay(run)
    assert np.linalg.norm(run.center - expected) / np.linalg.norm(expected) < 1e-5
    assert np.linalg.norm(run.center - run.start) / np.linalg.norm(expected) > 0.01


def test_a_rule_with_a_parameter_server_refuses_means():
    with pytest.raises(
        UserError, match=r"\(scalars\), or use sync = Collective\(\)\. Received: .*, sync = Barrier\(\)$"
    ):
        Harness(AtServer())
    unused: Any = SimpleNamespace()
    for sync in (Async(), Bounded(1)):
        with pytest.raises(UserError, match=rf"^worker\.mean needs .* Received: sync = {type(sync).__name__}\(\)$"):
            sync.mean(unused, unused, unused)


class Undeclared(PowerSGD):
    """It declares the first of its means alone."""

    name = "undeclared"

    def message_sizes(self, shapes):
        first, *_, last = super().message_sizes(shapes)
        return [first, last]


@pytest.mark.parametrize("backend", ["threads", "simulation"])
def test_a_mean_that_the_scheme_has_not_declared_is_refused(backend, tmp_path):
    with pytest.raises(UserError, match=r"^undeclared: .* means of \[25, 25\] elements, where \[25\] are declared$"):
        record(Undeclared(), tmp_path, backend=backend, steps=2, batch_size=8, hidden=HIDDEN)


@pytest.mark.rotating
def test_a_run_counts_the_bytes_of_its_means(tmp_path):
    run = record(PowerSGD(), tmp_path, workers=3, backend="simulation", steps=4, batch_size=8, hidden=HIDDEN)
    side = means.side_of(len(run.start))
    assert run.result["bytes_pushed"] == pytest.approx(3 * 4 * 2 / 3 * 4 * (2 * side + len(run.start)))


def test_each_mean_has_its_latencies_in_virtual_time():
    machines = Platform(step_ms=10.0, latency="5ms")
    seconds = [1 / forecast(s, machines, workers=3, parameters=100).updates for s in (Normalised(), WithoutPS())]
    assert seconds == pytest.approx([0.02 + 2 * 0.01, 0.01 + 0.01])


class Elsewhere(PowerSGD):
    """It asks in a step."""

    name = "elsewhere"

    def local_step(self, worker, gradient):
        worker.mean(gradient)


class Shadowing(PowerSGD):
    """A variable in its place."""

    name = "shadowing"

    def local_variables(self, params):
        return {"mean": params}


def test_a_mean_outside_of_a_message_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^worker\.mean is for Scheme\.message alone.*$"):
        Harness(Elsewhere())
    with pytest.raises(UserError, match="a local variable cannot be called 'mean'"):
        Harness(Shadowing())
    with pytest.raises(UserError, match=r"needs all its workers: leave min_workers out\. Received: min_workers=1$"):
        Harness(PowerSGD(), recovery=Recovery(min_workers=1))


@pytest.mark.rotating
def test_a_worker_that_waited_in_vain_for_a_mean_ends_the_run(tmp_path, monkeypatch):
    """It once did the round again, and what it had sent the first time was taken for its part of the next one."""
    calls, gave_up, plain = Counter(), threading.Event(), WorkerCalls.rounds

    def rounds(worker, *arguments, **options):
        calls[worker.index] += 1
        late = calls[worker.index] == 4
        if late and worker.index == 0:
            assert gave_up.wait(60)
        if not late or worker.index == 0:
            return plain(worker, *arguments, **options)
        worker.longest, worker.wait_seconds = 0.0, 1
        return plain(worker, *arguments, **options)

    def too_late(worker):
        error = late(worker)
        gave_up.set()
        return error

    late = WorkerCalls.too_late
    monkeypatch.setattr(WorkerCalls, "rounds", rounds)
    monkeypatch.setattr(WorkerCalls, "too_late", too_late)
    with pytest.raises(WaitTimeout, match=r"^worker 1 waited 1 s at the barrier for worker 0$"):
        record(PowerSGD(), tmp_path, workers=2, backend="threads", steps=20, batch_size=8, hidden=HIDDEN)


def test_a_worker_alone_has_its_own():
    vector: Any = tf.constant([1.0, 2.0])
    unused: Any = SimpleNamespace()
    assert Alone().mean(unused, unused, vector) is vector
