"""Late computations that are stopped, `cancel_late`: in virtual time at the moment of the update, as in the papers."""

import itertools
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scheduled
import tensorflow as tf

from distsgd.algorithms import KBatchSync, KSync, Ringmaster
from distsgd.benchmarks.claims_runs import centers
from distsgd.common import Group, UserError
from distsgd.common.cluster.platform import Machines, Platform
from distsgd.common.contract import Async, Scheme
from distsgd.common.contract.checks import check_scheme
from distsgd.common.contract.rounds import Rounds
from distsgd.common.record_format import EVENTS
from distsgd.simulator.execution.record_actions import actions_of
from distsgd.simulator.virtual_time.cancelling import Cancelling
from distsgd.simulator.virtual_time.durations import WorkerPlan
from runs import record

EXCHANGE, PULL = EVENTS.index("exchange"), EVENTS.index("pull")

happens = partial(scheduled.happens, seed=1)

OF_EACH = [
    KSync(workers_per_update=3, cancel_late=True),
    KBatchSync(messages_per_update=3, cancel_late=True),
    Ringmaster(delay_threshold=4, cancel_late=True),
]


def each(schemes):
    return pytest.mark.parametrize("scheme", schemes, ids=lambda scheme: scheme.name)


def rows(found, *names):
    return list(zip(*(found.trace[name].tolist() for name in names), strict=True))


