"""The benchmark: what it covers, what it keeps, what it draws."""

import contextlib
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from distsgd.algorithms import SCHEMES
from distsgd.benchmarks import convergence, endurance, kept, soak, stragglers, tables, throughput
from distsgd.benchmarks.plots import PICTURES
from distsgd.common.cluster.fingerprint import source_digest
from distsgd.common.errors import Interrupted, TaskFailed, UserError
from distsgd.common.proof.replay import TOLERANCE

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("quick", [True, False])
def test_every_algorithm_is_covered(quick):
    cells = convergence.plan(convergence.Options(quick=quick))
    for part in ("convergence",) if quick else ("convergence", "throughput"):
        assert {cell.algorithm for cell in cells if cell.part == part} == set(SCHEMES)
    assert {cell.algorithm for cell in cells if cell.part == "period"} == set(convergence.BY_PERIOD)
    assert {cell.algorithm for cell in cells if cell.part == "workers"} == set(convergence.BY_WORKERS)
    assert len({cell.file for cell in cells}) == len(cells)
    for cell in cells:
        assert cell.scheme.name == cell.algorithm


def test_every_algorithm_has_been_tuned_on_a_seed_of_its_own():
    tuned = json.loads(convergence.TUNING.read_text())
    assert set(tuned["settings"]) == set(SCHEMES)
    seeds = {cell.seed for cell in convergence.plan(convergence.Options())}
    assert convergence.TUNING_SEED not in seeds


def test_the_committed_page_shows_the_committed_results():
    page = (ROOT / "docs" / "benchmark.md").read_text()
    assert tables.with_tables(page) == page
    pictures = re.findall(r"\]\(\.\./(benchmarks/results/[^)]+)\)", page)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).exists(), picture


def test_every_panel_of_a_picture_has_its_curve_and_the_baseline():
    """Once the panels were made by an iterator that was used up before they were drawn on."""
    curve = {"examples": [0, 64], "seconds": [0, 1.0], "bytes": [0, 9], "loss": [2.0, 1.0], "accuracy": [0.1, 0.6]}
    outcomes = [
        {"cell": {"part": "convergence", "algorithm": name}, "outcome": "completed", "curve": curve}
        for name in ("serial", "downpour", "agn")
    ]
    figure = PICTURES["loss-examples"](outcomes)
    titled = [(axes.get_title(loc="left"), len(axes.lines)) for axes in figure.axes]
    assert titled == [("serial", 1), ("downpour", 2), ("agn", 2)]


def test_what_was_measured_is_kept_by_the_sources_of_its_algorithm_and_of_the_engine(monkeypatch, tmp_path):
    """A changed algorithm was once shown with its old curves."""

    def change(place, text):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)

    def files():
        kept.sources.cache_clear()
        return [cell.file for cell in convergence.convergence_cells(convergence.Options(("agn", "adag"), seeds=1))]

    monkeypatch.setattr(kept, "source_digest", partial(source_digest, tmp_path))
    before = files()
    change("common/cli/main.py", "1")
    assert files() == before
    change("algorithms/agn.py", "1")
    agn, adag = files()
    assert (agn != before[0], adag) == (True, before[1])
    change("common/engine/worker.py", "1")
    assert not {*files()} & {agn, adag}
    kept.sources.cache_clear()


def ended(name, seconds, part="convergence"):
    """An outcome of a run that took that number of seconds; without one, of a run whose time was not kept."""
    curve = {"examples": [0, 64], "bytes": [0, 9], "loss": [2.0, 1.0], "accuracy": [0.1, 0.6]}
    if seconds is not None:
        curve["seconds"] = [0.0, seconds]
    about = {"outcome": "completed", "test_loss": 1.0, "test_accuracy": 0.6, "staleness": {"mean": 0.5}}
    sent = {"bytes_pushed": 4, "bytes_pulled": 5, "seconds_training": seconds}
    return {"cell": {"part": part, "algorithm": name}, **about, **sent, "curve": curve}


