"""The command line, as its users type it."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pytest

from distsgd.algorithms import SCHEMES, AsyncSGD
from distsgd.common.arguments import MEANINGS, SYNONYMS
from distsgd.common.cli import main as cli
from distsgd.common.cli import train
from distsgd.common.cli.flag_groups import Options, parse_flags, scheme_of
from distsgd.common.cli.flags import names

MEASUREMENTS = [name for name, place in cli.COMMANDS.items() if ":" not in place]


@pytest.mark.gate
def test_the_default_run_reaches_its_accuracy_and_prints_json(tmp_path):
    """In a folder with a module of another's name, which no task imports."""
    (tmp_path / "keras.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    command = [Path(sys.executable).with_name("distsgd"), "downpour", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "mark").exists()
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.keys() >= {
        "algorithm", "outcome", "exit_code", "backend", "workers", "ps", "seed", "steps", "examples", "updates",
        "seconds_training", "seconds_total", "examples_per_second", "test_accuracy", "test_loss", "staleness",
        "bytes_pushed", "bytes_pulled", "dropped", "run_dir",
    }  # fmt: skip
    assert result["staleness"].keys() == {"mean", "max", "histogram"}
    assert result["outcome"] == "completed"
    assert result["test_accuracy"] >= 0.95
    assert (result["workers"], result["ps"], result["steps"]) == (2, 1, 2 * 20 * 22)
    assert json.loads((tmp_path / result["run_dir"] / "result.json").read_text()) == result
    for noise in ("oneDNN", "cuda", "I0000", "W0000", "E0000", "WARNING"):
        assert noise not in done.stdout + done.stderr
    assert "test accuracy" in done.stdout
    assert "plot.png" in done.stdout


def without_reader():
    """Return a pipe that nothing reads."""
    end, pipe = os.pipe()
    os.close(end)
    return pipe


@pytest.mark.rotating
def test_a_run_whose_display_has_no_reader_continues(tmp_path):
    command = [Path(sys.executable).with_name("distsgd"), "serial", "--steps=5", "--backend=threads", "--run-dir=run"]
    pipe = without_reader()
    assert subprocess.run(command, stdout=pipe, stderr=pipe, timeout=200, cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["outcome"] == "completed"


@pytest.mark.parametrize("word", ["list", "--version"])
def test_a_command_whose_output_has_no_reader_ends_in_silence(word, tmp_path):
    command = [Path(sys.executable).with_name("distsgd"), word]
    done = subprocess.run(command, stdout=without_reader(), stderr=subprocess.PIPE, timeout=200, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("list",)])
def test_the_overview_lists_every_algorithm(arguments, capsys):
    with contextlib.suppress(SystemExit):
        assert cli.dispatch(list(arguments)) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in SCHEMES)
    assert arguments != ("list",) or all(scheme.paper.split()[0] in shown for scheme in SCHEMES.values())


def test_the_overview_has_measurements_of_this_project_on_demand(capsys):
    shown = []
    for arguments in (["--help"], ["--help-all"]):
        assert cli.dispatch(arguments) == 0
        shown.append(capsys.readouterr().out)
    assert ["Measurements of this project" in text for text in shown] == [False, True]
    assert ["endurance" in text for text in shown] == [False, True]
    assert shown[0].endswith("--help-all\n")


def test_the_overview_names_each_command_in_one_group():
    groups = [*cli.GROUPS.values(), *cli.MEASUREMENTS.values()]
    words = [word for rows in groups for word in {usage.split()[0] for usage, _ in rows}]
    assert sorted(words) == sorted([*cli.COMMANDS, "<algorithm>", "--import"])
    for place in cli.COMMANDS.values():
        assert callable(cli.function(place)) if ":" in place else find_spec(f"distsgd.benchmarks.{place}")


