"""Sweeps: their settings, the runs that are not made again, the best, and the picture."""

import dataclasses
import io
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from distsgd.algorithms import SCHEMES
from distsgd.common import sweeping
from distsgd.common.cli import main as cli
from distsgd.common.cli import sweep
from distsgd.common.cli.flag_groups import parse_flags
from distsgd.common.cli.flags import words
from distsgd.common.cli.sweep_report import Trial, best_of, picture, report
from distsgd.common.errors import DistsgdError, Interrupted, UserError
from distsgd.common.record.repeats import mean_of, sheet
from distsgd.common.signals import StopSignals, interrupt

DOWNPOUR = SCHEMES["downpour"]
LIMIT = 60.0  # seconds for what must happen


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trained(monkeypatch):
    """Runs that end at once: their loss is the distance of the learning rate from 0.1, and above 1 they diverge."""
    made = []

    def perform(scheme, options, told="", *, verbose=True):
        made.append((scheme.learning_rate, options.run.seed))
        diverged = scheme.learning_rate > 1
        result = {
            "outcome": "diverged" if diverged else "completed", "exit_code": 3 if diverged else 0,
            "test_loss": None if diverged else abs(scheme.learning_rate - 0.1) + 0.001 * options.run.seed,
            "test_accuracy": None, "updates": 10, "seconds_training": 1.0,
        }  # fmt: skip
        options.run.run_dir.mkdir(parents=True)
        (options.run.run_dir / "result.json").write_text(json.dumps(result))
        return None, result, None

    monkeypatch.setattr(sweep, "perform", perform)
    return made


def swept(capsys, *arguments):
    assert cli.dispatch(["sweep", *arguments, "--parallel", "1", "--json"]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    return shown, json.loads(last)


def trial(settings, seed, loss, outcome="completed"):
    scheme, options = parse_flags(DOWNPOUR, [])
    result = {"outcome": outcome, "test_loss": loss}
    return Trial(settings, seed, Path("run"), scheme, dataclasses.replace(options, dataset="digits"), "", result)


@pytest.mark.parametrize(
    ("typed", "axes", "rest"),
    [
        (["--learning-rate", "0.1,0.2"], {"learning_rate": ["0.1", "0.2"]}, []),
        (["--learning_rate=0.1,0.2,0.1", "--json"], {"learning_rate": ["0.1", "0.2"]}, ["--json"]),
        (["--dataset", "synthetic:features=50,classes=5"], {}, ["--dataset", "synthetic:features=50,classes=5"]),
        (["--codec", "int8,topk:fraction=0.1,memory=no"], {"codec": ["int8", "topk:fraction=0.1,memory=no"]}, []),
        (["--step-factors", "1,1,10"], {}, ["--step-factors", "1,1,10"]),
        (["--tensorboard", "--workers=2"], {}, ["--tensorboard", "--workers=2"]),
    ],
)
def test_a_flag_with_commas_has_several_values(typed, axes, rest):
    assert sweep.split(DOWNPOUR, typed) == (axes, rest)


def test_each_setting_is_run_with_each_seed_and_the_best_has_the_lowest_mean(trained, capsys):
    shown, result = swept(capsys, "downpour", "--learning-rate", "0.05,0.1,3", "--seeds", "2", "--seed", "4")
    assert trained == [(0.05, 4), (0.05, 5), (0.1, 4), (0.1, 5), (3.0, 4), (3.0, 5)]
    assert result["best"] == {"settings": {"learning_rate": "0.1"}, "test_loss": pytest.approx(0.0045)}
    assert "best: learning_rate 0.1 (mean test loss 0.0045)" in shown
    assert any("diverged" in line for line in shown)
    assert Path(result["plot"]).read_bytes().startswith(b"\x89PNG")


def test_a_finished_run_is_not_made_again_and_a_failed_one_is(trained, capsys):
    _, first = swept(capsys, "downpour", "--learning-rate", "0.05,0.1")
    trained.clear()
    _, again = swept(capsys, "downpour", "--learning-rate", "0.05,0.1")
    assert (trained, again) == ([], first)
    swept(capsys, "downpour", "--learning-rate", "0.05,0.1,0.2")
    assert trained == [(0.2, 0)]
    path = next(Path("runs").glob("*/*/result.json"))
    path.write_text(json.dumps({"outcome": "lost"}))
    swept(capsys, "downpour", "--learning-rate", "0.05,0.1,0.2")
    assert len(trained) == 2
    assert (path.parent.parent / f"{path.parent.name}-2").is_dir()
    swept(capsys, "downpour", "--learning-rate", "0.05,0.1,0.2", "--batch-size", "16")
    assert len(trained) == 5


def test_a_changed_model_file_is_another_setting():
    Path("mine.py").write_text("one")
    scheme, options = parse_flags(DOWNPOUR, ["--model", "mine.py:build"])
    before = sweep.run_dir_of(scheme, options)
    Path("mine.py").write_text("two")
    assert sweep.run_dir_of(scheme, options) != before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "sweep needs the algorithm first"),
        (["downpuor"], "Did you mean downpour"),
        (["downpour"], "sweep needs several values of an option, or --seeds"),
        (["downpour", "--learning-rate", "0.1,x"], "takes a number. Received: 'x'"),
        (["downpour", "--learning-rate", "0.1,-1"], "learning_rate"),
        (["downpour", "--seeds", "0"], "seeds must be at least 1"),
        (["downpour", "--seed", "1,2", "--seeds", "2"], "exclude each other"),
        (["downpour", "--seeds", "2", "--run-dir", "mine"], "leave --run-dir and --resume out"),
        (["downpour", "--seeds", "2", "--task-index", "1"], "which task is this?"),
    ],
)
def test_what_a_sweep_refuses_before_it_trains(arguments, error, trained):
    with pytest.raises(UserError, match=error.replace("?", r"\?")):
        cli.dispatch(["sweep", *arguments])
    assert not trained


