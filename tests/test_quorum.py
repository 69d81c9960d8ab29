"""A quorum whose late messages count, with a weight by staleness: on threads, in virtual time and in a group."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from distsgd.algorithms import KAsync
from distsgd.common import Cluster, Group, UserError, train
from distsgd.common.contract import Quorum
from distsgd.common.virtual_time.platform import Platform
from runs import ONES, quadratic, record

START = [1.0, -2.0, 0.5]


@dataclass(frozen=True, kw_only=True)
class Softer(KAsync):
    """A gradient counts the less, the older the center at which it was computed."""

    name = "softer"

    def weighted(self, server, message, staleness):
        return message / (1 + staleness)


def last_center(trace, scheme):
    """The center after all sets, in NumPy; the version of a message is the number of its set."""
    thetas = [np.array(START)]
    for version in range(trace["version"][-1] + 1):
        late = trace["staleness"][trace["version"] == version]
        gradients = [thetas[version - tau] / (1 + tau) for tau in late]
        thetas.append(thetas[-1] - scheme.learning_rate * np.mean(gradients, axis=0))
    return thetas[-1]


@pytest.mark.parametrize("backend", ["threads", "simulation"])
def test_late_messages_count_with_a_weight_by_their_staleness(backend, tmp_path):
    # With this rate the center stays far from 0, where float32 would round much in proportion to it.
    scheme, machines = Softer(workers_per_update=2, learning_rate=0.05), {}
    if backend == "simulation":
        machines = {"platform": Platform(compute="exponential")}
    cluster = Cluster.local(4, ps=2, backend=backend, **machines)
    options = {"batch_size": 4, "steps": 30, "record": "full", "run_dir": tmp_path / "run", "verbose": False}
    train(model := quadratic(START), ONES, scheme, cluster=cluster, **options)
    with np.load(tmp_path / "run" / "trace.npz") as file:
        trace = dict(file)
    assert trace["accepted"].all()
    assert trace["staleness"].max() > 0
    assert np.bincount(trace["worker"]).tolist() == [30] * 4
    ends = sorted(np.flatnonzero(trace["worker"] == k)[-1] for k in range(4))
    alone = trace["version"][ends[-2]]  # from here on, one worker may be left
    assert (np.bincount(trace["version"])[:alone] == 2).all()
    np.testing.assert_allclose(model.layers[0].kernel.numpy()[0], last_center(trace, scheme), rtol=1e-5)


def test_a_replay_lets_only_a_stop_leave_the_last_set_open(tmp_path):
    whole = record(KAsync(workers_per_update=2), tmp_path / "run", backend="simulation", steps=6, hidden=(8,))
    updates = whole.result["updates"] - 1
    before = {name: column[whole.trace["version"] < updates] for name, column in whole.trace.items()}
    shorter = replace(whole, trace=before, result={**whole.result, "updates": updates})
    opened = replace(whole, result={**shorter.result, "stopped_by": "version 3"})
    np.testing.assert_array_equal(opened.execute().center, shorter.execute().center)
    with pytest.raises(ValueError, match="how many updates"):
        replace(whole, result=shorter.result).execute()


def test_a_replay_finds_that_no_worker_reached_the_target_of_a_run_that_was_stopped(tmp_path):
    whole = record(KAsync(workers_per_update=2), tmp_path / "run", backend="simulation", steps=12, hidden=(8,))
    resumed = replace(whole, earlier_step_targets=[6])
    np.testing.assert_array_equal(resumed.execute().center, whole.execute().center)


def test_a_group_weighs_late_messages_and_lets_their_senders_wait():
    scheme = Softer(workers_per_update=2, learning_rate=1.0)
    group = Group(scheme, np.zeros(1), workers=3)
    assert not group.step(0, np.ones(1))
    assert group.step(1, np.ones(1))
    assert (group.version, group.center, group.staleness(2)) == (1, -1, 1)
    assert not group.step(2, np.ones(1))  # half of it counts
    assert group.ready == [0, 1]
    assert group.step(0, np.ones(1))
    np.testing.assert_allclose(group.center, [-1 - (0.5 + 1) / 2])


def test_a_quorum_needs_a_worker_and_has_no_more_than_there_are():
    with pytest.raises(UserError, match=r"count must be at least 1\. Received: count=0"):
        Quorum(0).check(4)
    assert [Quorum(3).set_size(active) for active in range(5)] == [1, 1, 2, 3, 3]
    assert (Quorum(3).updates_per_round(6), Quorum(3, "count").updates_per_round(6)) == (1, 2)
