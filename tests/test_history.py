"""The metrics of the center over time: which centers are kept on the way, and what is measured of them after a run."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from distsgd.algorithms import SSP, AllReduce, AsyncSGD, Hogwild, Serial, SyncSGD
from distsgd.common import UserError
from distsgd.common.record.event_log import EventLog, Tally
from distsgd.common.record.metrics import Metrics
from distsgd.common.run import center_path, observer, path_keeper
from distsgd.common.run.center_path import CenterPath, Moment, even_choice
from distsgd.common.run.observer import Observer
from distsgd.common.run.options import RunOptions
from distsgd.common.run.path_keeper import PACE_SHARE, PathKeeper
from distsgd.common.run.plan import Plan
from distsgd.common.run.record_reader import RecordReader
from distsgd.common.run.results import load
from runs import DIGITS, Table, record, wait_until


def passed(path, versions):
    """The versions that are kept of those that are seen; there are never more than the room allows."""
    for version in versions:
        if path.wants(version):
            path.keep(Moment(float(version), {"version": version}, {}))
        assert len(path.moments) <= path.room
    return [moment.version for moment in path.moments]


def test_the_first_center_at_or_after_each_multiple_is_kept():
    assert passed(CenterPath(10, 100, 1), [3, 5, 9, 10, 11, 19, 25, 29, 48, 50, 51]) == [3, 10, 25, 48, 50]
    assert passed(CenterPath(4, 100, 1), range(17)) == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("end", [60, 61, 1000, 12_345])
def test_where_there_is_no_room_the_multiples_get_rarer_and_what_is_kept_stays_even(end):
    path = CenterPath(1, 60, 1)
    versions = passed(path, range(end + 1))
    assert 30 <= len(versions) <= 60
    assert versions == list(range(0, end + 1, path.every))


def test_of_a_large_model_few_centers_are_kept_and_of_a_huge_one_none(monkeypatch):
    monkeypatch.setattr(center_path, "KEPT_BYTES", 4000)
    assert CenterPath(1, 60, 10).room == 60
    assert CenterPath(1, 60, 200).room == 5
    assert passed(CenterPath(1, 60, 800), range(100)) == [0]
    assert passed(CenterPath(1, 60, 1001), range(100)) == []


def test_a_center_that_a_restoration_has_undone_is_forgotten():
    assert passed(CenterPath(10, 60, 1), [0, 10, 20, 30, 12, 19, 21, 30]) == [0, 10, 21, 30]


def test_an_even_choice_has_the_first_and_the_last():
    path = CenterPath(1, 60, 1)
    passed(path, range(50))
    assert [moment.version for moment in even_choice(path.moments, 8)] == [0, 7, 14, 21, 28, 35, 42, 49]
    assert len(even_choice(path.moments, 1000)) == len(path.close()) == 50
    assert even_choice(path.moments, 8) == []
    assert not path.wants(50)
    path.keep(Moment(0.0, {"version": 50}, {}))  # one that was under way
    assert path.moments == []


class Empty:
    """A record that nobody takes over."""

    def drain(self):
        return Tally(1)


@pytest.fixture(scope="module")
def table():
    with Table(AsyncSGD(), workers=1, steps=10_000) as table:
        assert (
            table.graph.multiples is None
        )  # without test data the ps sets none aside: they are looked at from outside
        table.job.test = DIGITS.test
        table.first = table.player(0)
        yield table


class Watching:
    """An observer of a run whose updates are made one by one: nothing is left to luck."""

    def __init__(self, monkeypatch, table, evaluate_every=None, evaluate_later=False):
        monkeypatch.setattr(table.job, "options", replace(table.job.options, evaluate_every=evaluate_every))
        monkeypatch.setattr(table.job, "evaluate_later", evaluate_later)
        self.table, self.start = table, table.observer.version()
        self.rows, self.centers = [], {}
        self.observer = Observer(table.job, table.observer, Empty(), lambda **row: self.rows.append(row))
        self.observer.begin()

    def train(self, updates):
        """A look, an update, and so on."""
        for _ in range(updates):
            self.observer.keeper.look()
            snapshot = self.table.observer.snapshot()
            self.centers[int(snapshot["at"])] = snapshot
            self.table.first.round()

    def versions(self, *events):
        return [row["version"] for row in self.rows if row["event"] in events]


def test_what_is_kept_is_measured_after_the_training_as_it_was_on_the_way(monkeypatch, table):
    watching = Watching(monkeypatch, table, evaluate_every=3)
    assert watching.observer.observe_if_due()
    watching.train(11)
    assert not watching.versions("passed")  # the workers have the processor
    watching.observer.observe(last=True)
    start, end = watching.start, watching.start + 11
    passed = watching.versions("passed")
    assert passed == [version for version in range(start + 1, end) if version % 3 == 0]  # `start` was evaluated then
    assert watching.versions("center") == [start, end]
    assert watching.rows[-1]["event"] == "center"
    moments = [row["when"] for row in watching.rows]
    assert moments == sorted(moments)
    for row in watching.rows[1:-1]:
        load(table.graph.model, watching.centers[row["version"]])
        x, y = DIGITS.test
        right = table.graph.model.model(x).numpy().argmax(1) == y
        assert row["test_accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    assert len({row["test_loss"] for row in watching.rows}) == len(passed) + 2


def test_if_nothing_is_said_a_short_run_has_a_curve(monkeypatch, table):
    monkeypatch.setattr(observer, "LATER_SECONDS", 1000.0)
    watching = Watching(monkeypatch, table)
    monkeypatch.setattr(watching.observer, "evaluate", lambda snapshot=None: {})
    watching.train(150)
    watching.observer.observe(last=True)
    versions = watching.versions("passed", "center")
    assert 30 <= len(versions) <= 61
    assert max(np.diff(versions)) <= 150 / 20


def test_if_nothing_is_said_a_long_run_keeps_nothing_and_a_costly_evaluation_is_left_out(monkeypatch, table):
    monkeypatch.setattr(observer, "LATER_SECONDS", 0.0)
    monkeypatch.setattr(observer, "LATER_SHARE", 0.0)
    watching = Watching(monkeypatch, table)
    monkeypatch.setattr(watching.observer, "evaluate", lambda snapshot=None: {})
    watching.train(5)
    watching.observer.observe(last=True)
    assert watching.versions("passed", "center") == [watching.start + 5]
    watching = Watching(monkeypatch, table)
    monkeypatch.setattr(watching.observer, "evaluate", lambda snapshot=None: {})
    for _ in range(observer.ENOUGH):
        assert watching.observer.path.room
        watching.observer.observe()
        watching.table.first.round()
    assert not watching.observer.path.room


def test_a_version_is_told_once_however_often_it_is_looked_at(monkeypatch, table):
    """Where the workers take long to begin, looks at version 0 do not count as points of the curve.

    A metric may be undefined (NaN), which is not equal to itself.
    """
    watching = Watching(monkeypatch, table)
    measure = watching.observer.evaluate
    watching.observer.evaluate = lambda snapshot: measure(snapshot) | {"test_auc": float("nan")}
    for _ in range(observer.ENOUGH):
        watching.observer.observe()
    assert watching.observer.path.room
    watching.observer.observe(last=True)
    assert watching.versions("center") == [watching.start]


def test_evaluations_that_wait_for_the_end_begin_with_the_initial_model(monkeypatch, table):
    watching = Watching(monkeypatch, table, evaluate_every=2, evaluate_later=True)
    assert not watching.observer.observe_if_due()
    watching.train(4)
    watching.observer.observe(last=True)
    start = watching.start  # the first center that is seen is kept, whichever it is
    kept = [version for version in range(start, start + 4) if version and (version == start or version % 2 == 0)]
    assert watching.versions("passed") == [0, *kept]
    assert watching.versions("center") == [start + 4]


def test_rows_that_come_late_are_where_they_belong_in_memory_and_in_the_file(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for seconds in (0.0, 2.0, 5.0, 1.0, 3.0, 6.0):
        metrics.add({"kind": "center", "seconds": seconds})
        metrics.add({"kind": "worker", "worker": 0, "seconds": seconds + 10})
    metrics.close()
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == metrics.rows
    assert [row["seconds"] for row in written] == [*np.sort([0, 1, 2, 3, 5, 6]), *np.sort([10, 11, 12, 13, 15, 16])]


def test_how_often_to_look_follows_the_pace_of_the_run(monkeypatch, table):
    """Not before the next multiple can be there; where nothing moves, rarely."""
    keeper = Watching(monkeypatch, table, evaluate_every=50).observer.keeper
    for version in (0, 50):
        keeper.path.keep(Moment(0.0, {"version": version}, {}))
    assert keeper.ahead(100.0, 0) == 0
    assert keeper.ahead(104.0, 60) == 0  # the start says nothing
    assert keeper.ahead(108.0, 90) == pytest.approx(0.8)  # 1.3 s at this pace, but that is not known for long
    assert keeper.ahead(110.0, 96) == pytest.approx(1.0)
    assert keeper.ahead(110.1, 99) == pytest.approx(0.1 / 3)
    assert keeper.ahead(111.1, 99) == pytest.approx(1.0 / PACE_SHARE)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


def test_of_a_model_that_takes_long_to_pull_few_centers_are_pulled(monkeypatch, table):
    """To pull, and to evaluate, takes a tenth of the time of the run at most: with 84 MB, not ten times a second."""
    clock = Clock()
    monkeypatch.setattr(observer, "time", clock)
    watching, pulls = Watching(monkeypatch, table), []

    def pull():
        pulls.append(clock.now)
        clock.now += 0.25
        return table.observer.snapshot()

    monkeypatch.setattr(watching.observer, "calls", SimpleNamespace(snapshot=pull))
    monkeypatch.setattr(watching.observer, "evaluate", lambda snapshot=None: {})
    while clock.now < 160:
        watching.observer.observe_if_due()
        clock.now += 0.05
    assert len(pulls) <= 60 / 10 / 0.25
    assert np.diff(pulls)[2:].min() >= 2.5  # the cost is known from the second one on
    assert len(pulls) > 10


class Ready:
    """Calls of a run that is at a version when it is asked; the fourth call finds no ps."""

    def __init__(self):
        self.versions = iter([0, 0, 3, None, 5, 9, 12])

    def await_state(self):
        pass

    def version(self):
        version = next(self.versions, None)
        if version is None:
            raise OSError("no ps")
        self.at = version
        return version

    def snapshot(self):
        return {"at": self.at}


def test_the_thread_that_looks_outlives_a_ps_that_is_lost_and_ends_with_the_run(monkeypatch):
    monkeypatch.setattr(path_keeper, "LONGEST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(path_keeper, "SHORTEST_PAUSE_SECONDS", 0.0)
    path = CenterPath(4, 60, 1)
    with PathKeeper(Ready(), path, lambda snapshot: Moment(0.0, {"version": snapshot["at"]}, {})) as keeper:
        wait_until(lambda: len(path.moments) == 4)
    assert [moment.version for moment in path.moments] == [0, 5, 9, 12]
    wait_until(lambda: not keeper._thread.is_alive())


def test_a_number_of_updates_that_is_none_is_refused():
    with pytest.raises(UserError, match=r"evaluate_every must be at least 1. Received: evaluate_every=0"):
        RunOptions(evaluate_every=0)


# Milestones: what the ps sets aside.


def history(scheme, run_dir, **options):
    """The rows of the center of a run with test data."""
    record(scheme, run_dir, test=DIGITS.test, batch_size=8, **options)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "center"]


def check_points(rows, every, end, batch):
    """Each multiple is there, with what the run added up to; others are there because somebody looked just then.

    `batch` is that of an update.
    """
    assert set(range(0, end + 1, every)) <= {row["version"] for row in rows}
    in_order = sorted(rows, key=lambda row: (row["version"], row["seconds"]))
    assert [row["seconds"] for row in in_order] == [row["seconds"] for row in rows]
    beyond = [row["examples"] - row["version"] * batch for row in rows if row["version"] % every == 0]
    assert min(beyond) == 0  # who looks from outside may see messages that came a moment later
    assert beyond.count(0) > len(beyond) / 2
    assert rows[-1]["test_accuracy"] > rows[0]["test_accuracy"] + 0.3


@pytest.mark.parametrize(
    ("scheme", "options", "every", "end", "batch"),
    [
        (AsyncSGD(), {"steps": 100}, 10, 200, 8),
        pytest.param(SyncSGD(), {"steps": 100, "evaluate_every": 3}, 3, 100, 16, marks=pytest.mark.slow),
        pytest.param(AllReduce(), {"steps": 100}, 5, 100, 16, marks=pytest.mark.slow),
    ],
    ids=["async", "barrier", "without a ps"],
)
def test_a_short_run_has_a_point_at_each_multiple(tmp_path, scheme, options, every, end, batch):
    rows = history(scheme, tmp_path, workers=2, backend="threads", **options)
    check_points(rows, every, end, batch)
    assert len(rows) > 20


@pytest.mark.slow
def test_the_processes_of_a_run_set_the_same_centers_aside_on_two_ps_tasks(tmp_path):
    check_points(history(AsyncSGD(), tmp_path, workers=2, ps=2, steps=100, ema_decay=0.5), 10, 200, 8)


class Passing:
    """A run that is played update by update: which centers it has come to, and which were set aside."""

    def __init__(self, table, tmp_path):
        self.table, self.first, self.centers = table, table.player(0), {}
        self.rows = []
        self.reader = RecordReader(table.observer, EventLog(tmp_path, 1), lambda **row: None, lambda events: None)
        self.observer = Observer(table.job, table.observer, self.reader, lambda **row: self.rows.append(row))
        self.observer.begin()
        self.look()

    def look(self):
        snapshot = self.table.observer.snapshot()
        self.centers[int(snapshot["at"])] = snapshot["center"]

    def train(self, updates):
        for _ in range(updates):
            self.first.round()
            self.look()

    def set_aside(self):
        """The versions, each of which is the center that the run had then."""
        moments = self.observer.milestones.read({self.table.observer.version(): time.monotonic()})
        for moment in moments:
            np.testing.assert_array_equal(moment.snapshot["center"], self.centers[moment.version])
        return [moment.version for moment in moments]


@pytest.mark.parametrize("scheme", [AsyncSGD(), SSP(), SyncSGD(), Hogwild()], ids=lambda scheme: scheme.name)
def test_what_is_set_aside_is_the_center_at_exact_multiples(tmp_path, scheme):
    with Table(
        scheme, workers=1, ps=2 if scheme.name == "ssp" else 1, steps=30, evaluate_every=4, test=DIGITS.test
    ) as table:
        passing = Passing(table, tmp_path)
        passing.train(10)
        assert passing.set_aside() == [0, 4, 8]
        passing.observer.observe(last=True)
        assert [row["version"] for row in passing.rows] == [0, 4, 8, 10]
        assert [row["examples"] for row in passing.rows] == [0, 32, 64, 80]
        whens = [row["when"] for row in passing.rows]
        assert whens == sorted(whens)
        passing.train(20)
        assert passing.set_aside() == [0, 4, 8, 12, 16, 20, 24, 28]


def test_without_test_data_the_center_is_fetched_once_at_the_end(monkeypatch, tmp_path):
    with Table(AsyncSGD(), workers=1, steps=30) as table:
        fetched = []
        snapshot = table.observer.snapshot
        monkeypatch.setattr(table.observer, "snapshot", lambda: fetched.append(None) or snapshot())
        rows = []
        reader = RecordReader(table.observer, EventLog(tmp_path, 1), lambda **row: None, lambda events: None)
        observer = Observer(table.job, table.observer, reader, lambda **row: rows.append(row))
        observer.begin()
        worker = table.player(0)
        worker.round()
        assert observer.observe_if_due()
        assert not fetched
        worker.round()
        end = observer.observe(last=True)
        assert len(fetched) == 1
        np.testing.assert_array_equal(end["center"], table.run("center"))
        assert [(row["version"], row["examples"]) for row in rows] == [(1, 8), (2, 16)]


def test_a_restoration_undoes_what_was_set_aside_after_its_checkpoint(tmp_path):
    with Table(AsyncSGD(), workers=1, steps=30, evaluate_every=4, test=DIGITS.test) as table:
        passing = Passing(table, tmp_path)
        passing.train(10)
        before = table.state_calls.values()
        passing.train(7)
        table.state_calls.restore(before, restoration=2, events=10)
        assert passing.set_aside() == [0, 4, 8]
        passing.first.join()
        passing.first.calls.rounds("exchange", np.ones((1, 1, 8), np.int32))  # another way from here on
        passing.look()
        passing.train(2)
        assert passing.set_aside() == [0, 4, 8, 12]
        table.state_calls._run(table.graph.ops.forget_milestones[0])  # as if the ps came back empty
        passing.train(3)
        assert passing.set_aside() == [16]


def test_how_many_centers_are_set_aside_follows_from_the_length_of_the_run_and_the_size_of_the_model(table):
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
    assert multiples(steps=10**6, record="off") is None


def test_tallies_are_of_the_events_before_each_version(tmp_path):
    log = EventLog(tmp_path, 2)
    events = np.zeros((12, 6), np.int64)
    events[:, 0], events[:, 1], events[:, 3] = np.arange(12) // 2, np.arange(12) % 2, 1
    log.append(events)
    tallies = log.tallies([0, 1, 4, 9])
    assert [tally.events for tally in tallies] == [0, 2, 8, 12]
    assert [tally.rounds.tolist() for tally in tallies] == [[0, 0], [1, 1], [4, 4], [6, 6]]
