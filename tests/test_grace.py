"""A quorum with a time of grace: its sets in virtual time, on threads and on processes, and with lost tasks."""

import signal
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from going import Going
from resting import LateWorker
from scheduled import happens

from distsgd.algorithms import DecoupledDiLoCo
from distsgd.common import Group, UserError
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract import Quorum
from distsgd.common.messages.ops import when
from distsgd.common.record_format import EVENTS
from distsgd.common.replay.comparison import judge
from distsgd.common.replay.recorded import Hyperparameters
from distsgd.common.tasks.options import Recovery
from runs import job_of, record

PLAIN = {"communication_period": 4, "inner_optimizer": "sgd", "learning_rate": 0.1}
SMALL = {"steps": 60, "hidden": (8,)}
FOREVER, PATIENCE = 300.0, 400.0  # seconds: more than a run takes on a busy machine, and a limit of waits beyond that


def sets_of(trace):
    """Return the workers of each set in the order of their messages."""
    return [trace["worker"][trace["version"] == version].tolist() for version in range(trace["version"][-1] + 1)]


def test_a_set_waits_for_the_others_from_the_message_that_makes_its_quorum_on():
    machines = {"workers": 4, "steps": 4, "step_ms": 10, "step_factors": "1,1.2,1.4,3"}
    events = happens(DecoupledDiLoCo(communication_period=1, quorum=2, grace=0.0025), **machines)
    # Messages at 10, 12, 14 ms: the quorum is there at 12, and the set closes at 14.5. The next closes at 29, before
    # worker 3 is ready at 30; then 0 makes the quorum at 39, and 2 at 43 is late.
    assert sets_of(events.trace)[:3] == [[0, 1, 2], [0, 1, 2], [3, 0, 1]]
    assert sets_of(events.trace)[3][0] == 2
    released = {(k, number): at for k, number, *_, at, _ in events.rounds.tolist()}
    assert [released[0, number] for number in range(3)] == [14_500, 29_000, 41_500]


def test_messages_of_all_workers_close_a_set_at_once():
    machines = {"steps": 60, "compute": "exponential", "latency": "3ms"}
    found = happens(DecoupledDiLoCo(communication_period=2, quorum=1, grace=1e6), **machines)
    barrier = happens(DecoupledDiLoCo(communication_period=2, quorum=4), **machines)
    assert found.seconds == barrier.seconds
    for name, column in barrier.trace.items():
        np.testing.assert_array_equal(found.trace[name], column)


def test_a_grace_of_a_nanosecond_changes_no_set():
    machines = {"steps": 60, "compute": "exponential", "failures": "crashes:every=3s,down=0.2s"}
    found, without = (
        happens(DecoupledDiLoCo(communication_period=2, quorum=2, grace=grace), **machines) for grace in (1e-9, 0)
    )
    for name in ("worker", "version", "staleness", "event"):
        np.testing.assert_array_equal(found.trace[name], without.trace[name])


def test_a_worker_that_is_down_delays_a_set_by_its_grace_and_no_more():
    machines = {"workers": 3, "steps": 400, "failures": "crashes:every=2s,down=1s", "seed": 3}
    events = happens(DecoupledDiLoCo(communication_period=10, quorum=2, grace=0.05), **machines)
    messages = events.trace["event"] == EVENTS.index("exchange")
    at, version = events.trace["microseconds"][messages], events.trace["version"][messages]
    sizes = np.bincount(version)
    pairs = [at[version == number] for number in np.flatnonzero(sizes == 2) if (sizes[number:] > 2).any()]
    assert len(pairs) > 10
    released = set(events.rounds[:, 6])
    assert all(last + 50_000 in released for _, last in pairs)


def test_a_set_that_is_closed_by_all_workers_leaves_no_end_to_the_next():
    """Messages at 10 and 14 ms, 24 and 28 ms, ...: the grace of the first set would end at 25 ms, within the second."""
    machines = {"workers": 2, "steps": 4, "step_ms": 10, "step_factors": "1,1.4"}
    events = happens(DecoupledDiLoCo(communication_period=1, quorum=1, grace=0.015), **machines)
    assert sets_of(events.trace) == [[0, 1]] * 4


def test_a_time_of_grace_begins_when_the_lock_serves_the_message_that_makes_the_quorum():
    """Messages at 10 ms hold the lock for 2 ms each: the quorum is there at 12 ms."""
    machines = {"workers": 3, "steps": 1, "step_ms": 10, "step_factors": "1,1,3", "service": "2ms"}
    events = happens(DecoupledDiLoCo(communication_period=1, quorum=2, grace=0.005), **machines)
    assert sets_of(events.trace)[0] == [0, 1]
    assert events.rounds[:2, 6].tolist() == [17_000] * 2


class OpenSet:
    """A set of two workers without a center: stand-ins for what a rule with a time of grace reads and writes."""

    def __init__(self):
        self.num_workers, self.last_version, self.devices = 2, 9, ["/device:CPU:0"]
        self.now, self.woken, self.began, self.when = 1000, [], 0, when
        self.quorums = SimpleNamespace(enqueue=self.begin)
        self.transactions = SimpleNamespace(exclusive=nullcontext)
        self.center = SimpleNamespace(slices=[], each_slice=lambda build, *_: [], read_version=lambda: tf.constant(1))
        self.center.count_updates = lambda number: tf.constant(1)
        self.slots = SimpleNamespace(
            active=tf.Variable([True, True]), count=lambda flags: tf.reduce_sum(tf.cast(flags, tf.int32))
        )
        self.variables = SimpleNamespace(arrived=tf.Variable([False, False]), quorum_at=tf.Variable(0, dtype=tf.int64))

    def begin(self, _):
        self.began += 1

    def clock(self):
        self.now += 1
        return tf.constant(self.now, tf.int64)

    def arrive(self, *workers):
        self.variables.arrived.assign([k in workers for k in range(2)])

    def wake(self, flags):
        self.woken.append(flags.numpy().tolist())