def test_a_run_of_its_own_process_gets_the_same_settings():
    typed = ["--learning-rate", "0.3", "--codec", "topk:fraction=0.1,memory=no"]
    typed += ["--tensorboard", "--checkpoint-steps", "7", "--backend", "simulation", "--uplink", "1Gbit"]
    given = parse_flags(DOWNPOUR, typed)
    assert parse_flags(DOWNPOUR, [word for some in given for word in words(some)]) == given
    command = sweep.command_of(Trial({}, 0, Path("run"), *given, "", {}))
    assert command[0] == "downpour"
    assert "--learning-rate=0.3" in command


def test_a_best_value_at_the_end_of_its_axis_is_said():
    trials = [trial({"learning_rate": str(rate)}, 0, 1 / rate) for rate in (0.1, 0.2)]
    assert report(trials)[1] == "the best learning_rate is the largest of the sweep: a larger one may be better"
    trials = [trial({"push_period": str(period)}, 0, period) for period in (1, 5)]
    assert len(report(trials)) == 1


def test_a_setting_of_which_a_run_diverged_is_not_the_best():
    trials = [
        trial({"codec": "int8"}, 0, 0.1), trial({"codec": "int8"}, 1, None, "diverged"),
        trial({"codec": "bf16"}, 0, 0.5), trial({"codec": "bf16"}, 1, 0.7),
    ]  # fmt: skip
    assert best_of(trials) == {"settings": {"codec": "bf16"}, "test_loss": pytest.approx(0.6)}
    assert best_of(trials[:2]) is None
    for some in (trials, [trial({}, seed, None, "diverged") for seed in (0, 1)]):
        picture("downpour", some).savefig(io.BytesIO())


