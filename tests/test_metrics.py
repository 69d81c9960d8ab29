"""The rows of a run: few of each series, however long it is, in memory and in the file."""

import itertools
import json

import pytest

from distsgd.common.record import metrics as module
from distsgd.common.record.metrics import LIMIT, Metrics, shown, worsened


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_long_series_is_thinned_evenly_and_keeps_its_first_and_last_row(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    number = 10 * LIMIT + 7
    for n in range(number):
        metrics.add({"kind": "worker", "worker": 0, "seconds": n, "loss": 0.5})
        if n % 100 == 0:
            metrics.add({"kind": "center", "seconds": n + 0.5, "version": n})
        if n % 1000 == 0:
            assert len(rows_of(tmp_path / "metrics.jsonl")) < 2 * LIMIT
    metrics.close()
    seconds = [row["seconds"] for row in metrics.rows if row["kind"] == "worker"]
    assert LIMIT / 2 <= len(seconds) <= LIMIT
    assert (seconds[0], seconds[-1]) == (0, number - 1)
    assert {later - earlier for earlier, later in itertools.pairwise(seconds[:-1])} == {16}
    centers = [row["version"] for row in metrics.rows if row["kind"] == "center"]
    assert centers == list(range(0, number, 100))
    assert [row["seconds"] for row in metrics.rows] == sorted(row["seconds"] for row in metrics.rows)
    written = rows_of(tmp_path / "metrics.jsonl")
    assert sorted(written, key=lambda row: row["seconds"]) == metrics.rows


def test_a_short_series_is_kept_and_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 8)
    first = Metrics(tmp_path / "metrics.jsonl")
    rows = [{"kind": "center", "seconds": n} for n in range(7)]
    for row in rows:
        first.add(row)
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "cen')  # the process that wrote this was killed
    assert first.rows == rows
    again = Metrics(tmp_path / "metrics.jsonl", resuming=True)
    again.add({"kind": "center", "seconds": 7})
    again.add({"kind": "center", "seconds": 8})
    again.close()
    assert [row["seconds"] for row in again.rows] == [0, 2, 4, 6, 8]
    assert rows_of(tmp_path / "metrics.jsonl") == again.rows


def test_rows_that_a_run_repeats_from_a_checkpoint_are_there_once(tmp_path, monkeypatch):
    """After a SIGKILL and `--resume`, versions after the checkpoint stood in the file twice."""
    monkeypatch.setattr(module, "LIMIT", 16)
    first = Metrics(tmp_path / "metrics.jsonl")
    for n in range(30):
        first.add({"kind": "center", "seconds": n, "version": 10 * n})
        first.add({"kind": "worker", "worker": 0, "seconds": n, "steps": 10 * n + 5, "loss": 0.5})
    first.close()
    again = Metrics(tmp_path / "metrics.jsonl", resuming=True)
    again.undo(205)
    for n in range(21, 40):
        again.add({"kind": "center", "seconds": 10 + n, "version": 10 * n})
        again.add({"kind": "worker", "worker": 0, "seconds": 10 + n, "steps": 10 * n + 5, "loss": 0.5})
    again.close()
    assert rows_of(tmp_path / "metrics.jsonl") == again.rows
    for kind, count, last in ("center", "version", 390), ("worker", "steps", 395):
        rows = [row for row in again.rows if row["kind"] == kind]
        assert [row[count] for row in rows] == sorted({row[count] for row in rows})
        assert all((row["seconds"] > 30) == (row[count] > 205) for row in rows)
        assert (rows[0]["seconds"], rows[-1][count]) == (0, last)


def test_the_row_of_the_version_from_which_a_run_continues_is_kept(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for version in (0, 10, 20):
        metrics.add({"kind": "center", "seconds": version, "version": version})
    metrics.undo(10)
    metrics.close()
    assert [row["version"] for row in rows_of(metrics.path)] == [0, 10]


@pytest.mark.parametrize("late", [False, True])
def test_a_series_of_any_length_keeps_both_ends_and_its_order(late, tmp_path, monkeypatch):
    """A center may be evaluated after those that are newer."""
    monkeypatch.setattr(module, "LIMIT", 8)
    for number in range(1, 35):
        metrics = Metrics(tmp_path / f"{number}.jsonl")
        for n in range(number):
            metrics.add({"kind": "worker", "worker": 1, "seconds": float(n)})
            metrics.add({"kind": "center", "seconds": n - 2.5 * late * (n % 3), "version": n})
            metrics.add({"kind": "center", "seconds": n, "version": n - 1})  # of the same call as the one before
        metrics.close()
        of_worker = [row["seconds"] for row in metrics.rows if row["kind"] == "worker"]
        assert (of_worker[0], of_worker[-1]) == (0, number - 1)
        assert min(number, 5) <= len(of_worker) <= 9
        every = of_worker[1] - of_worker[0] if number > 1 else 1
        assert of_worker[:-1] == [n * every for n in range(len(of_worker) - 1)]
        assert (
            rows_of(metrics.path)
            == metrics.rows
            == sorted(metrics.rows, key=lambda row: (row["seconds"], row.get("version", 0)))
        )


def test_a_huge_metric_has_an_exponent():
    assert [shown(value) for value in (None, 0.5, 123456.0, 3e33, -1e6)] == [
        "-",
        "0.5000",
        "123456.0000",
        "3.00e+33",
        "-1.00e+06",
    ]


def test_a_center_that_has_not_moved_is_told():
    rows = [{"kind": "center", "version": 0, "test_loss": 2.5}]
    assert "the first of 33 updates, so the center has not moved" in worsened(
        rows, {"test_loss": 2.5, "version": 33}, {}
    )
    assert worsened(rows, {"test_loss": 2.5, "version": 0}, {}) is None
    assert worsened(rows, {"test_loss": 2.4, "version": 33}, {}) is None
    only = [{"kind": "center", "version": 33, "test_loss": 2.5}]
    assert worsened(only, {"test_loss": 2.5, "version": 33}, {}) is None


def test_the_figures_of_a_script_are_the_last_of_each_worker_and_their_mean():
    rows = [{"kind": "worker", "seconds": i, "worker": i % 2, "steps": i, "loss": 1.0 * i} for i in range(4)]
    rows += [{"kind": "worker", "seconds": 5, "worker": 0, "steps": 5, "reward": 7.0, "bad": None}]
    assert module.logged([*rows, {"kind": "center", "seconds": 6, "test_loss": 1.0}]) == {"loss": 2.5, "reward": 7.0}
