"""The size of a run before it starts."""

import json

import pytest

from distsgd.algorithms import SCHEMES
from distsgd.common.cli import dry_run, train
from distsgd.common.cli import main as cli
from distsgd.common.cli.dry_run import least_seconds, sizes
from distsgd.common.cli.flag_groups import parse_flags
from distsgd.common.cli.train import prepared, with_data

PARAMETERS = 64 * 128 + 128 + 128 * 10 + 10
VECTOR = 4 * PARAMETERS


def size_of(name, *arguments):
    scheme, options = parse_flags(SCHEMES[name], list(arguments))
    job, _, model = prepared(scheme, with_data(options, [scheme])[0])
    return sizes(job, model)


@pytest.mark.parametrize(
    ("name", "arguments", "worker", "server"),
    [
        ("async_sgd", (), 3, 1),
        ("async_sgd", ("--codec", "int8"), 4, 1),  # the error of the messages
        ("downpour", (), 4, 2),  # the sum of gradients; Adagrad's sum of squares
        ("local_sgd", ("--inner-optimizer", "adam"), 5, 1),
        ("sparseloco", (), 7, 1),  # Adam moments, the start of the round, the error
        ("dc_asgd", ("--workers", "3"), 3, 4),  # a row for each worker
    ],
)
def test_memory_counts_the_variables_of_the_algorithm(name, arguments, worker, server):
    found = size_of(name, *arguments)
    assert found["parameters"] == PARAMETERS
    assert round(found["memory_of_a_worker"] / VECTOR, 2) == worker
    assert round(found["memory_of_the_server"] / VECTOR, 2) == server


def test_bytes_and_rounds_are_those_of_the_run_itself(tmp_path, monkeypatch, capsys):
    """A simulation counts its events."""
    monkeypatch.chdir(tmp_path)
    arguments = ["simulate", "downpour", "--push-period", "2", "--pull-period", "3", "--steps", "12", "--json"]
    assert cli.dispatch([*arguments, "--dry-run"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not list(tmp_path.iterdir())
    assert (found["steps_per_worker"], found["updates"]) == (12, 2 * 6)
    assert found["bytes_of_a_worker"] == (6 + 4) * 4 * found["parameters"]


def test_nothing_is_started(monkeypatch, capsys):
    monkeypatch.setattr(train, "run", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(train, "expected", lambda *_: {})
    assert cli.dispatch(["all_reduce", "--dry-run"]) == 0
    assert "no ps" in capsys.readouterr().out
    monkeypatch.setattr(dry_run, "free_bytes", lambda: 5e9)
    assert cli.dispatch(["downpour", "--ps", "200", "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Warning: more than this machine has free: 203, about 14.8 GB" in out


@pytest.mark.parametrize(
    ("steps", "cores", "seconds"),
    [
        ([100], 2, 2.0),  # one worker has both cores
        ([100, 100], 2, 3.0),  # 200 steps of 30 ms of CPU on two cores
        ([100] * 4, 2, 6.0),
        ([100] * 4, 64, 2.0),
        ([100, 10], 2, 2.0),  # the worker with most steps
    ],
)
def test_workers_share_the_cores_of_their_machine(steps, cores, seconds):
    assert least_seconds(0.02, 0.03, steps, cores) == pytest.approx(seconds)


@pytest.mark.gate
def test_seconds_are_measured_for_real_runs_alone(capsys):
    assert cli.dispatch(["downpour", "--dry-run", "--steps", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0.01 < found["least_seconds"] < 100  # 1000 steps of 10 us to 100 ms
    assert cli.dispatch(["simulate", "downpour", "--dry-run", "--steps", "12"]) == 0
    assert "seconds" not in capsys.readouterr().out