def test_results_of_a_few_algorithms_go_beside_those_of_the_others(tmp_path):
    file = tmp_path / "convergence.json"
    old = [ended("serial", 1.0), ended("agn", 1.0), ended("serial", 1.0, "throughput"), ended("renamed", 1.0)]
    kept.write(file, old)
    found = kept.merged([ended("agn", 3.0), ended("async_sgd", 2.0)], file)
    rows = [(o["cell"]["part"], o["cell"]["algorithm"], o["seconds_training"]) for o in found]
    assert rows == [
        ("convergence", "serial", 1.0),
        ("convergence", "async_sgd", 2.0),
        ("convergence", "agn", 3.0),
        ("throughput", "serial", 1.0),
    ]


def test_a_run_whose_time_was_not_kept_is_in_no_picture_against_seconds(tmp_path):
    outcomes = [ended("serial", 1.0), ended("agn", None)]
    kept.write(tmp_path / "convergence.json", outcomes)
    *_, serial, agn = tables.convergence(tmp_path).splitlines()
    assert ("| 1.0 |" in serial, "| - |" in agn) == (True, True)
    titles = {x: [a.get_title(loc="left") for a in PICTURES[f"loss-{x}"](outcomes).axes] for x in ("seconds", "bytes")}
    assert titles == {"seconds": ["serial"], "bytes": ["serial", "agn"]}


def test_without_times_no_throughput_is_measured():
    cells = convergence.plan(convergence.Options(times=False))
    assert {cell.part for cell in cells} == {"convergence", "period", "workers"}
    assert not any(cell.timed for cell in cells if cell.part == "convergence")


@pytest.fixture
def tiny(monkeypatch):
    """So few gradients, seeds and settings that a test has time for it."""
    monkeypatch.setattr(convergence, "QUICK_GRADIENTS", 160)
    monkeypatch.setattr(convergence, "GRADIENTS", 160)


