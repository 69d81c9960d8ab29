"""Runs in virtual time: what it takes to come to a loss, for several settings in one run."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from distsgd import Scheme
from distsgd.algorithms import ADAG, AsyncSGD, DeMo, Krum, Serial, SyncSGD, SyncSGDLR
from distsgd.benchmarks.virtual import UNEVEN, LearningCurve, Reached, needed_steps, simulated

SHORT = {"workers": 3, "gradients": 96, "seed": 1, "evaluations": 4}


def assert_as_alone(kind, settings, points=5):
    """Settings that share a run go as they go one by one."""
    together = simulated(kind, settings, **SHORT)
    (alone,), curve = simulated(kind, settings[-1:], **SHORT), together[-1]
    assert (curve.examples, curve.seconds, curve.bytes) == (alone.examples, alone.seconds, alone.bytes)
    np.testing.assert_allclose(curve.loss, alone.loss, atol=3e-5)
    assert len(curve.loss) == points
    return together


@pytest.mark.rotating
def test_settings_in_one_run_go_as_they_go_one_by_one():
    slow, fast = assert_as_alone(ADAG, [{"learning_rate": 0.1}, {"learning_rate": 0.8, "distance_scale": 1.0}])
    assert fast.final < slow.final - 0.01


class OfTheWholeGradient(Scheme):
    """Divides each gradient by its length, which mixes the copies of a model in a shared run."""

    name = "of_the_whole_gradient"
    learning_rate: float = 0.1

    def server_update(self, server, message, staleness):
        server.center.assign_sub(self.learning_rate * message / tf.norm(message))
        return server.center


@pytest.mark.parametrize(
    "kind",
    [DeMo, Krum, dataclass(frozen=True, kw_only=True)(OfTheWholeGradient)],
)
@pytest.mark.rotating
def test_settings_whose_copies_would_mix_run_one_by_one(kind):
    assert_as_alone(kind, [{"learning_rate": 0.05}, {"learning_rate": 0.01}])


@pytest.mark.parametrize(
    ("kind", "settings", "points"),
    [
        (Serial, [{"learning_rate": 0.1}, {"learning_rate": 0.8}], {"points": 3}),  # a round is up to 64 steps
        (SyncSGDLR, [{"learning_rates": (0.1,)}, {"learning_rates": (0.8,)}], {}),
    ],
    ids=["one process", "of each worker"],
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_rates_of_workers_and_of_one_process_can_share_a_run_too(kind, settings, points):
    assert_as_alone(kind, settings, **points)


def test_what_it_took_is_between_two_evaluations():
    curve = LearningCurve([0, 10, 20], [0, 1, 2], [0, 5, 6], [0, 0.5, 1.5], [2.0, 1.0, 0.8])
    assert curve.to(0.9) == Reached(15, 1.5, 5.5, 1.0)
    assert curve.to(0.7) is None
    assert LearningCurve([0], [0], [0], [0], [math.nan]).final == math.inf


def test_the_fastest_asynchronous_worker_has_as_many_steps_as_it_may_need():
    asked = {"workers": 4, "gradients": 4000, "platform": UNEVEN, "seed": 0}
    assert needed_steps(SyncSGD(), **asked) == 1000
    share = (1 / 0.58) / (1 / 0.58 + 1 / 0.75 + 1 / 1.51 + 1 / 3.33)
    assert 4000 * share <= needed_steps(AsyncSGD(), **asked) <= 1.2 * 4000 * share
