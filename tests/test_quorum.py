"""A quorum whose late messages count, with a weight by staleness: on threads, in virtual time and in a group."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from distsgd.algorithms import DecoupledDiLoCo, KAsync, LocalSGD
from distsgd.common import Cluster, Group, UserError, train
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract import Quorum
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
@pytest.mark.gate
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


@pytest.mark.gate
@pytest.mark.parametrize(
    "scheme", [KAsync(workers_per_update=2), LocalSGD(communication_period=2)], ids=lambda scheme: scheme.name
)
def test_a_replay_lets_only_a_stop_leave_the_last_set_open(scheme, tmp_path):
    """A run of `local_sgd` that was interrupted in the middle of a set was said to differ."""
    whole = record(scheme, tmp_path / "run", backend="simulation", steps=6, hidden=(8,))
    updates = whole.result["updates"] - 1
    if scheme.name == "local_sgd":
        whole.trace = {name: column[:-1] for name, column in whole.trace.items()}
    before = {name: column[whole.trace["version"] < updates] for name, column in whole.trace.items()}
    shorter = replace(whole, trace=before, result={**whole.result, "updates": updates})
    opened = replace(whole, result={**shorter.result, "stopped_by": "version 3"})
    np.testing.assert_array_equal(opened.execute().center, shorter.execute().center)
    with pytest.raises(ValueError, match="how many"):
        replace(whole, result=shorter.result).execute()


@pytest.mark.rotating
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


def decoupled(*moves, params=(0.0, 0.0), **options):
    """The center after one set of DecoupledDiLoCo with steps of one, with these sums of gradients of each worker."""
    plain = {"inner_optimizer": "sgd", "learning_rate": 1.0, "outer_learning_rate": 1.0, "momentum": 0.0}
    scheme = DecoupledDiLoCo(**{"communication_period": 1, "quorum": len(moves), **plain, **options})
    group = Group(scheme, np.array(params), workers=len(moves))
    for k, move in enumerate(moves):
        steps = max(1, round(scheme.communication_period * scheme.work[k % len(scheme.work)]))
        for _ in range(steps):
            group.step(k, np.array(move) / steps)
    assert group.version == 1
    return group.center


def test_the_radial_directional_average_keeps_the_length_of_moves_at_a_right_angle():
    np.testing.assert_allclose(decoupled([2, 0], [0, 2]), -np.sqrt([2, 2]), rtol=1e-6)
    np.testing.assert_allclose(decoupled([2, 0], [0, 2], average="plain"), [-1, -1], rtol=1e-6)
    np.testing.assert_allclose(decoupled([3, 0], [0, 1]), -np.sqrt([2, 2]), rtol=1e-6)  # directions count alike
    np.testing.assert_allclose(decoupled([0.6, -0.8], params=(5.0, 1.0)), [4.4, 1.8], rtol=1e-6)


def test_moves_that_cancel_are_averaged_plainly_and_one_of_zero_has_no_direction():
    np.testing.assert_allclose(decoupled([1, 0], [-3, 0]), [1, 0])
    np.testing.assert_allclose(decoupled([1, 0.002], [-1, 0.002]), [0, -1], atol=1e-4)  # not quite: a short direction
    np.testing.assert_allclose(decoupled([0, 0], [0, 4]), [0, -2])
    np.testing.assert_array_equal(decoupled([0, 0], [0, 0]), [0, 0])


def test_a_move_counts_by_the_local_steps_that_it_took():
    work = {"communication_period": 2, "work": (1.0, 0.5)}
    along = np.array([2, 1]) / np.sqrt(5)
    np.testing.assert_allclose(decoupled([3, 0], [0, 6], **work), -(2 * 3 + 6) / 3 * along, rtol=1e-6)
    np.testing.assert_allclose(decoupled([3, 0], [0, 6], average="plain", **work), [-2, -2], rtol=1e-6)


def test_lengths_and_directions_are_those_of_each_tensor():
    scheme = DecoupledDiLoCo(
        communication_period=1, inner_optimizer="sgd", learning_rate=1, outer_learning_rate=1, momentum=0
    )
    group = Group(scheme, [np.zeros(2), np.zeros((1, 1))], workers=2)
    group.step(0, [np.array([2.0, 0.0]), np.array([[5.0]])])
    group.step(1, [np.array([0.0, 2.0]), np.array([[1.0]])])
    for found, expected in zip(group.center, (-np.sqrt([2, 2]), [[-3]]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_late_worker_counts_by_its_distance_from_the_present_center():
    scheme = DecoupledDiLoCo(
        communication_period=1, inner_optimizer="sgd", learning_rate=1, outer_learning_rate=1, momentum=0, quorum=2
    )
    group = Group(scheme, np.zeros(1), workers=3)
    assert [group.step(k, np.array([move])) for k, move in ((0, 1.0), (1, 3.0), (2, 1.0), (0, 4.0))] == [0, 1, 0, 1]
    # The center was -2; worker 2 is at -1, worker 0 at -6: the mean of the directions is zero, that of the moves 1.5.
    np.testing.assert_allclose(group.center, [-3.5])


@pytest.mark.rotating
def test_a_replay_finds_a_worker_that_did_not_wait_for_the_update_with_its_message(tmp_path):
    scheme = DecoupledDiLoCo(communication_period=2, inner_optimizer="sgd", learning_rate=0.1, quorum=2)
    run = record(scheme, tmp_path / "run", backend="simulation", steps=12, hidden=(8,))
    assert run.error() < 1e-5
    version, staleness = run.trace["version"], run.trace["staleness"].copy()
    staleness[-1] += 1
    with pytest.raises(ValueError, match="how long a worker waited"):
        replace(run, trace={**run.trace, "staleness": np.minimum(staleness, version)}).execute()