def test_a_time_of_grace_begins_with_the_quorum_and_ends_with_its_own_set():
    rule, ps = Quorum(1, grace=2.0), OpenSet()

    def quorum_at():
        return int(ps.variables.quorum_at)

    ps.arrive(0)
    for _ in range(3):  # a join, or a worker that leaves, is no new beginning
        rule.release(ps)
    assert (ps.began, quorum_at(), ps.woken) == (1, 1001, [])
    for other in (0, 1000, 1002):  # of sets that are closed
        rule.end_grace(ps, tf.constant(other, tf.int64))
    assert ps.woken == []
    rule.end_grace(ps, tf.constant(1001, tf.int64))
    assert (ps.woken, quorum_at()) == ([[True, False]], 0)
    rule.end_grace(ps, tf.constant(0, tf.int64))  # an open set without its quorum
    ps.arrive(0, 1)
    rule.release(ps)
    assert (ps.began, quorum_at(), ps.woken) == (1, 0, [[True, False], [True, True]])
    ps.arrive(1)
    rule.release(ps)
    assert (ps.began, quorum_at()) == (2, 1002)


@pytest.mark.parametrize("backend", ["threads", "simulation", "processes"])
@pytest.mark.rotating
def test_a_long_grace_is_a_barrier_of_all_workers(backend, warm, tmp_path):
    centers = []
    for name, options in {"grace": {"quorum": 1, "grace": FOREVER}, "barrier": {"quorum": 3}}.items():
        scheme, how = DecoupledDiLoCo(**PLAIN, **options), {"backend": backend, "wait_seconds": PATIENCE, **SMALL}
        run = record(scheme, tmp_path / name, workers=3, **how)
        assert run.result["updates"] == 15
        assert run.error() < 1e-5
        assert np.ptp(run.trace["microseconds"]) < 1e6 * FOREVER  # no set has waited for the clock
        centers.append(run.center)
    np.testing.assert_array_equal(*centers)


@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.rotating
def test_the_clock_closes_the_sets_of_which_a_late_worker_is_no_part(backend, warm, tmp_path):
    run = record(LateWorker(**PLAIN, quorum=1, grace=0.05), tmp_path / "run", workers=3, backend=backend, **SMALL)
    sets = [sorted(members) for members in sets_of(run.trace)]
    assert [0, 1] in sets  # the fast ones meet within the grace, with or without the late one
    assert all(len(members) == len(set(members)) for members in sets)
    verdict = judge(run)
    assert verdict.agrees, (verdict.error, verdict.limit)


@pytest.mark.gate
def test_a_replay_finds_a_message_in_a_wrong_set_and_a_set_without_its_quorum(tmp_path):
    scheme, machines = DecoupledDiLoCo(**PLAIN, quorum=2, grace=0.02), Platform(step_factors="1,1.2,1.4,2")
    run = record(scheme, tmp_path / "run", workers=4, backend="simulation", platform=machines, **SMALL)
    assert judge(run).agrees
    sizes = np.bincount(run.trace["version"])
    assert 3 in sizes
    last = np.flatnonzero(run.trace["version"] == np.flatnonzero(sizes > 2)[0])[-1]
    late = {name: run.trace[name] + (np.arange(len(run.trace[name])) == last) for name in ("version", "staleness")}
    assert judge(replace(run, trace={**run.trace, **late})).differs
    larger = replace(run, hyperparameters=Hyperparameters(run.hyperparameters, quorum=4))
    with pytest.raises(ValueError, match="how long a worker waited"):
        larger.execute()


@pytest.mark.parametrize("task", ["worker-1", "evaluator-0"])
@pytest.mark.rotating
def test_a_task_that_dies_in_a_time_of_grace_leaves_no_set_open(task, warm, tmp_path):
    """Worker 2 is late, so that at nearly all times the others wait for the clock."""
    scheme = LateWorker(**PLAIN, quorum=1, grace=0.1)
    keep = Recovery(max_restarts=2)
    run = Going(scheme, tmp_path / "run", updates=20, workers=3, steps=200, recovery=keep)
    run.send(task, signal.SIGKILL)
    recovery = run.survived()
    assert recovery["restarts"]


def test_what_has_no_clock_refuses_a_time_of_grace(tmp_path):
    scheme = DecoupledDiLoCo(grace=2.0)
    with pytest.raises(
        UserError, match=r"grace needs processes, whose clock ends it: leave it out\. Received: grace=2"
    ):
        Group(scheme, np.zeros(2), workers=3)
    with pytest.raises(UserError, match="cannot follow a schedule with a time of grace"):
        job_of(scheme, 3, schedule=[0, 1, 2])
    with pytest.raises(UserError, match=r"grace must be less than wait_seconds.*Received: grace=60, wait_seconds=60"):
        job_of(DecoupledDiLoCo(grace=60.0), 3)
    with pytest.raises(UserError, match=r"grace must .*Received: grace=-1"):
        Quorum(2, grace=-1.0).check(3)