def time_of_update(found):
    """Mean time of an update in units of a step, in the middle of the run."""
    n = len(found.trace["version"])
    at, version = (found.trace[name][n // 10 : -n // 10] for name in ("microseconds", "version"))
    return (at[-1] - at[0]) / (version[-1] - version[0]) / 10_000


# Order statistics: Dutta et al. 2018.


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.gate("others")
def test_k_sync_takes_the_kth_smallest_of_all_times(count):
    """E[X_K:W] = H_W - H_(W-K), of exponential times with mean 1."""
    found = happens(KSync(workers_per_update=count, cancel_late=True), 8, 6000, compute="exponential")
    expected = sum(1 / i for i in range(9 - count, 9))
    assert time_of_update(found) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.rotating("others")
def test_k_batch_sync_takes_a_kth_of_the_rate_of_all_workers(count):
    """K/W, of exponential times with mean 1: no gradient is computed that cannot count."""
    found = happens(KBatchSync(messages_per_update=count, cancel_late=True), 8, 6000, compute="exponential")
    assert time_of_update(found) == pytest.approx(count / 8, rel=0.04)


@pytest.mark.parametrize("threshold", [1, 4, 100])
@pytest.mark.rotating("others")
def test_ringmaster_updates_with_each_gradient_that_ends_where_computing_has_no_memory(threshold):
    """1/W for any R, while `async_sgd` and R = 100 without stops have the same, and smaller R without stops less."""
    found = happens(Ringmaster(delay_threshold=threshold, cancel_late=True), 8, 6000, compute="exponential")
    assert time_of_update(found) == pytest.approx(1 / 8, rel=0.03)
    assert found.trace["staleness"][found.trace["accepted"] == 1].max() < threshold


def test_k_sync_takes_the_kth_smallest_time_of_each_round_for_any_law():
    """All workers begin each round together, so its duration is exactly the K-th smallest of W draws."""
    found = happens(KSync(workers_per_update=2, cancel_late=True), 5, 200, compute="lognormal:sigma=1")
    plan = WorkerPlan(Machines(Platform(compute="lognormal:sigma=1")), Rounds.even(200, 1), 5, 1)
    ends = np.cumsum([sorted(plan.total(k, r) for k in range(5))[1] for r in range(200)])
    last = np.flatnonzero(np.diff(found.trace["version"], append=200) & (found.trace["event"] == EXCHANGE))
    assert len(last) == 200
    np.testing.assert_array_equal(found.trace["microseconds"][last], ends // 1000)


def test_a_computation_is_stopped_at_the_update_however_far_its_worker_is():
    """One of two: worker 0 has an update each 1 + 10 + 1 ms, when the other, which takes 100 ms, is stopped."""
    found = happens(KSync(workers_per_update=1, cancel_late=True), 2, 5, step_factors="1,10", latency="1ms")
    expected = [(1000 * (11 + 12 * n), worker, event) for n in range(5) for worker, event in ((0, EXCHANGE), (1, PULL))]
    assert rows(found, "microseconds", "worker", "event") == expected[:-1]  # the run ends with its last update


def test_a_center_that_is_too_old_when_it_arrives_is_not_computed_on():
    """Workers 0 and 2 make an update every 10 ms; what worker 1 sends and gets is on its link for 62 ms.

    Its first message arrives at 72 ms, and its reply at 134 ms: there it asks for the newest center, for 62 ms more.
    """
    machines = {"step_ms": 10, "regions": "0ms/unlimited,0ms/1Gbit"}
    found = happens(KSync(workers_per_update=2, cancel_late=True), 3, 30, size=7.75e6, **machines).trace
    pulls = found["microseconds"][(found["worker"] == 1) & (found["event"] == PULL)]
    assert pulls.tolist() == [134_000, 196_000, 258_000]


@each(OF_EACH)
@pytest.mark.parametrize("latency", ["0ms", "3ms"])
def test_links_and_locks_that_take_no_time_change_nothing(scheme, latency):
    """Whether they are absent, or are there and take a nanosecond."""
    found = []
    for link, service in itertools.product(({}, {"ps_link": "1TB"}), ({}, {"service": "1ns"})):
        machines = {"compute": "exponential", "latency": latency, **link, **service}
        found.append(happens(scheme, 8, 200, size=1.0, **machines))
    for other in found[1:]:
        assert [other.trace[name].tolist() for name in ("worker", "event", "version")] == [
            found[0].trace[name].tolist() for name in ("worker", "event", "version")
        ]
        np.testing.assert_allclose(other.trace["microseconds"], found[0].trace["microseconds"], rtol=1e-4, atol=2)


@each(OF_EACH)
def test_a_computation_that_ends_with_the_update_is_not_stopped(scheme):
    """Of equal workers, as many end so: the update is later by the time that the lock takes for the messages before."""
    ends = [happens(scheme, 8, 40, latency="3ms", service=service).seconds for service in ("0ms", "1ns")]
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)


def test_a_worker_that_is_down_is_not_stopped():
    pulls = []
    sequencer = SimpleNamespace(pulled=[0, 0], version=0, staleness=lambda k: sequencer.version - sequencer.pulled[k])
    server = SimpleNamespace(workers=2, sequencer=sequencer, over=False, pull=lambda worker, at: pulls.append(worker))
    timings = SimpleNamespace(**{name: [0, 0] for name in ("begun", "ready", "computed", "arrived", "released")})
    queue = SimpleNamespace(at=lambda *_: None, on=lambda *_: None)
    cancelling = Cancelling(OF_EACH[0], server, timings, lambda now: now, ready=lambda *_: None, queue=queue)
    for worker in (0, 1):
        cancelling.begin(worker, now=0, until=9)
    cancelling.crash(1)
    sequencer.version = 1
    for worker in (0, 1):
        cancelling.stop(worker, now=5)
    assert pulls == [0]


# The algorithm of the paper.


def ringmaster(start, gradient, durations, threshold, eta, updates):
    """Execute Algorithm 5 of Maranjyan et al. 2025 on workers whose n-th gradient takes durations[k][n].

    Returns the points, and (worker, computed or stopped) in the order of the ends.
    """
    workers, x, path, log = len(durations), start.copy(), [], []
    begun = [x.copy()] * workers  # x^(k - delay) of each worker
    delay, number = [0] * workers, [0] * workers
    ends = [durations[k][0] for k in range(workers)]

    def anew(k, now):
        number[k] += 1
        begun[k], delay[k], ends[k] = x.copy(), 0, now + durations[k][number[k]]

    while len(path) < updates:
        k = min(range(workers), key=lambda j: (ends[j], j))
        now = ends[k]
        x = x - eta * gradient(begun[k], k, number[k])
        path.append(x.copy())
        log.append((k, True))
        delay = [d + 1 for d in delay]
        anew(k, now)
        for j in range(workers):
            if delay[j] >= threshold:
                log.append((j, False))
                anew(j, now)
    return np.array(path), log


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_the_schedule_and_the_center_are_those_of_algorithm_5(threshold):
    scheme, workers, updates = Ringmaster(delay_threshold=threshold, learning_rate=0.1, cancel_late=True), 6, 300
    machines = {"compute": "lognormal:sigma=0.8", "step_factors": "1,1,2,3,5,20"}
    plan = WorkerPlan(Machines(Platform(**machines)), Rounds.even(2000, 1), workers, 1)
    durations = [[plan.total(k, r) for r in range(2000)] for k in range(workers)]

    def gradient(x, k, t):
        return x + np.random.default_rng([k, t]).standard_normal(2)

    path, log = ringmaster(np.ones(2), gradient, durations, threshold, 0.1, updates)
    found = happens(scheme, workers, 2000, stop_at_version=updates, **machines)
    made = [(k, accepted == 1) for k, accepted in rows(found, "worker", "accepted")]
    stopped = sum(not used for _, used in log)
    assert stopped > 50
    assert made == log[: len(made)]
    assert len(log) - len(made) <= workers  # the last update ends the run
    walk = centers(scheme, found.trace, np.ones(2), gradient, workers, 2000)
    np.testing.assert_allclose(walk, path, rtol=1e-12)


# What is recorded.


def check_rounds(found):
    """Check that a worker does one thing at a time."""
    known = found.rounds[(found.rounds >= 0).all(1)]
    assert (np.diff(known[:, 2:], axis=1) >= 0).all()
    for k in np.unique(known[:, 0]):
        assert all(one[-1] <= other[2] for one, other in pairwise(known[known[:, 0] == k]))


@each(OF_EACH)
def test_late_computations_end_with_the_update_and_no_message_is_dropped(scheme):
    found = happens(scheme, 5, 60, compute="lognormal:sigma=1")
    trace, threshold = found.trace, getattr(scheme, "delay_threshold", 1)
    assert set(rows(found, "event", "accepted")) == {(EXCHANGE, 1), (PULL, 0)}
    assert (trace["staleness"][trace["event"] == EXCHANGE] < threshold).all()
    assert (trace["staleness"][trace["event"] == PULL] == threshold).all()
    updated = {int(v): int(at) for v, at, event in rows(found, "version", "microseconds", "event") if event == EXCHANGE}
    for version, at, event in rows(found, "version", "microseconds", "event"):
        assert event == EXCHANGE or at == updated[version - 1]  # the last exchange at a version is its update
    of_rounds = found.rounds[np.lexsort((found.rounds[:, 1], found.rounds[:, 0]))]
    assert (np.diff(of_rounds[:, 2:], axis=1) >= 0).all()


def test_a_stopped_worker_begins_at_once_at_the_newest_center():
    found = happens(KSync(workers_per_update=1, cancel_late=True), 2, 3, step_factors="1,2.5")
    assert rows(found, "version", "worker", "staleness", "accepted", "microseconds", "event") == [
        (0, 0, 0, 1, 10_000, EXCHANGE),
        (1, 1, 1, 0, 10_000, PULL),
        (1, 0, 0, 1, 20_000, EXCHANGE),
        (2, 1, 1, 0, 20_000, PULL),
        (2, 0, 0, 1, 30_000, EXCHANGE),  # the last update ends the run
    ]
    assert found.rounds[found.rounds[:, 0] == 1][:, 2:4].tolist() == [[0, 10_000], [10_000, 20_000]]  # begun, ready


@each(OF_EACH)
def test_messages_that_travel_are_not_stopped_but_dropped(scheme):
    found = happens(scheme, 5, 60, compute="lognormal:sigma=0.5", latency="4ms", downlink="8Gbit", service="1ms")
    late = found.trace["accepted"] == 0
    assert (found.trace["event"][late] == PULL).any()
    assert (found.trace["event"][late] == EXCHANGE).any()
    assert (np.diff(found.trace["microseconds"]) >= 0).all()
    check_rounds(found)


@each(OF_EACH)
def test_workers_that_are_stopped_crash_and_return_as_others(scheme):
    machines = {"compute": "exponential", "failures": "crashes:every=300ms,down=50ms"}
    found = happens(scheme, 5, 400, **machines)
    joins = found.trace["event"] == EVENTS.index("join")
    assert joins.sum() > 20
    assert (found.trace["event"] == PULL).sum() > 100
    check_rounds(found)
    recorded = np.bincount(found.trace["worker"][~joins], minlength=5)
    assert (recorded - np.bincount(found.rounds[:, 0], minlength=5) <= 1).all()  # a worker that is down ends no round
    again = happens(scheme, 5, 400, **machines)
    assert all(np.array_equal(found.trace[name], again.trace[name]) for name in found.trace)


# Arithmetic, and what cannot be.

CANCELLING: Any = {"workers": 6, "steps": 40, "hidden": (8,), "batch_size": 8, "backend": "simulation"}
CANCELLING |= {"platform": Platform(compute="exponential")}  # equal workers end together, so that none is stopped


@pytest.mark.parametrize(
    "scheme",
    [OF_EACH[0], *(pytest.param(scheme, marks=pytest.mark.rotating) for scheme in OF_EACH[1:])],
    ids=lambda scheme: scheme.name,
)
@pytest.mark.gate
def test_a_simulated_run_is_replayed_and_computes_no_stopped_gradient(scheme, tmp_path):
    run = record(scheme, tmp_path, **CANCELLING)
    stopped = np.flatnonzero(run.trace["event"] == PULL)
    assert len(stopped) > 10
    assert not np.isin(stopped, actions_of(run.trace, scheme, [40] * 6).program().row).any()
    assert run.error() < 1e-5
    assert run.result["dropped"] == 0
    assert run.result["examples"] == 8 * len(run.trace["event"])  # a stopped round has taken its batch


def test_a_replay_notices_a_computation_that_was_stopped_too_early(tmp_path):
    scheme = Ringmaster(delay_threshold=2, cancel_late=True)
    run = record(scheme, tmp_path, **CANCELLING)
    run.hyperparameters["delay_threshold"] = 3
    with pytest.raises(ValueError, match="which messages were used"):
        run.execute()


def test_in_a_group_late_workers_have_the_newest_center_so_each_gradient_counts():
    """K-batch-sync is then serial SGD with batches of K, in any order."""
    group, x = Group(KBatchSync(messages_per_update=2, cancel_late=True, learning_rate=0.5), np.ones(1), workers=3), 1.0
    for k in (0, 1, 2, 2, 0, 2):
        assert group.staleness(k) == 0
        group.step(k, group.point(k))
    for _ in range(3):
        x -= 0.5 * x
    assert group.version == 3
    assert group.center[0] == pytest.approx(x)
    without = Group(KBatchSync(messages_per_update=2, learning_rate=0.5), np.ones(1), workers=3)
    for k in (0, 1, 2, 2, 0, 2):
        without.step(k, without.point(k))
    assert without.version == 2  # the first gradient of worker 2, and the last of worker 0 or 1, were late


class Counted(KSync):
    """Sends the number of local steps."""

    def message(self, worker):
        return tf.cast(worker.step, tf.float32) + 0 * worker.gradient

    def server_update(self, server, message, staleness):
        server.center.assign(message)
        return message


def test_a_step_that_is_cancelled_counts_as_a_step_of_its_worker():
    group = Group(Counted(workers_per_update=1, cancel_late=True), np.zeros(1), workers=2)
    for k, steps in ((0, 1), (1, 2), (1, 3), (0, 4)):
        group.step(k, np.ones(1))
        assert group.center[0] == steps


class Forever(Scheme):
    """Drops nothing."""

    name = "forever"
    sync = Async(cancel_late=True)


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_real_workers_cannot_stop_within_a_gradient(backend, tmp_path):
    with pytest.raises(UserError, match=r"k_sync cannot stop a computation on processes or threads.*simulat"):
        record(KSync(workers_per_update=2, cancel_late=True), tmp_path, backend=backend)


def test_nothing_can_be_stopped_where_nothing_is_dropped_or_cores_are_shared():
    with pytest.raises(UserError, match="forever: cancel_late needs a parameter server that drops late messages"):
        check_scheme(Forever(), 2)
    with pytest.raises(UserError, match="k_sync with cancel_late needs a core for each worker"):
        happens(KSync(cancel_late=True), cores=2)
