"""A simulated run: a run like any other, whose time is virtual."""

import contextlib
import io
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from distsgd.algorithms import AllReduce, AsyncSGD, Downpour, Serial, SyncSGD
from distsgd.common import Callback, Cluster, Platform, Recovery, UserError
from distsgd.common.cli.flag_groups import RUN, Options, parse_flags, scheme_of
from distsgd.common.cli.train import with_data
from distsgd.common.data.models import ModelRecipe
from distsgd.common.data.recipes import synthetic
from distsgd.common.launch.run import run
from distsgd.common.record.display import SimulationDisplay
from distsgd.common.record.round_log import load_rounds
from distsgd.common.record_format import RECORD
from distsgd.common.tasks.job import describe, make_job
from distsgd.common.tasks.options import RunOptions
from distsgd.simulator.cli import simulate as command
from distsgd.simulator.execution import virtual_run as simulation
from distsgd.simulator.execution.virtual_run import evaluation_points
from distsgd.simulator.virtual_time.forecast import steady_staleness
from distsgd.simulator.virtual_time.simulated_server import SimulatedServer
from runs import DIGITS, record

ROUNDS, WORKERS = 8, 3
UNEVEN = Platform(step_ms=10, step_factors="1,1.3,1.7")


def simulated(scheme, run_dir, test=None, platform=UNEVEN, workers=WORKERS, callbacks=(), **options):
    """A small run on digits: its record, what went wrong, and the job."""
    recipe = ModelRecipe.named("softmax", (64,), 10, 0)
    cluster = Cluster.local(workers, backend="simulation", platform=platform)
    how = RunOptions(**{"steps": ROUNDS * scheme.period, "batch_size": 8, "run_dir": run_dir} | options)
    job = make_job(scheme, recipe, DIGITS.train, test, cluster, how)
    config = describe(job, "digits", "softmax")
    return *run(job, config, verbose=False, model=recipe.build(), callbacks=callbacks), job


def arrays(run_dir, name):
    with np.load(run_dir / name) as file:
        return dict(file)


# The folder of a run.


@pytest.mark.rotating
def test_a_simulated_run_leaves_the_files_of_a_run_with_virtual_seconds(tmp_path):
    log, error, _ = simulated(Downpour(), tmp_path, test=DIGITS.test, tensorboard=True)
    result = log.finish(error)
    assert error is None
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock", "config.json", "trace.npz", "rounds.npz", "events.bin", "metrics.jsonl", "center.npz", "model.keras",
        "result.json", "plot.png", "tb", "initial.npz",
    }  # fmt: skip
    trace, rounds = arrays(tmp_path, "trace.npz"), load_rounds(tmp_path)
    end = trace["microseconds"].max() / 1e6
    assert (result["backend"], result["outcome"], result["updates"]) == ("simulation", "completed", ROUNDS * WORKERS)
    assert result["seconds_training"] == pytest.approx(end, abs=2e-3)
    assert result["seconds_training"] == pytest.approx(ROUNDS * 5 * 0.01 * 1.7, rel=0.01)  # the slowest computes most
    assert result["seconds_to_first_update"] == pytest.approx(5 * 0.01, rel=0.01)
    assert result["simulated"]["platform"] == json.loads((tmp_path / "config.json").read_text())["platform"]
    assert result["simulated"]["platform"]["step_factors"] == "1,1.3,1.7"
    assert result["simulated"]["virtual_seconds"] == result["seconds_training"]
    assert result["seconds_total"] > result["simulated"]["arithmetic_seconds"] > 0
    assert result["steps"] == WORKERS * ROUNDS * 5
    assert len(rounds) == ROUNDS * WORKERS
    centers = log.history()
    assert (centers["seconds"][0], centers["seconds"][-1]) == (0, result["seconds_training"])
    assert centers["seconds"] == sorted(centers["seconds"])
    assert centers["version"][-1] == ROUNDS * WORKERS
    assert centers["test_loss"][-1] < centers["test_loss"][0]
    assert centers["loss"][1] > 0  # of the workers, in the rounds since the last look


