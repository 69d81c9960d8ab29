"""The metrics of the center over time: evaluations during a run, and of the ps's snapshots after it."""

import copy
import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from distsgd.algorithms import SSP, AllReduce, AsyncSGD, Hogwild, Serial, SyncSGD
from distsgd.common.record.event_log import EventLog, Tally
from distsgd.common.server.trace import ROW, UNKNOWN
from distsgd.common.tasks import observer
from distsgd.common.tasks.observer import Observer
from distsgd.common.tasks.options import RunOptions
from distsgd.common.tasks.plan import Plan
from distsgd.common.tasks.recorder import RecordReader
from distsgd.common.tasks.results import load
from runs import DIGITS, Harness, record


class Empty:
    """A record without a reader."""

    def drain(self):
        return Tally(1)

    def read(self, action):
        return Tally(1), UNKNOWN


@pytest.fixture(scope="module")
def harness():
    with Harness(AsyncSGD(), workers=1, steps=480) as harness:
        assert harness.graph.multiples is None  # without test data the ps takes no snapshots
        harness.job.test = DIGITS.test
        harness.first = harness.worker(0)
        yield harness


class Watching:
    """An observer of a run without snapshots, whose updates are made one by one."""

    def __init__(self, monkeypatch, harness, evaluate_every=None):
        monkeypatch.setattr(harness.job, "options", replace(harness.job.options, evaluate_every=evaluate_every))
        self.harness, self.start = harness, harness.observer.version()
        self.rows, self.centers = [], {}
        self.observer = Observer(harness.job, harness.observer, Empty(), lambda **row: self.rows.append(row))
        self.observer.begin()

    def train(self, updates):
        """Observe if that is due, make an update, and so on."""
        for _ in range(updates):
            snapshot = self.harness.observer.snapshot()
            self.centers[int(snapshot["at"])] = snapshot
            self.observer.observe_if_due()
            self.harness.first.round()

    def versions(self, *events):
        return [row["version"] for row in self.rows if row["event"] in events]


