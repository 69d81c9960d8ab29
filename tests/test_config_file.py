"""Settings in a file: config.json of a run runs again, a TOML file has options, and flags override both."""

import json
from pathlib import Path

import pytest

from distsgd.algorithms import SCHEMES
from distsgd.common.cli import config_file, train
from distsgd.common.cli import main as cli
from distsgd.common.cli.flag_groups import find_cluster, parse_flags
from distsgd.common.cli.own import find_problem
from distsgd.common.cli.train import with_data
from distsgd.common.contract.schedules import ruled, shaped
from distsgd.common.errors import UserError
from distsgd.common.files import write_json
from distsgd.common.tasks.job import describe, make_job


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def config_of(name, arguments):
    """Return the configuration that a run with these flags writes."""
    scheme, options = parse_flags(SCHEMES[name], arguments)
    options, _ = with_data(options, [scheme])
    dataset, model, recipe, _ = find_problem(options)
    scheme = ruled(scheme, options.period_rule)
    job = make_job(scheme, recipe, dataset.train, dataset.test, find_cluster(options, scheme.sync.uses_ps), options.run)
    job.scheme = shaped(job.scheme, options.lr_schedule, job.steps)
    return describe(job, options.dataset or "", model)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("downpour", ["--learning-rate", "0.3", "--push-period", "2", "--workers", "3", "--ps", "2", "--seed", "5"]),
        ("serial", ["--batch-size", "16", "--l2", "0.01", "--model", "mlp:hidden=8-4", "--lr-schedule", "cosine"]),
        ("local_sgd", ["--participation", "0.5", "--clip-norm", "1", "--ema-decay", "0.9", "--stop-at-version", "3"]),
        ("local_sgd", ["--period-rule", "qsr:0.3", "--lr-schedule", "linear", "--steps", "9"]),
        ("diloco", ["--inner-optimizer", "sgd", "--codec", "int8:block=64", "--skew", "dirichlet:alpha=0.1"]),
        ("sync_sgd", ["--backend", "simulation", "--uplink", "1Gbit", "--step-factors", "1,1,10", "--steps", "9"]),
        ("hogwild", ["--backend", "threads", "--record", "off", "--evaluate-every", "7"]),
    ],
)
def test_the_configuration_of_a_run_describes_the_same_run_again(name, arguments):
    config = config_of(name, arguments)
    write_json(Path("config.json"), config)
    assert config_of(name, ["--config", "config.json"]) == config
    again = config_of(name, ["--config", ".", "--l2", "0.5"])
    assert again == config | {"l2": 0.5}


def test_every_algorithm_runs_again_with_its_hyperparameters():
    for name, kind in SCHEMES.items():
        scheme, options = parse_flags(kind, ["--seed", "3"])
        config = {"algorithm": name, "hyperparameters": vars(scheme), "seed": 3}
        write_json(Path("config.json"), json.loads(json.dumps(config)))
        again, same = parse_flags(kind, ["--config", "config.json"])
        assert (again, same) == (scheme, options)


@pytest.fixture
def started(monkeypatch):
    runs = []
    monkeypatch.setattr(train, "run_command", lambda scheme, options: runs.append((scheme, options)) or 0)
    return runs


def test_a_toml_file_names_algorithm_and_options_and_flags_override_it(started):
    Path("mine.toml").write_text(
        'algorithm = "downpour"\nlearning_rate = 0.3\nworkers = 4\nepochs = 3\ntensorboard = true'
    )
    assert cli.dispatch(["train", "--config", "mine.toml", "--workers", "3", "--steps=7"]) == 0
    assert cli.dispatch(["downpour", "--epochs", "2", "--config=mine.toml"]) == 0
    (scheme, options), (same, others) = started
    assert scheme.learning_rate == same.learning_rate == 0.3
    assert (options.workers, options.run.steps, options.run.tensorboard) == (3, 7, True)
    assert (others.workers, others.run.steps, others.run.epochs) == (4, None, 2)


@pytest.mark.parametrize(("of_file", "flag"), [("data", "dataset"), ("dataset", "data")])
def test_a_flag_replaces_the_data_of_a_file(of_file, flag, started):
    Path("mine.toml").write_text(f'algorithm = "downpour"\n{of_file} = "mine.py:load"')
    cli.dispatch(["train", "--config", "mine.toml", f"--{flag}", "other.py:load"])
    ((_, options),) = started
    assert (getattr(options, of_file), getattr(options, flag)) == (None, "other.py:load")


