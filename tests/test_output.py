"""What a run prints: with --quiet warnings and errors alone, with --verbose all settings."""

import json
from types import SimpleNamespace

import pytest

from distsgd.common.cli import main as cli
from distsgd.common.cli import train
from distsgd.common.errors import Diverged


@pytest.fixture
def ended(monkeypatch):
    """Runs that end at once, with a warning: with the error in this list, if there is one."""
    errors, shown = [], []

    def run(job, config, verbose, model, callbacks):
        shown.append(verbose)
        result = {"outcome": "completed", "exit_code": 0, "recovery": {"warnings": ["slow disk"]}}
        record = SimpleNamespace(task=None, rows=[{}], finish=lambda error: result)
        return record, errors[0] if errors else None

    monkeypatch.setattr(train, "run", run)
    monkeypatch.setattr(train, "summary", lambda result: "a table")
    return SimpleNamespace(errors=errors, shown=shown)


def test_a_quiet_run_prints_warnings_and_the_json_alone(ended, capsys):
    assert cli.dispatch(["simulate", "downpour", "--steps", "3", "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["outcome"] == "completed"
    assert err == "warning: slow disk\n"
    assert ended.shown == [False]


def test_a_quiet_run_prints_its_error(ended, capsys):
    ended.errors.append(Diverged("the loss is not finite"))
    cli.dispatch(["downpour", "--quiet"])
    assert capsys.readouterr() == ("", "error: the loss is not finite\n")


def test_a_verbose_run_prints_all_settings_before_it_starts(ended, capsys):
    cli.dispatch(["downpour", "--verbose", "--seed", "3"])
    out, err = capsys.readouterr()
    assert out == "a table\n"
    settings = dict(line.split(maxsplit=1) for line in err.splitlines())
    assert settings["hyperparameters.learning_rate"] == "0.1"
    assert (settings["seed"], settings["steps_per_worker"]) == ("3", "440")
    assert settings["run_dir"].startswith("runs/downpour/")
    assert ended.shown == [True]