@pytest.mark.parametrize(
    "command",
    ["list", "explain", "evaluate", "replay", "simulate", "serial", "sync_sgd_lr", "doctor", *MEASUREMENTS],
)
@pytest.mark.parametrize("columns", [40, 100])
def test_every_command_has_help_that_fits_the_terminal(command, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stopped:
        cli.dispatch([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: run.sh {command}")
    assert all(len(line) <= columns for line in shown.splitlines() if not line.startswith(("  --", "usage: ")))


def test_the_help_of_an_option_that_must_be_given_has_no_default(capsys):
    for arguments in (["simulate", "downpour", "--parameters", "1M", "--help"], ["timeline", "--help"]):
        with contextlib.suppress(SystemExit):
            cli.dispatch(arguments)
        assert "MISSING" not in capsys.readouterr().out


def test_flags_may_come_before_the_algorithm(monkeypatch):
    received = []
    monkeypatch.setattr(train, "run_algorithm", lambda scheme, _, rest: received.append((scheme.name, rest)) or 0)
    cli.dispatch(["--workers", "4", "downpour", "--json"])
    assert received == [("downpour", ["--workers", "4", "--json"])]


def test_names_are_taken_in_another_spelling(monkeypatch, capsys):
    received = []
    monkeypatch.setattr(train, "run_algorithm", lambda scheme, *_: received.append(scheme.name) or 0)
    for arguments in (["sync-sgd"], ["Downpour"], ["Downpour()"], ["--workers", "2", "AsyncDiLoCo"]):
        cli.dispatch(arguments)
    assert received == ["sync_sgd", "downpour", "downpour", "async_diloco"]
    assert cli.dispatch(["explain", "EF-SGD"]) == 0
    assert "ef_sgd" in capsys.readouterr().out
    assert scheme_of("SyncSGD:backup_workers=1") == SCHEMES["sync_sgd"](backup_workers=1)


def test_flags_are_written_with_either_dash_and_values_have_their_types():
    flags = "--learning-rates 0.1 2 --worker_hosts=a:1,b_c:2 --run-dir x/y --steps None --l2 1e-3 --json --ps=2"
    scheme, options = parse_flags(SCHEMES["sync_sgd_lr"], flags.split())
    assert scheme.learning_rates == (0.1, 2.0)
    assert (options.machines.worker_hosts, str(options.run.run_dir), options.run.steps) == ("a:1,b_c:2", "x/y", None)
    assert (options.run.l2, options.output.json, options.ps, options.run.tensorboard) == (1e-3, True, 2, False)


@dataclasses.dataclass(frozen=True)
class Flagged(AsyncSGD):
    """An algorithm of a user, with a flag of each kind."""

    nesterov: bool = True
    centered: bool = False
    decay: float | None = 0.5
    layers: tuple[int, ...] = (3,)
    form: Literal["first", "second"] = "first"


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        ([], {}),
        (["--no-nesterov"], {"nesterov": False}),
        (["--no_nesterov", "--centered"], {"nesterov": False, "centered": True}),
        (
            ["--decay", "none", "--layers", "1", "2", "--form=second"],
            {"decay": None, "layers": (1, 2), "form": "second"},
        ),
    ],
)
def test_a_flag_of_each_kind_reaches_its_field_and_nothing_else(flags, changed):
    assert parse_flags(Flagged, flags)[0] == dataclasses.replace(Flagged(), **changed)


def test_help_shows_flags_of_the_algorithm_and_common_ones_with_defaults(run_main):
    _, shown, _ = run_main("downpour", "--help")
    for flag in (
        "communication-period", "server-learning-rate", "workers", "ps", "epochs", "steps", "batch-size", "dataset",
        "model", "backend", "seed", "run-dir", "json",
    ):  # fmt: skip
        assert f"--{flag}" in shown
    assert re.search(r"Local steps between two exchanges.\s+\(default: 5\)", shown)
    assert "--moving-rate" not in shown
    titles = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert titles[0] == "hyperparameters of downpour"
    assert titles[-2:] == ["several machines", "simulated machines"]
    assert shown.index("--learning-rate X") < shown.index("\noptions:") < shown.index("--workers")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["downpuor"], "unknown algorithm or command 'downpuor'. Did you mean downpour"),
        (["verify", "latest"], "unknown algorithm or command 'verify'. Did you mean replay?"),
        (["tune", "downpour"], "unknown algorithm or command 'tune'. Did you mean sweep?"),
        (["config"], "It is an option, as in: downpour --config ..."),
        (["downpour", "--weight-decay", "1"], "unknown option --weight-decay of downpour. Did you mean --l2?"),
        (["downpour", "--output-dir", "x"], "unknown option --output-dir of downpour. Did you mean --run-dir?"),
        (["downpour", "--restart", "x"], "unknown option --restart of downpour. Did you mean --resume?"),
        (["resume"], "unknown algorithm or command 'resume'. It is an option, as in: downpour --resume ..."),
        (["zebra"], "unknown algorithm or command 'zebra'. See --help"),
        (["downpour", "--lr", "x"], "--learning-rate takes a number. Received: 'x'"),
        (["serial", "--lr=-1"], "learning_rate must be a positive number"),
        (["sync_sgd", "--bs", "0"], "batch_size must be at least 1"),
        (["sync_sgd", "--nproc_per_node", "0"], "workers must be at least 1"),
        (["sync_sgd_lr", "--lr", "3"], "unknown option --lr of sync_sgd_lr"),
        (["sweep", "downpour", "--output", "x.txt"], "--plot takes a name that ends in .png, .svg or .pdf"),
        (["help", "zebra"], "unknown algorithm or command 'zebra'. See --help"),
        (["docs", "--foo"], "unknown option --foo of docs. See docs --help"),
        (["runs", "--filter"], "--filter needs a value"),
        (["list", "zebra"], "no algorithm has 'zebra' in its name, idea or paper"),
        (["tutorials", "99"], "no notebook has a name that begins so. Known: 01-"),
        (["fedopt", "--inner-optimizer", "lion"], "unknown option --inner-optimizer of fedopt. See fedopt --help"),
        (
            ["diloco", "--period", "3"],
            "unknown option --period of diloco. Did you mean --communication-period, --period-rule?",
        ),
        (["downpour", "--config", "x"], "--config: there is no file x"),
        (["downpour", "--shuffle"], "unknown option --shuffle of downpour. In this package each worker shuffles its"),
        (["downpour", "--communication-period", "0"], "communication_period must be at least 1"),
        (["downpour", "--workers", "0"], "workers must be at least 1"),
        (["async_sgd", "--learning-rate", "nan"], "learning_rate must be a positive number"),
        (["downpour", "--model", "mpl"], "unknown model 'mpl'. Did you mean mlp"),
        (["downpour", "--seed", "-1"], "seed must be at least 0"),
        (["downpour", "--model", "cnn", "--dataset", "synthetic"], "square length"),
        (["downpour", "--run-dir", "/proc/nowhere"], "cannot write the run directory"),
        (["downpour", "--run-dir", ""], "--run-dir must not be empty"),
        (["downpour", "--workers", "1" + 12 * "0"], "workers must be at most 1000"),
        (["downpour", "--ps", "100000"], "ps must be at most 1000"),
        (["serial", "--seed", "4294967296"], "seed must be at most 4294967295"),
        (["downpour", "--workers", "1" + 24 * "0"], "--workers must be at most 1e+12"),
        (["downpour", "--epochs", "1" + 12 * "0"], "steps must be at most"),
        (["downpour", "--epochs", "3", "--steps", "10"], "--steps and --epochs exclude each other. Received: 10 and 3"),
        (["downpour", "--run-dir", 300 * "x"], "cannot use the folder"),
        (["downpour", "--model", "mlp:hidden=99999999999"], "must be positive and below 2^31"),
        (["downpour", "--separate-evaluator"], "--separate-evaluator is for several machines"),
        (["serial", "--ps", "3"], "serial has no parameter server: leave ps out. Received: ps=3"),
        (["downpour", "--min-workers", "5"], "min_workers must be at most the number of workers, 2"),
        (["downpour", "--dataset", "libsvm:path=a,b.svm"], "a,b.svm"),
        (["downpour", "--worker", "4"], "unknown option --worker of downpour. Did you mean --workers"),
        (["downpour", "--wrokers", "4"], "unknown option --wrokers of downpour. Did you mean --workers"),
        (["downpour", "-w", "4"], "unknown option -w of downpour"),
        (["downpour", "--qqqqq"], "unknown option --qqqqq of downpour. See downpour --help"),
        (["downpour", "agn"], "downpour does not take 'agn'"),
        (["downpour", "--workers", "many"], "--workers takes a whole number. Received: 'many'"),
        (["downpour", "--l2", "x"], "--l2 takes a number. Received: 'x'"),
        (["downpour", "--steps"], "--steps needs a value"),
        (["completion", "tcsh"], "shell must be one of 'bash', 'zsh', 'fish'. Received: 'tcsh'"),
        (["sync_sgd_lr", "--learning-rates", "a"], "--learning-rates takes a number"),
        (["downpour", "--json=3"], "--json takes no value"),
        (
            ["downpour", "--backend", "thread"],
            "--backend must be one of processes, threads, simulation. Received: 'thread'",
        ),
        (["--workers", "4"], "the algorithm or command comes first, as in: downpour --workers 4"),
        (["--workers", "4", "downpour", "agn"], "the algorithm or command comes first"),
        (["explain"], "algorithm is missing. See explain --help"),
        (["explain", "downpuor"], "unknown algorithm 'downpuor'. Did you mean downpour"),
        (["explain", "lookahed"], "unknown algorithm 'lookahed'. Did you mean lookahead"),
        (["evaluate"], "run_dir is missing. See evaluate --help"),
        (["evaluate", ""], "run_dir must not be empty"),
        (["evaluate", __file__], "is a file: give the run directory"),
        (["evaluate", "x", "--wait-seconds", "nan"], "wait_seconds must be a positive number"),
        (["throughput", "--second", "3"], "unknown option --second of throughput. Did you mean --seconds"),
        (["collisions", "--repetitions", "0"], "repetitions must be at least 1"),
        (["stragglers", "--slow-share", "nan"], "slow_share must lie between 0 and 1"),
        (["soak", "--minutes", "nan"], "minutes must be a positive number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_clear_line_with_exit_code_2_and_nothing_started(
    arguments, message, tmp_path, monkeypatch, run_main
):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_main(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert not (tmp_path / "runs").exists()


def test_help_comes_before_a_command_too_and_the_catalogue_is_filtered_by_words(run_main):
    assert run_main("help", "bandwidth")[1] == run_main("bandwidth", "--help")[1] != ""
    code, found, _ = run_main("list", "gossip", "--json")
    names = [json.loads(line)["algorithm"] for line in found.splitlines()]
    assert code == 0
    assert {"d_psgd", "ad_psgd", "noloco"} <= {*names}
    assert "sync_sgd" not in names
    _, found, _ = run_main("list", "fedavg")
    assert "local_sgd" in found
    assert "Other names: fedavg is local_sgd" in found


def test_words_of_other_systems_mean_something_that_is_here():
    known = {*cli.COMMANDS, *names(Options), "learning_rate"}
    assert set(MEANINGS) <= known
    assert not set(SYNONYMS) & {*known, *SCHEMES}


def test_help_folds_groups_that_help_all_shows(capsys):
    shown = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            cli.dispatch(["downpour", flag])
        shown[flag] = capsys.readouterr().out
    short, whole = shown["--help"].splitlines(), shown["--help-all"].splitlines()
    assert len(short) < 100 < 200 < len(whole)
    for name in names(Options):
        flag = f"--{'no-' * (name in ('probe', 'tf32'))}{name.replace('_', '-')}"
        assert any(flag in line for line in short), name
    assert any(line.startswith("  --uplink TEXT") for line in whole)
    assert not any(line.startswith("  --uplink TEXT") for line in short)
    assert any(line.endswith("(default: 20)") for line in short)