@pytest.mark.rotating
def test_without_snapshots_each_multiple_that_is_seen_is_evaluated_at_once(monkeypatch, harness):
    watching = Watching(monkeypatch, harness, evaluate_every=3)
    assert watching.observer.observe_if_due()
    watching.observer.due = math.inf  # no evaluation is due by the clock
    watching.train(11)
    watching.observer.observe(last=True)
    start, end = watching.start, watching.start + 11
    between = [version for version in range(start + 1, end) if version % 3 == 0]
    assert watching.versions("center") == [start, *between, end]
    assert not watching.versions("passed")
    for row in watching.rows[1:-1]:
        load(harness.graph.model, watching.centers[row["version"]])
        x, y = DIGITS.test
        right = harness.graph.model.model(x).numpy().argmax(1) == y
        assert row["test_accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    assert len({row["test_loss"] for row in watching.rows}) == len(between) + 2


def test_the_first_version_seen_after_a_multiple_is_evaluated_and_no_other(monkeypatch, harness):
    watching = Watching(monkeypatch, harness, evaluate_every=10)
    watching.observer.due = math.inf
    versions = iter([3, 5, 9, 10, 11, 19, 25, 29, 48, 50, 51])
    evaluated = watching.observer.evaluated = {}
    for version in versions:
        monkeypatch.setattr(harness.observer, "version", lambda version=version: version)
        if watching.observer._is_wanted():
            evaluated[version] = 0.0
    assert list(evaluated) == [3, 10, 25, 48, 50]


def test_a_version_is_told_once_however_often_it_is_looked_at(monkeypatch, harness):
    """Where the workers take long to begin, looks at version 0 do not count as points of the curve.

    A metric may be undefined (NaN), which is not equal to itself.
    """
    watching = Watching(monkeypatch, harness)
    measure = watching.observer.evaluate
    watching.observer.evaluate = lambda snapshot: measure(snapshot) | {"test_auc": float("nan")}
    for _ in range(observer.ENOUGH):
        watching.observer.observe()
    assert len(watching.observer.evaluated) == 1
    watching.observer.observe(last=True)
    assert watching.versions("center") == [watching.start]


@pytest.mark.parametrize("gossips", [False, True])
def test_the_last_center_has_the_time_of_its_event_not_that_of_its_evaluation(monkeypatch, harness, gossips):
    watching = Watching(monkeypatch, harness)
    watching.observer.gossips = gossips
    harness.first.round()
    made = round(1e6 * (watching.observer.began - watching.observer.ago)) + 5
    monkeypatch.setattr(watching.observer.reader, "read", lambda action: (Tally(1), made))
    watching.observer.observe(last=True)
    assert watching.rows[-1]["when"] == pytest.approx(watching.observer.began + 5e-6, abs=2e-6)


def test_a_last_evaluation_that_is_given_up_keeps_the_metrics_of_the_same_center(monkeypatch, harness):
    watching = Watching(monkeypatch, harness)
    watching.observer.observe()
    known = watching.observer.metrics["test_loss"]
    watching.observer.evaluate = lambda snapshot: {}
    watching.observer.observe(last=True)
    assert watching.observer.metrics["test_loss"] == known
    watching.train(1)
    watching.observer.observe(last=True)
    assert "test_loss" not in watching.observer.metrics


def test_an_event_before_a_resumed_run_has_no_time_in_it(monkeypatch, harness):
    """The version with which it begins would be before its first one: by the hours between both starts."""
    monkeypatch.setattr(observer.checkpoint, "found", lambda run_dir: [run_dir])
    watching = Watching(monkeypatch, harness)
    an_hour_ago, soon = (int(1e6 * (time.time() + seconds)) for seconds in (-3600, 1))
    assert watching.observer._time_of(an_hour_ago, 5.0) == 5.0
    assert watching.observer._time_of(soon, 5.0) > watching.observer.began


def test_evaluations_fit_into_the_time_of_the_training_and_leave_room_for_the_last():
    took = observer.Expense(seconds=4.0)
    assert [took.allows_another(trained) for trained in (0.0, 7.9, 8.0)] == [False, False, True]
    took.add(9.0)  # the first is slow
    assert [took.allows_another(trained) for trained in (16.0, 17.0)] == [False, True]
    for seconds in (3.0, 5.0):
        took.add(seconds)
    assert (took.seconds, took.spent) == (3.0, 17.0)
    assert took.left(77.0) == 20
    assert took.left(10.0) == observer.LATER_SECONDS / 3
    assert observer.Expense(seconds=0.01).allows_another(0.0)


def test_snapshots_that_would_take_longer_than_the_training_are_thinned_out_and_that_is_said(monkeypatch, harness):
    clock = Clock()
    monkeypatch.setattr(observer, "time", clock)
    watching = Watching(monkeypatch, harness, evaluate_every=5)
    watching.observer.expense = observer.Expense(seconds=2.0, spent=4.0)
    found = watching.observer._in_time(list(range(9)), clock.now + 12.0)  # time for four of nine
    assert (found, watching.rows[0]["event"]) == ([0, 3, 6], "warning")
    assert watching.rows[0]["message"] == (
        "3 of 9 snapshots of the center are evaluated: all would take 18 s, longer than the training (12 s)"
    )
    assert watching.observer._in_time(list(range(4)), clock.now + 12.0) == [0, 1, 2, 3]


def test_multiples_that_are_left_out_for_time_are_said_once(monkeypatch, harness):
    clock = Clock()
    monkeypatch.setattr(observer, "time", clock)
    watching = Watching(monkeypatch, harness, evaluate_every=1)
    watching.observer.expense.seconds = 3.0
    assert not any(watching.observer.observe_if_due() for _ in range(2))
    assert [row["event"] for row in watching.rows] == ["warning"]
    assert watching.rows[0]["message"].endswith("3.0 s each: some multiples of evaluate_every are left out")
    clock.now += 6.0
    assert watching.observer.observe_if_due()


def test_the_warm_up_estimates_an_evaluation_from_some_batches():
    x, y = DIGITS.test
    measured = []

    def measure(batches):
        measured.append(len(list(batches)))
        return {}

    model = SimpleNamespace(measure=measure)
    several = (np.repeat(x, 20, axis=0), np.repeat(y, 20))  # 12 batches
    assert observer.Evaluation(model, several).warm_up() > 0
    assert observer.Evaluation(model, DIGITS.test).warm_up() > 0
    assert observer.Evaluation(model, None).warm_up() == 0
    assert measured == [1, 10, 1, 1]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    time = monotonic


def test_of_a_model_that_takes_long_to_pull_few_centers_are_pulled(monkeypatch, harness):
    """To pull, and to evaluate, takes a tenth of the time of the run at most: with 84 MB, not ten times a second."""
    clock = Clock()
    monkeypatch.setattr(observer, "time", clock)
    watching, pulls = Watching(monkeypatch, harness), []

    def pull():
        pulls.append(clock.now)
        clock.now += 0.25
        return harness.observer.snapshot()

    monkeypatch.setattr(watching.observer, "calls", SimpleNamespace(snapshot=pull))
    monkeypatch.setattr(watching.observer, "evaluate", lambda snapshot=None: {})
    while clock.now < 160:
        watching.observer.observe_if_due()
        clock.now += 0.05
    assert len(pulls) <= 60 / 10 / 0.25
    assert np.diff(pulls)[2:].min() >= 2.5  # the cost is known from the second one on
    assert len(pulls) > 10


# Snapshots that the ps takes.


def history(scheme, run_dir, **options):
    """The rows of the center of a run with test data."""
    record(scheme, run_dir, test=DIGITS.test, batch_size=8, **options)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "center"]
    with np.load(run_dir / "trace.npz") as trace:  # a version is made by the last event at the one before
        made = dict(zip(trace["version"].tolist(), (trace["microseconds"] / 1e6).tolist(), strict=True))
    apart = [row["seconds"] - made[row["version"] - 1] for row in rows if row["version"] - 1 in made]
    assert np.ptp(apart) < 0.002  # the clock of the rows begins with the run
    return rows