def test_epochs_and_machines_that_a_flag_replaces(started):
    config = {"algorithm": "downpour", "steps_per_worker": 9, "backend": "simulation", "platform": {"step_ms": 5.0}}
    write_json(Path("config.json"), config)
    cli.dispatch(["train", "--config", "config.json", "--backend", "threads", "--epochs", "2"])
    cli.dispatch(["train", "--config", "config.json", "--backend=simulation"])
    (_, real), (_, simulated) = started
    assert (real.backend, real.run.steps, real.platform.step_ms) == ("threads", None, None)
    assert (simulated.run.steps, simulated.platform.step_ms) == (9, 5.0)


@pytest.mark.parametrize(
    ("content", "arguments", "error"),
    [
        ("workers = 2", ["train", "--config", "mine.toml"], "mine.toml names no algorithm"),
        ('algorithm = "dwnpour"', ["train", "--config", "mine.toml"], "Did you mean downpour"),
        ('algorithm = "easgd"', ["downpour", "--config", "mine.toml"], "has settings of easgd"),
        ("wrokers = 2", ["downpour", "--config", "mine.toml"], "no option 'wrokers'. Did you mean workers"),
        ('workers = "many"', ["downpour", "--config", "mine.toml"], "--workers takes a whole number. Received: 'many'"),
        ("workers = true", ["downpour", "--config", "mine.toml"], "--workers takes a whole number. Received: 'True'"),
        ("tensorboard = 1", ["downpour", "--config", "mine.toml"], "--tensorboard takes no value"),
        ("workers =", ["downpour", "--config", "mine.toml"], "cannot read mine.toml as TOML"),
        ("", ["downpour", "--config", "other.toml"], "there is no file other.toml"),
        ("", ["downpour", "--config"], "--config needs a file"),
        ("", ["downpour", "--config=a", "--config=b"], "takes one file"),
        ("", ["train"], "train takes the algorithm from a file"),
    ],
)
def test_a_wrong_file_is_one_line(content, arguments, error, started):
    Path("mine.toml").write_text(content)
    with pytest.raises(UserError) as raised:
        cli.dispatch(arguments)
    assert error in str(raised.value)
    assert not started


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (
            {"model": "mine.py:build"},
            "has mine.py:build, and a file cannot make this program execute code: add --model mine.py:build",
        ),
        ({"dataset": "mine.py:load"}, "add --data mine.py:load"),
        ({"dataset": "own data"}, "add --data my_data.py:load"),
        ({"shapes": [[3]]}, "is the configuration of a script: start it with launch"),
        ({"workers": "x"}, "is damaged: workers must be"),
    ],
)
def test_a_recorded_file_executes_no_code_of_the_user(config, error, started):
    write_json(Path("config.json"), {"algorithm": "downpour", **config})
    with pytest.raises(UserError) as raised:
        cli.dispatch(["train", "--config", "config.json"])
    assert error in str(raised.value)
    assert not started


@pytest.mark.parametrize("command", [["train"], ["sweep", "agn", "--learning-rate", "0.1,0.2", "--dry-run"]])
def test_a_file_of_settings_is_read_once(command, started, monkeypatch):
    Path("own.toml").write_text('algorithm = "agn"\nseed = 3\n')
    seen, read = [], config_file.read_text
    monkeypatch.setattr(config_file, "read_text", lambda path: seen.append(path) or read(path))
    assert cli.dispatch([*command, "--config", "own.toml"]) == 0
    assert seen == [Path("own.toml")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('resume = "LONG"', r"the name of a file is too long \(\d{3} characters\)\. Received: x+\.\.\."),
        ("a = " + "[" * 3000 + "]" * 3000, "as TOML: maximum recursion depth"),
        ('"LONG" = 1', "has no option 'xxx"),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text('algorithm = "downpour"\n' + content.replace("LONG", 300 * "x"))
    with pytest.raises(UserError, match=message) as caught:
        cli.dispatch(["train", "--config", "own.toml", "--dry-run"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [["downpour", "--resume", 300 * "x"], ["replay", 300 * "x"], [6000 * "y/"]])
def test_a_name_that_is_too_long_is_refused_in_one_line(words):
    with pytest.raises(UserError) as caught:
        cli.dispatch(words)
    assert "\n" not in str(caught.value)