@pytest.mark.parametrize("scheme", [Downpour(communication_period=2), SyncSGD()], ids=lambda scheme: scheme.name)
@pytest.mark.rotating
def test_a_replay_agrees_and_the_same_seed_is_the_same_run_to_the_bit(scheme, tmp_path):
    runs = [
        record(scheme, tmp_path / name, workers=WORKERS, backend="simulation", steps=ROUNDS * scheme.period, seed=3)
        for name in ("one", "two")
    ]
    assert runs[0].error() < 1e-6
    for name in ("trace.npz", "rounds.npz", "center.npz"):
        one, two = (arrays(tmp_path / folder, name) for folder in ("one", "two"))
        assert one.keys() == two.keys()
        for key, values in one.items():
            np.testing.assert_array_equal(values, two[key], err_msg=f"{name} {key}", strict=True)


# The end.


@pytest.mark.rotating
def test_a_run_ends_with_the_version_that_it_is_to_stop_at(tmp_path):
    log, error, _ = simulated(AsyncSGD(), tmp_path, stop_at_version=7)
    result = log.finish(error)
    trace = arrays(tmp_path, "trace.npz")
    assert (result["outcome"], result["updates"], result["stopped_by"]) == ("completed", 7, "version 7")
    assert trace["version"].tolist() == list(range(7))
    assert result["steps"] == len(trace["worker"]) == len(load_rounds(tmp_path))


@pytest.mark.parametrize("scheme", [AsyncSGD(), SyncSGD()], ids=lambda scheme: scheme.name)
def test_a_server_is_over_with_the_version_that_ends_its_run(scheme):
    server, over = SimulatedServer(scheme, 1, lambda _: None, stop_at_version=2), []
    for now in range(3):
        server.exchange(0, now)
        over.append((server.sequencer.version, server.over))
    assert over == [(1, False), (2, True), (3, True)]


@pytest.mark.rotating
def test_a_run_that_has_its_accuracy_ends_there_and_so_does_its_record(tmp_path):
    log, error, _ = simulated(SyncSGD(), tmp_path, test=DIGITS.test, steps=40, stop_at_accuracy=0.3)
    result = log.finish(error)
    trace, last = arrays(tmp_path, "trace.npz"), log.history()
    assert (result["outcome"], result["stopped_by"]) == ("completed", "accuracy 0.3")
    assert last["test_accuracy"][-1] >= 0.3 > max(last["test_accuracy"][:-1])
    assert 0 < len(trace["version"]) < 40 * WORKERS
    assert trace["version"].max() + 1 == result["updates"]
    assert len(trace["version"]) == len(load_rounds(tmp_path)) == result["steps"]
    assert result["seconds_training"] == last["seconds"][-1]


class Enough(Callback):
    def on_test_end(self, logs):
        self.stop_training = logs["version"] >= 6


@pytest.mark.rotating
def test_a_callback_may_end_a_run(tmp_path):
    log, error, _ = simulated(AsyncSGD(), tmp_path, test=DIGITS.test, steps=200, callbacks=[Enough()])
    result = log.finish(error)
    assert (result["outcome"], result["stopped_by"]) == ("completed", "a callback")
    assert result["updates"] < 600
    assert result["staleness"]["steady"] == steady_staleness(arrays(tmp_path, "trace.npz"))


@pytest.mark.gate
def test_a_run_that_is_interrupted_says_so_and_keeps_its_center(tmp_path, monkeypatch):
    class Arithmetic(simulation.Arithmetic):
        def run(self, until, is_cut):
            if until > 12:
                signal.raise_signal(signal.SIGTERM)
            return super().run(until, is_cut)

    monkeypatch.setattr(simulation, "Arithmetic", Arithmetic)
    log, error, _ = simulated(AsyncSGD(), tmp_path, test=DIGITS.test)
    result = log.finish(error)
    assert (result["outcome"], result["exit_code"], result["stopped_by"]) == ("interrupted", 143, "SIGTERM")
    assert 0 < result["updates"] <= 12
    assert result["staleness"]["steady"] == steady_staleness(arrays(tmp_path, "trace.npz"))
    assert 0 < result["simulated"]["virtual_seconds"] == log.history()["seconds"][-1]
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert len(np.load(tmp_path / "trace.npz")["version"]) == result["updates"]
    assert (tmp_path / "center.npz").exists()


# What it cannot do.