def check_points(rows, every, end, batch):
    """Each multiple is there, with what the run added up to; others exist where the observer read the center.

    `batch` is that of an update.
    """
    assert set(range(0, end + 1, every)) <= {row["version"] for row in rows}
    in_order = sorted(rows, key=lambda row: (row["version"], row["seconds"]))
    assert [row["seconds"] for row in in_order] == [row["seconds"] for row in rows]
    assert {row["examples"] - row["version"] * batch for row in rows} == {0}
    assert rows[-1]["test_accuracy"] > rows[0]["test_accuracy"] + 0.3


@pytest.mark.parametrize(
    ("scheme", "options", "every", "end", "batch"),
    [
        (AsyncSGD(), {"steps": 100}, 10, 200, 8),
        (AllReduce(), {"steps": 100}, 5, 100, 16),
    ],
    ids=["async", "without a ps"],
)
@pytest.mark.rotating
def test_a_short_run_has_a_point_at_each_multiple(tmp_path, monkeypatch, scheme, options, every, end, batch):
    monkeypatch.setattr(observer, "ENOUGH", 10**6)  # on a busy machine there may be as many as in a long run
    rows = history(scheme, tmp_path, workers=2, backend="threads", **options)
    check_points(rows, every, end, batch)
    assert len(rows) > 20


@pytest.mark.rotating
def test_processes_take_the_same_snapshots_on_two_ps_tasks(tmp_path):
    check_points(history(AsyncSGD(), tmp_path, workers=2, ps=2, steps=100, ema_decay=0.5), 10, 200, 8)


class Passing:
    """A run that is played update by update: the centers that it had, and the snapshots of them."""

    def __init__(self, harness, tmp_path):
        self.harness, self.first, self.centers = harness, harness.worker(0), {}
        self.rows = []
        self.reader = RecordReader(harness.observer, EventLog(tmp_path, 1), lambda **row: None, lambda events: None)
        self.observer = Observer(harness.job, harness.observer, self.reader, lambda **row: self.rows.append(row))
        self.observer.begin()
        self.look()

    def look(self):
        snapshot = self.harness.observer.snapshot()
        self.centers[int(snapshot["at"])] = snapshot["center"]

    def train(self, updates):
        for _ in range(updates):
            self.first.round()
            self.look()

    def snapshots(self):
        """The versions, each of which is the center that the run had then."""
        points = self.observer.snapshots({self.harness.observer.version(): time.monotonic()})
        for point in points:
            np.testing.assert_array_equal(point.snapshot["center"], self.centers[point.version])
        return [point.version for point in points]