@pytest.mark.rotating
def test_a_sweep_of_real_runs_at_the_same_time(capsys):
    arguments = ["sweep", "downpour", "--learning-rate", "0.05,0.1", "--epochs", "1", "--parallel", "2", "--json"]
    assert cli.dispatch(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [run["result"]["outcome"] for run in result["runs"]] == ["completed"] * 2


def test_several_algorithms_are_one_sweep_paired_by_seed(trained, capsys):
    """Hyperparameters go to the algorithms that have them, and those of one algorithm stand behind its name."""
    words = ["downpour,sync_sgd:learning_rate=0.4", "serial", "--learning-rate", "0.1", "--push-period", "3"]
    assert cli.dispatch(["sweep", *words, "--workers", "1", "--seeds", "2", "--dry-run"]) == 0
    assert [line.rpartition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"algorithm {name}, seed {seed}" for name in ("downpour", "sync_sgd:learning_rate=0.4", "serial")
        for seed in (0, 1)
    ]  # fmt: skip
    texts, rest = sweep._named([*words, "--workers", "1", "--seeds", "2"])
    trials, how, _ = sweep._trials(texts, rest)
    assert [(t.scheme.learning_rate, t.options.run.seed) for t in trials[1:4]] == [(0.1, 1), (0.4, 0), (0.4, 1)]
    assert trials[0].scheme.push_period == 3
    assert how.seeds == 2
    with pytest.raises(UserError, match="unknown option --nesterov"):
        cli.dispatch(["sweep", *words, "--nesterov"])


def test_a_table_for_a_paper_has_means_deviations_and_the_failed_runs(trained, capsys):
    assert cli.dispatch(["sweep", "downpour", "--learning-rate", "0.1,3", "--seeds", "2", "--table", "latex"]) == 0
    shown = capsys.readouterr()
    assert r"0.1 & 2 & $\mathbf{0.00050 \pm 0.00071}$ & $10$ & $1$ &  \\" in shown.out
    assert r"3 & 0 of 2 & - & - & - & diverged \\" in shown.out
    assert shown.out.endswith("\\end{tabular}\n")
    assert "plot: " in shown.err


def test_simulate_compares_several_seeds_as_a_sweep(trained, capsys):
    words = ["--compare", "downpour,sync_sgd", "--seeds", "2", "--steps", "9", "--dry-run"]
    assert cli.dispatch(["simulate", *words]) == 0
    assert capsys.readouterr().out.count("to be trained (runs/") == 4


def test_a_sweep_from_python_pairs_runs_by_seed_and_makes_each_once(monkeypatch):
    import keras
    import numpy as np

    from distsgd import DiLoCo, LocalSGD

    made, failing = [], []

    def train(model, data, scheme, *, run_dir, seed, **_):
        made.append((scheme.name, seed, float(np.sum(model.get_weights()[0])), np.random.random()))
        ended = "lost" if (scheme.name, seed) in failing else "completed"
        run_dir.mkdir(parents=True)
        known = {"workers": 2, "ps": 1, "dataset": "own data", "model": "mine"}
        (run_dir / "config.json").write_text(json.dumps({"algorithm": scheme.name, "seed": seed, **known}))
        figures = {"steps": 1, "examples": 1, "test_loss": 0.5, "test_accuracy": None, "seconds_training": 1.0}
        more = {"seconds_total": 1.0, "examples_per_second": 1.0, "bytes_pushed": 8, "bytes_pulled": 8}
        (run_dir / "result.json").write_text(json.dumps({"outcome": ended, **figures, **more}))
        if ended == "lost":
            raise DistsgdError("a task was lost")

    def build():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        return model

    monkeypatch.setattr(sweeping, "train", train)
    x = np.ones((8, 3), np.float32)
    failing += [("diloco", 4)]
    given = (build, (x, x[:, 0]), [LocalSGD(), DiLoCo()])
    found = sweeping.sweep(*given, seeds=2, seed=3)
    assert [one[:2] for one in made] == [("local_sgd", 3), ("local_sgd", 4), ("diloco", 3), ("diloco", 4)]
    assert [one[2:] for one in made[:2]] == [one[2:] for one in made[2:]]  # weights and NumPy's numbers
    assert made[0][2:] != made[1][2:]
    assert "| diloco | 1 of 2 |" in found.table()
    failing.clear()
    found = sweeping.sweep(*given, seeds=2, seed=3)
    assert [one[:2] for one in made[4:]] == [("diloco", 4)]
    assert "| diloco | 2 |" in found.table()
    sweeping.sweep(build, (2 * x, x[:, 0]), [LocalSGD()], seeds=1, seed=3)
    assert len(made) == 6  # other data
    with pytest.raises(UserError, match="model must be a function"):
        sweeping.sweep(build(), (x, x), [LocalSGD()])


def test_a_run_whose_process_is_killed_stands_in_the_table(monkeypatch, capsys):
    class Killed:
        returncode = -9

        def __init__(self, command, **_):
            if "--seed=1" not in command:
                folder = Path(next(word for word in command if word.startswith("--run-dir=")).partition("=")[2])
                folder.mkdir(parents=True)
                made = {"outcome": "completed", "exit_code": 0, "test_loss": 0.5, "test_accuracy": None, "updates": 1}
                (folder / "result.json").write_text(json.dumps(made | {"seconds_training": 1.0}))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def communicate(self):
            return None, ""

    monkeypatch.setattr(sweep.subprocess, "Popen", Killed)
    assert cli.dispatch(["sweep", "downpour", "--seeds", "2", "--parallel", "2", "--table", "md"]) == 0
    shown = capsys.readouterr()
    assert "| 1 of 2 | 0.5000 | 1 | 1.0 | failed |" in shown.out
    assert "seed 1: no result" in shown.err


def test_a_run_that_a_signal_has_cut_is_not_in_the_table_and_one_that_had_completed_is(trained, monkeypatch, capsys):
    """The second run has completed when the signal comes, while its plot is drawn, and the third is cut."""
    perform, handlers, last = sweep.perform, [], []
    words = ["downpour", "--seeds", "3", "--parallel", "1", "--table", "md", "--stop-signals", "USR2"]

    def interrupted(scheme, options, *words, **named):
        handlers.append(signal.getsignal(signal.SIGUSR2))
        ended = perform(scheme, options, *words, **named)
        if (seed := options.run.seed) == last[-1]:
            if seed == 1:
                raise Interrupted(signal.SIGUSR2)
            result = {**ended[1], "outcome": "interrupted"}
            (options.run.run_dir / "result.json").write_text(json.dumps(result))
            return None, result, Interrupted(signal.SIGUSR2)
        assert seed < last[-1]
        return ended

    monkeypatch.setattr(sweep, "perform", interrupted)
    for seed in (1, 2):
        last.append(seed)
        with pytest.raises(Interrupted, match="SIGUSR2"):
            cli.dispatch(["sweep", *words])
        shown = capsys.readouterr()
        assert "| 2 |" in shown.out
        assert "interrupted" not in shown.out
        assert "to continue: the same command" in shown.err
    assert set(handlers) == {interrupt}


def test_a_terminal_that_is_closed_ends_each_run_once_and_none_goes_on(monkeypatch):
    """The shell and the kernel each send SIGHUP, the kernel while `sweep` ends its runs, which get the same signal."""
    ended, handlers, sent = [], [], []

    class Running:
        returncode = 143

        def __init__(self, command, **_):
            self.told = threading.Event()
            handlers.append(signal.getsignal(signal.SIGUSR2))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def communicate(self):
            started.wait(LIMIT)  # for the other one
            os.kill(os.getpid(), signal.SIGHUP)
            assert self.told.wait(LIMIT)
            return None, "interrupted"

        def send_signal(self, number):
            signal.raise_signal(signal.SIGHUP)
            ended.append(self)
            sent.append(number)
            self.told.set()

    started = threading.Barrier(2)
    monkeypatch.setattr(sweep.subprocess, "Popen", Running)
    before = signal.signal(signal.SIGHUP, interrupt)
    try:
        with pytest.raises(Interrupted, match="SIGHUP"):
            cli.dispatch(["sweep", "downpour", "--seeds", "2", "--parallel", "2", "--stop-signals", "USR2"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(set(ended)) == len(ended) == 2
    assert set(sent) == {signal.SIGHUP}  # which their results name
    assert {handler.__func__ for handler in handlers} == {StopSignals._handle}


def test_a_mean_is_of_a_figure_that_each_completed_run_has():
    has, lacks = ({"outcome": "completed", **figures} for figures in ({"reward": 0.5}, {"reward": None}))
    failed = {"outcome": "lost"}
    assert [mean_of(runs, "reward") is None for runs in ([has, failed], [has, lacks], [failed])] == [False, True, True]


def test_a_table_has_the_metrics_of_a_model_too():
    results = [{"outcome": "completed", "test_loss": 0.5, "test_macro_f1": value} for value in (0.25, 0.75)]
    assert "test macro f1" in (text := sheet(["rate"], [(["0.1"], results)]).in_format("md"))
    assert "0.5000" in text
