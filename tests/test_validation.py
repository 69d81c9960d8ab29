"""The validation of the simulation: what is compared with what, what is kept, how it is told."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from distsgd.algorithms import AsyncSGD, SyncSGD
from distsgd.benchmarks import complete, tables, validation
from distsgd.benchmarks.validation import Options, ValidationRun
from distsgd.common.data.named import load

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("quick", [True, False])
def test_each_run_is_predicted_from_another_worker_count_or_period(quick):
    pairs = validation.plan(quick)
    measured = {run.name for run, _ in pairs}
    for run, other in pairs:
        assert other.name in measured
        assert (run.workers, run.scheme.period) != (other.workers, other.scheme.period)
    if not quick:
        kinds = {(type(run.scheme), run.workers) for run, _ in pairs}
        assert len(kinds) == 12
        assert {run.workers for run, _ in pairs} == {2, 4, 8}
        assert {run.scheme.period for run, _ in pairs} == {1, 10}
        assert any(run.scheme.backup_workers for run, _ in pairs if isinstance(run.scheme, SyncSGD))


def test_an_asynchronous_run_ends_at_an_update_while_all_workers_work():
    options = Options(seconds=8, milliseconds=40)
    asynchronous = ValidationRun(AsyncSGD(), 4).options(options, None)
    assert asynchronous.stop_at_version == round(200 * 4 * (1 + 1 / 1.5) / 2)
    assert asynchronous.steps > 1.5 * 200  # of the fastest, which must not run out of them
    assert ValidationRun(SyncSGD(), 4).options(options, None).stop_at_version is None
    seeds = {run.options(options, None).seed for run, _ in validation.plan(False)}
    assert len(seeds) == 15  # no run has the delays of another


def test_every_second_worker_takes_half_as_much_again():
    draw, rng = validation.batch_seconds(40.0), np.random.default_rng(0)
    means = [np.mean([draw(rng, worker) for _ in range(4000)]) for worker in (0, 1, 2)]
    assert means == pytest.approx([0.04, 0.06, 0.04], rel=0.03)
    assert min(draw(rng, 0) for _ in range(1000)) >= 0.02


def test_a_measured_run_is_not_repeated_but_an_interrupted_one_is(monkeypatch, tmp_path):
    data, options, planned, runs = load(validation.DATASET), Options(), ValidationRun(AsyncSGD(), 2), []

    class Record:
        def finish(self, error, picture):
            runs[-1].mkdir(parents=True)
            outcome = "interrupted" if len(runs) == 1 else "completed"
            (runs[-1] / "result.json").write_text(json.dumps({"outcome": outcome}))

    def run(job, config, verbose):
        runs.append(job.run_dir)
        return Record(), None

    monkeypatch.setattr(validation, "FOLDER", tmp_path)
    monkeypatch.setattr(complete, "run", run)
    folders = [validation.measured(planned, data, options) for _ in range(3)]
    assert runs == folders[:2]
    other = validation.measured(planned, data, Options(seconds=1))
    assert runs[-1] == other != folders[0]


def test_a_loss_is_reached_between_two_looks():
    seconds, losses = np.array([1.0, 2.0, 4.0]), np.array([2.0, 1.0, 0.5])
    assert validation.seconds_to(1.5, seconds, losses) == 1.5
    assert validation.seconds_to(0.75, seconds, losses) == 3.0
    assert validation.seconds_to(3.0, seconds, losses) == 1.0
    assert validation.seconds_to(0.1, seconds, losses) is None


def figures(updates, staleness, seconds_to=2.5):
    return {"updates": updates, "staleness": staleness, "slow": 0.4, "waiting": 0.125, "seconds_to": seconds_to}


def test_what_misses_is_shown(tmp_path):
    rows = [
        {"name": "a", "fitted_to": "b", "real": figures(20, 3.0), "predicted": figures(21, 3.4)},
        {"name": "c", "fitted_to": "b", "real": figures(20, 3.0), "predicted": figures(17, 3.6, None)},
    ]
    (tmp_path / "validation.json").write_text(json.dumps({"cores": 2, "rows": rows}))
    page = tables.with_tables("<!-- table: validation -->\nold\n<!-- end -->\n", tmp_path)
    good, bad = [line for line in page.splitlines() if line.startswith("| `")]
    assert good == "| `a` | `b` | 20.00 | 21.00 (+5%) | 3.00 | 3.40 | 40% | 40% | 12% | 12% | 2.5 | 2.5 |"
    assert bad.startswith("| `c` | `b` | 20.00 | 17.00 (-15%) **!** | 3.00 | 3.60 **!** |")
    assert bad.endswith("| 2.5 | - |")
    assert "within 10% in 1 of 2 rows, worst 15%; mean staleness within 0.5 in 1, worst 0.60" in page
    assert "old" not in page


def test_the_committed_page_shows_the_committed_validation():
    page = (ROOT / "docs" / "simulation.md").read_text()
    assert tables.with_tables(page) == page
    assert re.search(r"<!-- table: validation -->\n.+?\n<!-- end -->", page, re.DOTALL)


@pytest.mark.rotating
def test_a_real_run_is_compared_with_its_prediction(monkeypatch, tmp_path):
    """How near it is depends on the machine; that all figures are there does not."""
    monkeypatch.setattr(validation, "FOLDER", tmp_path / "cache")
    monkeypatch.setattr(
        validation, "plan", lambda quick: [(ValidationRun(AsyncSGD(), 2), ValidationRun(AsyncSGD(), 2))]
    )
    monkeypatch.setattr(validation, "Console", lambda **_: Console(quiet=True))
    assert validation.main(["--quick", "--seconds", "3", "--milliseconds", "10", "--output", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "validation.json").read_text())["rows"]
    assert set(row["real"]) == set(row["predicted"]) == {"updates", "staleness", "waiting", "slow", "seconds_to"}
    for told in (row["real"], row["predicted"]):
        assert 0 < told["updates"] < 2 / 0.005  # a batch takes half of its 10 ms at least
        assert 0 < told["staleness"] <= 1.5
        assert 0.2 < told["slow"] < 0.5
        assert told["waiting"] == 0