@pytest.mark.parametrize("scheme", [AsyncSGD(), SSP(), SyncSGD(), Hogwild()], ids=lambda scheme: scheme.name)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_snapshots_are_the_center_at_exact_multiples(tmp_path, scheme):
    with Harness(
        scheme, workers=1, ps=2 if scheme.name == "ssp" else 1, steps=30, evaluate_every=4, test=DIGITS.test
    ) as harness:
        passing = Passing(harness, tmp_path)
        passing.train(10)
        assert passing.snapshots() == [0, 4, 8]
        passing.observer.observe(last=True)
        assert [row["version"] for row in passing.rows] == [0, 4, 8, 10]
        assert [row["examples"] for row in passing.rows] == [0, 32, 64, 80]
        whens = [row["when"] for row in passing.rows]
        assert whens == sorted(whens)
        passing.train(20)
        assert passing.snapshots() == [0, 4, 8, 12, 16, 20, 24, 28]


@pytest.fixture
def passing(tmp_path):
    """A run with snapshots that were not asked for, of every second version."""
    with Harness(AsyncSGD(), workers=1, steps=40, test=DIGITS.test) as harness:
        assert harness.graph.multiples == (2, 21)
        passing = Passing(harness, tmp_path)
        passing.train(40)
        yield passing


def evaluated_after(passing):
    """The versions whose snapshots are evaluated when the run ends."""
    passing.observer.observe(last=True)
    return [row["version"] for row in passing.rows if row["event"] == "passed"]


@pytest.mark.rotating
def test_snapshots_are_evaluated_after_the_run_without_being_asked_for(monkeypatch, passing):
    monkeypatch.setattr(observer, "LATER_SECONDS", 1000.0)
    assert evaluated_after(passing) == list(range(0, 40, 2))


@pytest.mark.rotating
def test_costly_evaluations_leave_out_snapshots_that_were_not_asked_for(monkeypatch, passing):
    began = passing.observer.began
    clock = SimpleNamespace(monotonic=lambda: began + 1.0, time=time.time, process_time=iter([0.0, 1.1]).__next__)
    monkeypatch.setattr(observer, "time", clock)  # five seconds are allowed, for four evaluations
    assert evaluated_after(passing) == [0, 10, 20, 30]


@pytest.mark.rotating
def test_no_snapshot_is_evaluated_where_one_takes_longer_than_allowed(monkeypatch, passing):
    clock = SimpleNamespace(monotonic=time.monotonic, time=time.time, process_time=iter([0.0, 6.0]).__next__)
    monkeypatch.setattr(observer, "time", clock)
    assert evaluated_after(passing) == []


@pytest.mark.rotating
def test_many_evaluations_during_a_run_make_its_snapshots_superfluous(passing):
    passing.observer.evaluated = dict.fromkeys(range(observer.ENOUGH), 0.0)
    assert evaluated_after(passing) == []


@pytest.mark.gate
def test_evaluations_that_wait_for_the_end_begin_with_the_initial_model(passing):
    passing.observer.later = True
    assert not passing.observer.observe_if_due()
    assert evaluated_after(passing) == list(range(0, 40, 2))
    assert passing.rows[0]["when"] == passing.observer.began


@pytest.mark.rotating
def test_an_evaluator_on_another_machine_tells_when_the_ps_made_a_version(passing, monkeypatch):
    """Its own clock would tell when it has seen the version: after a pause, or a long evaluation, much later."""
    offset = time.monotonic() - time.time()
    cluster = copy.copy(passing.harness.job.cluster)
    object.__setattr__(cluster, "task", "evaluator")
    monkeypatch.setattr(passing.harness.job, "cluster", cluster)
    own = passing.harness.job, passing.harness.observer, passing.reader, lambda **row: passing.rows.append(row)
    seen = Observer(*own)
    seen.begin()
    passing.reader.drain()
    assert passing.reader.ago >= offset - 0.001
    passing.reader.ago -= 100  # an offset that is known here
    seen.observe()
    _, last = passing.reader.read(lambda log: log.before(passing.rows[-1]["version"]))
    assert passing.rows[-1]["when"] == pytest.approx(last / 1e6 + passing.reader.ago)
    assert passing.rows[-1]["when"] < seen.began
    resumed = Observer(*own)
    resumed.begin()
    resumed.observe()  # a version of the start before
    assert passing.rows[-1]["when"] >= resumed.began