def test_what_a_simulation_cannot_do_is_refused_before_anything_is_started(tmp_path):
    for options, message in (
        ({"recovery": Recovery(max_restarts=1)}, "leave max_restarts out. Received: max_restarts=1"),
        ({"recovery": Recovery(resume=tmp_path)}, "leave resume out"),
        ({"recovery": Recovery(checkpoint_seconds=5)}, "leave checkpoint_seconds out"),
        ({"recovery": Recovery(min_workers=1)}, "leave min_workers out"),
        ({"recovery": Recovery(on_nan="drop")}, "leave on_nan out. Received: on_nan=drop"),
        ({"recovery": Recovery(stop_signals="")}, "leave stop_signals out. Received: stop_signals=''"),
        ({"schedule": [0, 1]}, "leave schedule out, or use backend='threads'"),
    ):
        with pytest.raises(UserError, match=message):
            simulated(AsyncSGD(), tmp_path / "run", **options)
    recipe = ModelRecipe.named("softmax", (64,), 10, 0)
    cluster, alone = (Cluster.local(2, backend="simulation", isolation=how) for how in ("auto", "off"))
    with pytest.raises(UserError, match="data must be arrays"):
        make_job(AsyncSGD(), recipe, lambda: None, None, cluster, RunOptions(steps=1))
    with pytest.raises(UserError, match="there is no network: leave isolation out"):
        make_job(AsyncSGD(), recipe, DIGITS.train, None, alone, RunOptions(steps=1))
    (tmp_path / "earlier" / "checkpoints" / "000000000001").mkdir(parents=True)
    with pytest.raises(UserError, match="a run cannot be resumed: choose another run directory"):
        simulated(AsyncSGD(), tmp_path / "earlier")
    assert not (tmp_path / "run").exists()


