"""Which rounds a worker does, on which batches: the same from wherever one begins, and at the same cost."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest

from distsgd.algorithms import AsyncSGD, Downpour, LocalSGD, Serial, SyncSGD
from distsgd.common.contract.rounds import Rounds
from distsgd.common.data.dataset import batches
from distsgd.common.launch import threads
from distsgd.common.record import checkpoint
from distsgd.common.record.run_directory import RunRecord
from distsgd.common.tasks.graph import TaskGraph
from distsgd.common.tasks.job import describe
from distsgd.common.tasks.options import RunOptions
from distsgd.common.tasks.plan import Plan
from distsgd.common.tasks.requests import ObserverRequests, Request, StateRequests, StopRequests, requests_of
from distsgd.common.tasks.worker_loop import WorkerLoop
from runs import DIGITS, job_of, record


def one_by_one(scheme, steps, done=0):
    """The rounds, step by step as the schemes describe them."""
    begun = 0
    for t in range(1, steps + 1):
        if isinstance(scheme, Downpour):
            push = (t - (scheme.phase == "dean")) % scheme.period == 0
            pull = t % (scheme.pull_period or scheme.communication_period) == 0
            event = "exchange" if push == pull or t == steps else "push" if push else "pull"
            ends = push or pull
        else:
            single = max(0, (0 if scheme.period_rule is None else scheme.period_rule.value) - done)
            event, ends = "exchange", t <= single or (t - single) % scheme.period == 0
        if ends or t == steps:
            yield t - begun, event
            begun = t


SCHEMES = [
    AsyncSGD(),
    LocalSGD(communication_period=4),
    LocalSGD(communication_period="post-local:9,4"),
    Downpour(communication_period=5),
    Downpour(communication_period=5, phase="dean"),
    Downpour(push_period=3, pull_period=4),
    Downpour(push_period=4, pull_period=6, phase="dean"),
    Downpour(push_period=1, pull_period=7),
    Downpour(push_period=7, pull_period=1, phase="dean"),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_rounds_match_a_scan_of_single_steps_from_any_start(scheme):
    for steps, done in itertools.product((0, 1, 2, 11, 12, 13, 24, 50), (0, 5, 20)):
        expected = list(one_by_one(scheme, steps, done))
        rounds = scheme.rounds(steps, done)
        assert list(rounds) == expected
        assert len(rounds) == len(expected)
        assert rounds.steps() == steps
        for n in range(len(expected) + 2):
            assert list(rounds.after(n)) == expected[n:]
            assert rounds.steps(n) == sum(length for length, _ in expected[:n])


def old_batches(shard, batch_size, worker, seed):
    """From the beginning, as batches were made before one could begin anywhere."""
    for epoch in itertools.count():
        order = np.random.default_rng([seed, 1 + worker, epoch]).permutation(shard)
        for step in range(shard // batch_size):
            yield order[step * batch_size : (step + 1) * batch_size].astype(np.int32)


@pytest.mark.parametrize(("shard", "size"), [(20, 6), (12, 4), (5, 5)])
def test_batches_are_the_same_from_any_start(shard, size):
    expected = list(itertools.islice(old_batches(shard, size, 3, 7), 25))
    for done in range(20):
        found = list(itertools.islice(batches(shard, size, 3, 7, done), 5))
        assert all(a.dtype == b.dtype for a, b in zip(found, expected, strict=False))
        np.testing.assert_array_equal(found, expected[done : done + 5])


def job(tmp_path, scheme, steps, earlier=(), workers=2, backend="threads"):
    made = job_of(scheme, workers, backend=backend, steps=steps, batch_size=100, seed=3, run_dir=tmp_path)
    made.earlier_step_targets = earlier or made.earlier_step_targets
    return made


def test_a_resumed_run_knows_the_step_targets_of_earlier_ones(tmp_path, monkeypatch):
    config = describe(job(tmp_path, Downpour(), 150), "digits", "softmax")
    monkeypatch.setattr(checkpoint, "found", lambda folder: [folder / "checkpoints" / "1"])
    before = {**config, "steps_per_worker": 70, "earlier_step_targets": [31]}
    (tmp_path / "config.json").write_text(json.dumps(before))
    again = job(tmp_path, Downpour(), 150)
    assert again.earlier_step_targets == [31, 70]
    RunRecord(tmp_path, describe(again, "digits", "softmax")).finish(None)
    third = job(tmp_path, Downpour(), 200)
    assert third.earlier_step_targets == [31, 70, 150]


@pytest.mark.parametrize(
    ("scheme", "workers"),
    [(Downpour(push_period=3, pull_period=4), 2), (LocalSGD(communication_period="post-local:5,10"), 2), (Serial(), 1)],
)
def test_the_plan_of_a_resumed_run_is_the_same_from_any_round(scheme, workers, tmp_path):
    made = job(tmp_path, scheme, 150, earlier=(31, 70), workers=workers)
    whole = list(made.plan.batches(0))
    rows = np.concatenate([batch for batch, _ in whole])
    np.testing.assert_array_equal(
        rows, list(itertools.islice(old_batches(1437 // made.cluster.workers, 100, 0, 3), 150))
    )
    for done in range(len(whole) + 1):
        again = list(made.plan.batches(0, done))
        assert [event for _, event in again] == [event for _, event in whole[done:]]
        for (a, _), (b, _) in zip(again, whole[done:], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_schedule_gives_each_worker_all_its_rounds_with_clients_that_take_turns(tmp_path):
    options = RunOptions(batch_size=4, participation=0.5, schedule=[0, 1, 0, 1, 0], run_dir=tmp_path)
    plan = Plan(LocalSGD(communication_period=2), DIGITS.train, 2, options, 8)
    assert [len(list(plan.batches(worker))) for worker in (0, 1)] == [3, 2]
    assert [event for _, event in plan.batches(0, 2)] == ["exchange"]


def test_batches_after_a_thousand_million_rounds_are_found_directly(tmp_path):
    """Each rejoin once made all batches since the start again, and summed all rounds."""
    made = job(tmp_path, Downpour(push_period=3, pull_period=4), 10**10)
    rounds = made.plan.rounds(0)
    done = 10**9
    assert rounds.steps(done) == done // 6 * 12 + rounds.steps(done % 6)
    rows, event = next(made.plan.batches(0, done))
    per_epoch = 718 // 100
    epoch, step = divmod(rounds.steps(done), per_epoch)
    order = np.random.default_rng([3, 1, epoch]).permutation(718)
    np.testing.assert_array_equal(rows[0], order[step * 100 : (step + 1) * 100])
    assert (len(rows), event) == list(rounds.first(6))[done % 6]


def test_a_period_longer_than_the_run_is_not_counted_out(monkeypatch, tmp_path):
    """A run without pulls has a pull period of 1e9: a start that looked for events up to there did not end."""
    whole = Downpour._rounds

    def of_the_run(self, steps, last):
        assert steps <= 12
        return whole(self, steps, last)

    monkeypatch.setattr(Downpour, "_rounds", of_the_run)
    made = job(tmp_path, Downpour(push_period=5, pull_period=10**9), 12)
    assert made.scheme.events == {"exchange", "push", "pull"}
    assert [event for _, event in made.plan.batches(0)] == ["push", "push", "exchange"]


def test_rounds_follow_each_other():
    both = Rounds.even(5, 2) + Rounds.even(3, 3)
    assert list(both) == [(2, "exchange"), (2, "exchange"), (1, "exchange"), (3, "exchange")]
    assert list(both.first(3)) == list(both)[:3]
    assert list(Rounds()) == []


@pytest.mark.rotating
def test_a_worker_s_graph_has_all_ops_that_it_uses_and_none_of_the_chief_s(tmp_path):
    made = job(tmp_path, SyncSGD(), 20, backend="processes")
    TaskGraph(made, [0]).export(tmp_path / "graph")
    chief, other = (TaskGraph.load(made, k, tmp_path / "graph") for k in (0, 1))
    keepers = requests_of(StopRequests, ObserverRequests, StateRequests).keys()
    assert keepers < chief.operations.keys()
    assert chief.operations.keys() - keepers == other.operations.keys()
    assert chief.of_workers[0].keys() == other.of_workers[1].keys()
    operations = [{op.name for op in g.graph.get_operations()} for g in (chief, other)]
    assert operations[1] < operations[0]
    requests = [{name.partition("/")[0] for name in names} for names in operations]  # the scopes of their names
    assert {"values", "snapshot", "drain"} < requests[0] - requests[1]


@pytest.mark.rotating
def test_a_run_in_one_process_builds_what_it_uses_before_its_first_call(tmp_path, monkeypatch):
    late, build, configure = [], Request.operation, threads.session_config

    def noted(request, *where):
        late.append(request.name)
        return build(request, *where)

    def opens(*how):
        monkeypatch.setattr(Request, "operation", noted)
        return configure(*how)

    monkeypatch.setattr(threads, "session_config", opens)
    record(LocalSGD(communication_period=2), tmp_path, workers=2, steps=4, backend="threads")
    assert not late


def calls_of(passed, busy, tmp_path, monkeypatch):
    """How many rounds a worker has in each of its calls, the first of which take these seconds, and then none."""
    worker, sizes, now = object.__new__(WorkerLoop), [], np.zeros(2)
    durations = zip(passed, busy, strict=True)

    def call(event, *batches):
        now[:] += next(durations, (0, 0))
        sizes.append(len(batches))
        worker.progress.rounds += len(batches)

    clock = SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: now[1])
    monkeypatch.setattr("distsgd.common.tasks.worker_loop.time", clock)
    worker.plan = job_of(AsyncSGD(), 1, steps=640, run_dir=tmp_path).plan
    worker.progress, worker.index, worker.state, worker.carriers = SimpleNamespace(rounds=0), 0, None, None
    worker.report, worker._call, worker.calls = lambda **_: None, call, SimpleNamespace(losses=None)
    as_is = {"at_most": lambda count: count, "announce_rounds": lambda count: None}
    worker.local = SimpleNamespace(pause_if_asked=lambda: None, ended=False, **as_is)
    worker._rounds(lambda: None)
    assert sum(sizes) == 640
    return sizes


@pytest.mark.parametrize(
    ("passed", "busy", "single"),
    [
        ([9, 0.01, 0.1], [9, 0.01, 0.1], 2),  # the first prepares all, the second tells
        ([9, 0.2], [9, 0.01], 2),  # away for most of the round: many workers share few cores
        ([9, 1, 1, 1, 0.2], [9, 0.01, 0.01, 0.01, 0.01], 5),  # others were starting
        ([9, 0.06, 0.06, 0.04], [9, 0.12, 0.12, 0.12], 4),  # others compute in the same process
        ([9] + 700 * [0.2], [9] + 700 * [0.2], 640),  # long rounds gain nothing
        ([9] + 700 * [0.3], [9] + 700 * [0.01], 640),  # a call would last too long
    ],
)
def test_rounds_are_put_into_one_call_as_soon_as_one_has_been_short(passed, busy, single, tmp_path, monkeypatch):
    sizes = calls_of(passed, busy, tmp_path, monkeypatch)
    assert sizes[:single] == single * [1]
    assert set(sizes[single : single + (640 - single) // 16]) <= {16}