@pytest.mark.rotating
def test_without_test_data_the_center_is_fetched_once_at_the_end(monkeypatch, tmp_path):
    with Harness(AsyncSGD(), workers=1, steps=30) as harness:
        fetched = []
        snapshot = harness.observer.snapshot
        monkeypatch.setattr(harness.observer, "snapshot", lambda: fetched.append(None) or snapshot())
        rows = []
        reader = RecordReader(harness.observer, EventLog(tmp_path, 1), lambda **row: None, lambda events: None)
        observer = Observer(harness.job, harness.observer, reader, lambda **row: rows.append(row))
        observer.begin()
        worker = harness.worker(0)
        worker.round()
        assert observer.observe_if_due()
        assert not fetched
        worker.round()
        end = observer.observe(last=True)
        assert len(fetched) == 1
        np.testing.assert_array_equal(end["center"], harness.run("center"))
        assert [(row["version"], row["examples"]) for row in rows] == [(1, 8), (2, 16)]


@pytest.mark.rotating
def test_a_restoration_undoes_snapshots_taken_after_its_checkpoint(tmp_path):
    with Harness(AsyncSGD(), workers=1, steps=30, evaluate_every=4, test=DIGITS.test) as harness:
        passing = Passing(harness, tmp_path)
        passing.train(10)
        before = harness.state_calls.values()
        passing.train(7)
        harness.state_calls.restore(before, restoration=2, events=10)
        assert passing.snapshots() == [0, 4, 8]
        passing.first.join()
        passing.first.calls.rounds("exchange", np.ones((1, 1, 8), np.int32))  # another way from here on
        passing.look()
        passing.train(2)
        assert passing.snapshots() == [0, 4, 8, 12]
        harness.session.run(harness.graph.operations["_clear_snapshots"].fetches[0])  # as if the ps came back empty
        passing.train(3)
        assert passing.snapshots() == [16]


def test_length_and_model_size_decide_how_many_snapshots_are_taken(harness):
    def multiples(floats=1000, workers=2, scheme=None, **options):
        drawn = {"batch_size": 8, "record": "full"}
        options = RunOptions(**drawn | options)
        return Plan(scheme or AsyncSGD(), DIGITS.train, workers, options, options.steps).multiples(floats)

    assert multiples(steps=10) == (1, 21)
    assert multiples(steps=88) == (5, 36)
    assert multiples(steps=1000) == (100, 21)
    assert multiples(steps=1000, scheme=SyncSGD()) == (50, 21)
    assert multiples(steps=1000, scheme=Serial(), workers=1) == (50, 21)
    assert multiples(steps=1000, evaluate_every=7) == (7, 286)
    assert multiples(steps=1000, evaluate_every=1) is None
    assert multiples(steps=88, floats=1_000_000) is None
    assert multiples(steps=88, floats=1_000_000, evaluate_every=10) == (10, 18)
    assert multiples(steps=88, floats=10_000_000, evaluate_every=10) is None
    assert multiples(steps=10**6, record="off") is None


def test_tallies_are_of_the_events_before_each_version(tmp_path):
    log = EventLog(tmp_path, 2)
    events = np.zeros((12, len(ROW)), np.int64)
    events[:, 0], events[:, 1], events[:, 3] = np.arange(12) // 2, np.arange(12) % 2, 1
    events[:, ROW.index("microseconds")] = 100 * np.arange(1, 13)
    log.append(events)
    tallies = log.tallies([0, 1, 4, 9])
    assert [tally.events for tally, _ in tallies] == [0, 2, 8, 12]
    assert [tally.rounds.tolist() for tally, _ in tallies] == [[0, 0], [1, 1], [4, 4], [6, 6]]
    for version, (tally, last) in zip([0, 1, 4, 9], tallies, strict=True):
        found, made = log.before(version)
        assert (found.events, found.rounds.tolist(), found.accepted.sum()) == (
            tally.events, tally.rounds.tolist(), tally.accepted.sum(),
        )  # fmt: skip
        assert found.staleness.total() == tally.events
        assert made == last == (100 * tally.events if tally.events else -1)