def test_only_simulations_take_a_platform_and_up_to_100000_workers():
    assert Cluster.local(100_000, backend="simulation").simulated == Platform()
    assert Cluster.local(2, backend="threads").simulated is None
    with pytest.raises(UserError, match="workers must be at most 100000"):
        Cluster.local(100_001, backend="simulation")
    with pytest.raises(UserError, match="workers must be at most 1000"):
        Cluster.local(1001)
    with pytest.raises(UserError, match="give backend='simulation' too, or leave them out"):
        Cluster.local(2, backend="threads", platform=Platform())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate"], "which algorithm? As in: simulate downpour --workers 1000"),
        (["simulate", "downpuor"], "unknown algorithm 'downpuor'. Did you mean downpour"),
        (["simulate", "downpour", "agn"], "give one algorithm, or several to --compare"),
        (["simulate", "downpour", "--backend", "threads"], "leave --backend out. Received: threads"),
        (["simulate", "downpour", "--step-ms", "-1"], "step_ms must be a positive number"),
        (["simulate", "downpour", "--workers", "100001"], "workers must be at most 100000"),
        (["simulate", "downpour", "--epochs", "3"], "give --steps, not --epochs"),
        (["simulate", "downpour", "--max-restarts", "1"], "leave max_restarts out"),
        (["simulate", "downpour", "--cluster", "slurm"], "Slurm"),
        (["simulate", "--compare", "agn,downpuor"], "unknown algorithm 'downpuor'"),
        (["simulate", "--compare", "agn,sync_sgd", "--run-dir", "x"], "leave --run-dir out"),
        (["simulate", "--compare", "sync_sgd:backup_worker=1"], "has no option 'backup_worker'"),
        (["simulate", "--compare", "agn", "--backend", "threads"], "leave --backend out"),
        (["simulate", "--compare", "agn,all_reduce", "--failures", "crashes"], "all_reduce has no parameter server"),
        (["simulate", "--compare", "agn,all_reduce", "--codec", "int8"], "all_reduce has no parameter server"),
        (["downpour", "--step-ms", "3"], "--step-ms describes simulated machines: give --backend simulation too"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(arguments, message, tmp_path, monkeypatch, run_main):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_main(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


# When it evaluates the center.


def events(times, versions):
    rows = np.zeros((len(times), len(RECORD)), np.int64)
    rows[:, RECORD.index("microseconds")], rows[:, RECORD.index("version")] = times, versions
    return rows


def test_evaluations_are_even_in_time_and_the_last_is_the_end():
    points = list(evaluation_points(events(1000 * np.arange(1, 101), np.arange(100)), 0.1, 4))
    assert [until for until, _ in points] == [25, 50, 75, 100]
    assert [seconds for _, seconds in points] == pytest.approx([0.025, 0.05, 0.075, 0.1])


def test_no_evaluation_is_in_the_middle_of_an_update_or_where_nothing_is_new():
    """Sets of three messages; between the second and the third set nothing happens for long."""
    times = [1, 2, 3, 11, 12, 13, 81, 82, 83]
    points = list(evaluation_points(events(times, np.repeat([0, 1, 2], 3)), 83e-6, 20))
    assert [until for until, _ in points] == [3, 6, 9]
    assert points[-1][1] == 83e-6


@pytest.mark.rotating
def test_evaluations_by_updates_are_exactly_at_the_multiples_and_at_the_end(tmp_path):
    log, error, _ = simulated(SyncSGD(), tmp_path, test=DIGITS.test, evaluate_every=3)
    result, centers, trace = log.finish(error), log.history(), arrays(tmp_path, "trace.npz")
    assert centers["version"] == [0, 3, 6, result["updates"]] == [0, 3, 6, 8]
    completed = [trace["microseconds"][trace["version"] == version - 1].max() for version in (3, 6, 8)]
    assert centers["seconds"] == [0, *(pytest.approx(moment / 1e6, abs=2e-3) for moment in completed)]


# The command line.


def test_without_a_data_set_a_simulation_has_new_examples_for_each_step():
    options = Options(workers=1000, backend="simulation")
    chosen, told = with_data(options, [Downpour()])
    assert chosen.run.steps == 50
    assert chosen.dataset == "synthetic:examples=1600000,test=2000"
    assert told == "no --dataset: 50 steps of each worker on 1,600,000 generated examples, none of them twice"
    assert len(synthetic(examples=60, test=7).test[1]) == 7


def test_a_simulation_of_very_many_workers_repeats_examples_and_says_so():
    chosen, told = with_data(Options(workers=100_000, backend="simulation"), [Downpour()])
    assert chosen.dataset == "synthetic:examples=4000000,test=2000"
    assert told.endswith("each of them about 16.0 times")


def test_a_data_set_that_is_named_is_taken_and_other_runs_have_digits():
    assert with_data(Options(dataset="mnist", backend="simulation"), [Downpour()])[0].dataset == "mnist"
    assert with_data(Options(), [Downpour()]) == (Options(dataset="digits"), "")
    assert with_data(Options(), [Downpour()])[0].run == RUN


def test_machines_are_flags_of_every_algorithm():
    _, options = parse_flags(Downpour, ["--backend", "simulation", "--step-ms", "40", "--workers", "5"])
    assert (options.platform.step_ms, options.workers) == (40, 5)


def test_algorithms_to_compare_have_hyperparameters():
    scheme = scheme_of("sync_sgd:backup_workers=2,learning_rate=0.3")
    assert scheme == SyncSGD(backup_workers=2, learning_rate=0.3)


def test_the_command_compares_on_the_same_machines(tmp_path, monkeypatch, capsys):
    seen = []

    def perform(scheme, options, told):
        seen.append((scheme, options.dataset, options.run.steps, options.run.seed, options.platform, told))
        staleness = {"mean": 1.5}
        result = {
            "algorithm": scheme.name, "outcome": "completed", "exit_code": 0, "workers": 4, "updates": 10,
            "seconds_training": 2.0, "staleness": staleness, "bytes_pushed": 4000, "bytes_pulled": 4000,
            "test_loss": 0.25, "run_dir": "runs/x", "round": {"compute": 0.375},
        }  # fmt: skip
        return None, result, None

    monkeypatch.setattr(command, "perform", perform)
    monkeypatch.setattr(command, "keep_warm", contextlib.nullcontext)
    monkeypatch.setattr(command, "read_run", str)
    monkeypatch.setattr(command, "picture", lambda runs, x: (runs, x))
    monkeypatch.setattr(command, "save", lambda figure, path: seen.append((figure, path)))
    monkeypatch.setenv("COLUMNS", "120")
    assert command.main(["--compare", "agn,sync_sgd:backup_workers=1,downpour", "--workers", "4", "--seed", "9"]) == 0
    assert seen.pop() == ((3 * ["runs/x"], "seconds"), Path("runs/x/compare-seconds.png"))
    assert [scheme.name for scheme, *_ in seen] == ["agn", "sync_sgd", "downpour"]
    assert seen[1][0].backup_workers == 1
    assert seen[0][1:5] == seen[1][1:5] == seen[2][1:5]
    assert [bool(told) for *_, told in seen] == [True, False, False]
    shown = capsys.readouterr().out
    figures = "agn", "sync_sgd", "downpour", "0.2500", "2.0 kB", "5.0", "38%", "runs/x/compare-seconds.png"
    assert all(name in shown for name in figures)


def test_a_huge_loss_leaves_room_for_the_names(monkeypatch):
    result = {
        "outcome": "completed", "workers": 4, "updates": 10, "seconds_training": 2.0, "staleness": {}, "round": None,
        "bytes_pushed": 4000, "bytes_pulled": 4000, "test_loss": 3.25e30,
    }  # fmt: skip
    page = io.StringIO()
    Console(file=page, width=80).print(command.table(["async_sgd:learning_rate=1"], [result]))
    assert "async_sgd:learning_rat" in page.getvalue()
    assert "3.25e+30" in page.getvalue()


# The display.

CONFIG = {
    "algorithm": "downpour", "dataset": "synthetic", "model": "mlp", "ps": 1, "workers": 1000, "batch_size": 32,
    "steps_per_worker": 50,
}  # fmt: skip
ORDERING = {"event": "ordering", "events": 2500, "of": 10_000}
ORDERED = {"event": "ordered", "events": 5000, "virtual": 80.0, "order_seconds": 0.25}
CENTER = {
    "event": "center", "virtual": 20.0, "version": 2500, "steps": 12_500, "loss": 0.5, "test_loss": 0.25,
    "staleness_mean": 9.5, "staleness_max": 30,
}  # fmt: skip


def display(seen, **options):
    file = io.StringIO()
    there = SimulationDisplay(CONFIG, Console(file=file, **options))
    for event in seen:
        there.on_event(event)
    return there, file


@pytest.mark.parametrize("width", [40, 100])
def test_the_display_has_both_phases_and_both_times_but_no_worker_lines(width):
    there, file = display([ORDERING], width=width, force_terminal=True, color_system=None)
    there.console.print(there.picture())
    first = file.getvalue()
    for event in (ORDERED, CENTER):
        there.on_event(event)
    there.console.print(there.picture())
    second = file.getvalue().removeprefix(first)
    for text, figures in (
        (first, ["phase 1 of 2", "25%", "event 2,500 of 10,000"]),
        (second, ["phase 2 of 2", "25%", "step 12,500 of 50,000", "virtual 20 s of 80 s", "loss 0.5000", "elapsed"]),
        (second, ["version 2,500", "test loss 0.2500", "staleness 9.50 (max 30)", "examples/s 20,000"]),
    ):
        assert all(figure in text for figure in figures), text
        assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "worker-" not in first + second


def test_without_a_terminal_the_display_is_lines():
    _, file = display([ORDERED])
    assert file.getvalue() == "order of 5,000 events in 0.2 s: 80 s of virtual time\n"


@pytest.mark.gate
@pytest.mark.parametrize(
    "scheme", [AllReduce(), pytest.param(Serial(), marks=pytest.mark.rotating)], ids=lambda scheme: scheme.name
)
def test_algorithms_without_a_server_are_simulated_too(scheme, tmp_path):
    workers = 1 if isinstance(scheme, Serial) else WORKERS
    one = record(scheme, tmp_path, workers=workers, backend="simulation", steps=12, ema_decay=0.8)
    assert one.error() < 1e-6
    average = one.start
    for number, center in enumerate(one.equations.execute(one, one.hyperparameters)):
        decay = min(0.8, (1 + number) / (10 + number))
        average = decay * average + (1 - decay) * center
    np.testing.assert_allclose(arrays(tmp_path, "center.npz")["average"], average, rtol=2e-5, atol=2e-6)