@pytest.mark.slow
def test_it_measures_draws_and_continues_where_it_was_interrupted(tiny, monkeypatch, tmp_path, capsys):
    command = ["agn", "serial", "--quick", "--backend", "threads", "--output", str(tmp_path / "out")]
    measure, measured = convergence.measure, []

    def interrupted_at_the_third(cell):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(cell)
        return measure(cell)

    monkeypatch.setattr(convergence, "measure", interrupted_at_the_third)
    assert convergence.main(command, cache=tmp_path / "cache") == 130
    before = [asdict(cell) for cell in measured]
    monkeypatch.setattr(convergence, "measure", lambda cell: measured.append(cell) or measure(cell))
    assert convergence.main(command, cache=tmp_path / "cache") == 0
    assert "2 of 6 runs were measured before" in capsys.readouterr().out
    assert len(measured) == 6
    assert not [cell for cell in measured[2:] if asdict(cell) in before]
    outcomes = json.loads((tmp_path / "out" / "convergence.json").read_text())
    assert {o["cell"]["algorithm"] for o in outcomes} == {"agn", "serial"}
    assert {p.stem for p in (tmp_path / "out").glob("*.png")} >= {
        "loss-examples", "loss-bytes", "accuracy-seconds", "staleness", "period", "workers",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["agm"], "unknown algorithm 'agm'. Did you mean agn"), (["agn", "--seeds", "0"], "seeds must be at least 1")],
)
def test_bad_input_is_refused(arguments, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        convergence.main(arguments, cache=tmp_path)


def test_a_measurement_of_throughput_that_fails_is_passed_over_and_sigterm_ends_them_all(monkeypatch):
    asked = []

    def contender(name, outcome):
        def measure(model, seconds, expected):
            asked.append(name)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        return measure

    monkeypatch.setattr(throughput, "keep_warm", contextlib.nullcontext)
    contenders = {"single": TaskFailed("no"), "pss": 7.0, "hogwild": Interrupted(15), "downpour": 8.0}
    monkeypatch.setattr(throughput, "CONTENDERS", {name: contender(name, what) for name, what in contenders.items()})
    with pytest.raises(Interrupted):
        throughput.measure(throughput.Options(models=("small",)), Console(quiet=True))
    assert asked == ["single", "pss", "hogwild"]


def test_which_batches_come_late_depends_on_seed_and_worker_alone(monkeypatch):
    import tensorflow as tf

    slept = []
    monkeypatch.setattr(stragglers.time, "sleep", slept.append)
    options = stragglers.Options(milliseconds=20, slow_milliseconds=500, slow_share=0.3)
    train = np.arange(600.0).reshape(300, 2), np.arange(300)

    def waits(seed, worker):
        slept.clear()
        context = tf.distribute.InputContext(2, worker)
        batches = list(stragglers.late_batches(train, options, seed)(context).take(40))
        assert all(int(y) % 2 == worker for _, labels in batches for y in labels)
        return slept[:40]

    first = waits(0, 0)
    assert set(first) == {0.02, 0.5}
    assert first == waits(0, 0)
    assert first != waits(0, 1)
    assert first != waits(1, 0)


STRAGGLERS = """
from pathlib import Path
from distsgd.benchmarks import stragglers
stragglers.RESULTS = Path("stragglers.json").resolve()
command = "--workers 3 --backups 0 1 --updates 30 --milliseconds 1 --slow-milliseconds 40 --slow-share 0.1"
raise SystemExit(stragglers.main([*command.split(), "--repetitions", "1"]))
"""


@pytest.mark.slow
def test_stragglers_are_measured_with_and_without_backup_workers_and_tensorflow_is_not_heard(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", STRAGGLERS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0].strip() for line in done.stdout.splitlines()] == ["0", "1", "async_sgd"]
    runs = json.loads((tmp_path / "stragglers.json").read_text())["runs"]
    assert set(runs) == {"0", "1", "async_sgd"}
    assert runs["0"][0]["dropped"] == runs["async_sgd"][0]["dropped"] == 0
    assert 0 < runs["1"][0]["dropped"] < 1 / 2
    assert "| 1 |" in tables.stragglers(tmp_path)
    assert (tmp_path / "stragglers.png").exists()


def test_as_many_backup_workers_as_workers_are_refused():
    with pytest.raises(UserError, match="0 to 3 can be backups"):
        stragglers.Options(workers=4, backups=(0, 4))


@pytest.mark.slow
@pytest.mark.parametrize("where", [[], ["--machines"]], ids=["here", "over machines"])
def test_the_soak_says_what_was_survived_and_that_it_was_right(where, capsys):
    """With this seed a worker is killed, early in a long run."""
    try:
        assert soak.main(["--minutes", "0.01", "--seed", "7", "--verbose", *where]) == 0
    except UserError as error:
        pytest.skip(str(error))
    *_, told, last = capsys.readouterr().out.splitlines()
    assert told.startswith("  0 ok")
    counted = json.loads(last)
    assert (counted["runs"], counted["failed"]) == (1, 0)
    assert counted["worst_replay_error"] < TOLERANCE
    assert sum(number for name, number in counted.items() if name.startswith(("SIG", "crash", "cut"))) > 0


def test_endurance_finds_who_grows_by_a_line_through_the_second_half(tmp_path):
    watch = endurance.Watch(tmp_path, seconds=600)
    for second in range(0, 600, 10):
        ended = 10**8 + 10**5 * min(second, 200)
        memory = {"ps-0": ended, "worker-0": 10**8 + 1000 * second, "evaluator-0": 10**5 * second}
        watch.samples.append(endurance.Sample(second, 2000 * second, 96 * 1000 * second, memory))
    assert watch.growth() == pytest.approx({"ps-0": 0, "worker-0": 3.6, "evaluator-0": 360}, abs=0.1)
    assert watch.growing() == ["evaluator-0"]
    assert watch.bytes_per_million() == pytest.approx(48e6)
    assert watch.verdict()[-1] == "growing: evaluator-0"


@pytest.mark.slow
@pytest.mark.parametrize("record", ["full", "off"])
def test_endurance_runs_for_some_seconds(record, tmp_path, capfd):
    arguments = ["--minutes", "0.1", "--record", record, "--run-dir", str(tmp_path / "run"), "--workers", "1"]
    endurance.main(arguments)
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert set(told["mb_per_hour"]) == {"launcher", "fork server", "ps-0", "worker-0", "evaluator-0"}
    assert (told["record"], told["updates"] > 0) == (record, True)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["record"]) == ("completed", record)
    assert sum(result["staleness"]["histogram"].values()) == result["updates"] == result["steps"]
    assert (tmp_path / "run" / "trace.npz").exists() == (record == "full")
