"""`--import` and `explain`: a scheme from a user's own file."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from distsgd.algorithms import SCHEMES
from distsgd.common import Group, UserError
from distsgd.common.cli import sweep
from distsgd.common.cli.catalogue import explain, hyperparameters
from distsgd.common.cli.flag_groups import parse_flags
from distsgd.common.cli.flags import taken_out
from distsgd.common.cli.imports import import_codecs, import_file, import_schemes
from distsgd.common.cli.main import dispatch
from distsgd.common.cli.sweep_report import Trial
from distsgd.common.cluster.fingerprint import class_digest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
CONSOLE_SCRIPT = Path(sys.executable).with_name("distsgd")  # what run.sh ends with
CODEC = "from distsgd.common.contract import Compressor\nclass Mine(Compressor):\n    name = '{}'"
HEAD = "from dataclasses import dataclass\nfrom distsgd.common import Scheme\nfrom distsgd.algorithms import AsyncSGD\n"


def distsgd(*arguments, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [CONSOLE_SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def section():
    """The README's code and command for a first own algorithm."""
    text = README.split("## Write your own algorithm")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"`bash run\.sh (.*?)`", text)
    return code, command.split()


@pytest.mark.gate
def test_the_readmes_own_algorithm_runs_with_the_readmes_command(section, warm, tmp_path, monkeypatch, run_main):
    code, command = section
    (tmp_path / "my_scheme.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    code, output, errors = run_main(*command, "--json")
    assert code == 0, errors
    result = json.loads(output.splitlines()[-1])
    assert (result["algorithm"], result["backend"], result["outcome"]) == ("my_scheme", "processes", "completed")
    assert result["test_accuracy"] > 0.9
    config = json.loads((tmp_path / result["run_dir"] / "config.json").read_text())
    assert config["hyperparameters"] == {"learning_rate": 0.3}


@pytest.mark.rotating
def test_import_goes_with_help_list_and_explain(section, tmp_path, monkeypatch, run_main):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_scheme.py").write_text(section[0])
    _, shown, _ = run_main("--import", "my_scheme.py", "my_scheme", "--help")
    shown = " ".join(shown.replace("│", " ").split())  # without the box
    assert "Step size η of a gradient that is not stale. (default: 0.2)" in shown
    assert re.search("my_scheme +asynchronous", distsgd("list", "--import=my_scheme.py", cwd=tmp_path).stdout)
    with_tensorflow = section[0].replace("\nfrom ", "\nimport tensorflow\nfrom ", 1)  # which is quiet here
    (tmp_path / "my_scheme.py").write_text(with_tensorflow)
    explained = distsgd("--import", "my_scheme.py", "explain", "my_scheme", cwd=tmp_path)
    assert "Damped: asynchronous SGD with a smaller step for a stale gradient" in explained.stdout
    assert explained.stdout.endswith("To run it: bash run.sh --import my_scheme.py my_scheme\n")
    assert ("\x1b" in explained.stdout, explained.stderr) == (False, "")


def test_the_readmes_algorithm_follows_its_equation(section, tmp_path):
    (tmp_path / "mine.py").write_text(section[0])
    damped = import_schemes(tmp_path / "mine.py", {})["my_scheme"](learning_rate=0.5)
    group, order = Group(damped, np.array([1.0, -2.0]), workers=2), [0, 1, 1, 0]
    for k in order:
        group.step(k, group.point(k))
    theta, pulled = np.array([1.0, -2.0]), [(np.array([1.0, -2.0]), 0)] * 2
    for version, k in enumerate(order):
        x, at = pulled[k]
        theta = theta - 0.5 / (1 + version - at) * x
        pulled[k] = theta, version + 1
    np.testing.assert_allclose(group.center, theta, rtol=1e-6)


def test_the_only_algorithm_without_a_name_has_that_of_its_file(tmp_path):
    (tmp_path / "my-own.py").write_text(
        HEAD + "class Mine(AsyncSGD):\n    pass\nclass Other(Scheme):\n    name = 'other'"
    )
    assert {name: kind.__name__ for name, kind in import_schemes(tmp_path / "my-own.py", SCHEMES).items()} == {
        "my_own": "Mine",
        "other": "Other",
    }


OWN_CODEC = "from distsgd.common.contract import Compressor\nclass Mine(Compressor):\n    "


def test_the_only_codec_of_a_file_without_a_name_has_that_of_its_file_and_one_that_is_no_dataclass_is_refused(tmp_path):
    (tmp_path / "my-own.py").write_text(f"{OWN_CODEC}pass")
    assert import_schemes(tmp_path / "my-own.py", SCHEMES) == {}
    assert [*import_codecs(tmp_path / "my-own.py")] == ["my_own"]
    (tmp_path / "topk.py").write_text(f"{HEAD}{OWN_CODEC}pass\nclass Topk(AsyncSGD):\n    name = 'with_its_own'")
    assert [*import_schemes(tmp_path / "topk.py", SCHEMES)] == ["with_its_own"]
    assert import_codecs(tmp_path / "topk.py") == {}  # the scheme's own
    (tmp_path / "wrong.py").write_text(f"{OWN_CODEC}block: int = 4")
    import_schemes(tmp_path / "wrong.py", SCHEMES)
    with pytest.raises(
        UserError,
        match=r"needs @dataclass\(frozen=True, kw_only=True\) above it: without it, its fields are no options",
    ):
        import_codecs(tmp_path / "wrong.py")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "defines no scheme or codec"),
        (HEAD + "class Mine(Scheme):\n    pass\nclass Other(AsyncSGD):\n    pass", "has no name"),
        (HEAD + "class Mine(Scheme):\n    name = 'agn'", "another algorithm has already"),
        (HEAD + "class Mine(Scheme):\n    name = 'mine'\n    rate: float = 1.0", "needs @dataclass"),
        (
            HEAD + "@dataclass(frozen=True, kw_only=True)\nclass Mine(Scheme):\n    name = 'mine'\n    rate: float",
            "hyperparameter rate needs a default",
        ),
        ("a = 1\nb = a / 0  # here", "mine.py, line 2 (b = a / 0  # here): ZeroDivisionError"),
        ("import json\njson.loads('{')", "mine.py, line 2 (json.loads('{')): JSONDecodeError"),
        ("a = 1\nif a\n    pass", "mine.py, line 2 (if a): SyntaxError"),
        ("import sys\nsys.exit(3)", "mine.py, line 2 (sys.exit(3)): SystemExit: 3"),
        (None, "there is no file"),
    ],
    ids=lambda value: value if value and "\n" not in value else "",
)
def test_an_imported_file_with_a_fault_is_refused_with_its_line(code, message, tmp_path):
    if code is not None:
        (tmp_path / "mine.py").write_text(code)
    with pytest.raises(UserError, match=re.escape(message)):
        import_schemes(tmp_path / "mine.py", SCHEMES)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("TRANSCRIPTIONS = {'mine': 3}", "TRANSCRIPTIONS must be a dict of a Transcription for each algorithm"),
        ("TRANSCRIPTIONS = {'mine': lambda run: run}", "of a function with the argument memory for each codec"),
        ("TRANSCRIPTIONS = {'topk': lambda *, memory='yes': 0}", "TRANSCRIPTIONS has 'topk', whose equations"),
        (CODEC.format("int8"), "another codec has the name 'int8' already"),
        (CODEC.format("float32"), "another codec has the name 'float32' already"),
    ],
)
def test_wrong_equations_and_codecs_of_a_file_are_refused(code, message, tmp_path):
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(UserError, match=re.escape(message)):
        import_file(tmp_path / "mine.py", {})


@pytest.mark.rotating
def test_a_codec_of_a_file_fits_any_algorithm_and_its_runs_are_replayed(tmp_path, monkeypatch, run_main):
    file = Path(__file__).with_name("own_compressor.py")
    flags = ["--codec", "ternary:least=0.4", "--backend", "threads", "--ps", "2", "--run-dir", "mine"]
    monkeypatch.chdir(tmp_path)
    code, _, errors = run_main("--import", str(file), "downpour", *flags, "--epochs", "3")
    assert code == 0, errors
    code, shown, _ = run_main("replay", "mine")
    assert (code, "the run did what the paper's equations say" in shown) == (0, True), shown
    config = tmp_path / "mine" / "config.json"
    config.write_text(config.read_text().replace("ternary:least=0.4", "ternary:least=0.5"))
    code, shown, _ = run_main("replay", "mine")
    assert (code, "DIFFERS" in shown) == (1, True), shown
    command = sweep.command_of(Trial({}, 0, Path("run"), *parse_flags(SCHEMES["downpour"], flags), "", {}))
    assert command[:3] == ["--import", str(file), "downpour"]
    code, _, errors = run_main("downpour", *flags[:2], "--codec", "ternary:most=2")
    assert (code, errors) == (
        2,
        "error: codec ternary has no option 'most' (its options: memory, least). Received: 'ternary:most=2'\n",
    )


def test_import_without_a_file_is_refused():
    assert taken_out("--import", ["--import", "a.py", "x", "--import=b.py", "--json"], "a file") == (
        [Path("a.py"), Path("b.py")],
        ["x", "--json"],
    )
    with pytest.raises(UserError, match="--import needs a Python file"):
        dispatch(["list", "--import"])


@pytest.mark.parametrize("name", ["fair", "own_rule", "means", "own_codec", "own_compressor", "uneven"])
def test_the_examples_of_own_schemes_import_public_names_alone(name):
    text = Path(__file__).with_name(f"{name}.py").read_text()
    assert set(re.findall(r"from (distsgd[\w.]*)", text)) <= {"distsgd.common.contract", "distsgd.common.sync"}
    assert not re.search(r"\bps\._|\bslot\._|self\._", text)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_algorithm_is_explained(name, capsys):
    explain(name)
    shown = capsys.readouterr().out
    assert "←" in shown
    assert "Reference: " in shown
    meanings = hyperparameters(SCHEMES[name])
    assert list(meanings) == [field.name for field in fields(SCHEMES[name])]
    assert all(meaning for _, meaning in meanings.values())
    assert all("--" + option.replace("_", "-") in shown for option in meanings)


def test_tasks_compare_the_source_of_an_algorithm_of_ones_own(tmp_path):
    """Two files may give a class the same name, the same hyperparameters, and another rule."""
    digests = set()
    for number, factor in enumerate((2, 2, 3)):
        file = tmp_path / f"mine_{number}.py"
        file.write_text(
            f"{HEAD}@dataclass(frozen=True, kw_only=True)\nclass Mine(AsyncSGD):\n"
            f'    """Mine."""\n\n    name = "mine"\n\n'
            f"    def message(self, worker):\n        return {factor} * worker.gradient\n"
        )
        (scheme,) = import_schemes(file, SCHEMES).values()
        digests.add(class_digest(scheme))
    assert len(digests) == 2
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: class_digest(scheme), range(200)))) == 1
    assert class_digest(SCHEMES["agn"]) == ""  # the package's own modules are compared as a whole


MODEL = """
import keras

class Scaled(keras.layers.Layer):
    def call(self, x):
        return x / 16

def build():
    model = keras.Sequential([keras.Input((64,)), Scaled(), keras.layers.Dense(10)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model

def uncompiled():
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])

def text():
    return "mlp"

def fails():
    return build().get_layer("none")

def other():
    model = uncompiled()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""

DATA = """
import tensorflow as tf
from distsgd.common.data.named import load as named

digits = named("digits")
train, test = ((x * 16, y) for x, y in (digits.train, digits.test))

def pair():
    return train, test

def alone():
    return train

def sets():
    return [tf.data.Dataset.from_tensor_slices(part).batch(50) for part in (train, test)]

def functions():
    return [lambda: tf.data.Dataset.from_tensor_slices(train).batch(32, drop_remainder=True), sets()[1]]

def without_labels():
    return train[0]

def floats():
    return train[0], train[1] / 2

def nothing():
    pass
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "my_data.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("data", ["pair", "functions", "sets"])
@pytest.mark.rotating
def test_model_and_data_of_files_train_and_are_recorded(data, files, run_main):
    files_of_run = ["--model", "my_model.py:build", "--data", f"my_data.py:{data}"]
    flags = [*files_of_run, "--backend", "threads", "--epochs", "5", "--checkpoint-steps", "1000"]
    code, output, errors = run_main("SyncSGD", *flags, "--json")
    assert code == 0, errors
    result = json.loads(output.splitlines()[-1])
    assert result["test_accuracy"] > 0.8
    config = json.loads(Path(result["run_dir"], "config.json").read_text())
    assert (config["model"], config["dataset"]) == ("my_model.py:build", f"my_data.py:{data}")
    assert config["architecture"].startswith("2 variables, 650 parameters")
    code, _, errors = run_main("replay", "latest")
    assert (code, len(errors.splitlines())) == (2, 1)
    assert "has a model or data of its own, which only its script or file knows" in errors
    code, output, errors = run_main("evaluate", "latest", *files_of_run)
    assert code == 0, errors
    assert f"test_accuracy {result['test_accuracy']:.4f}" in output.splitlines()[-1]


@pytest.mark.rotating
def test_evaluate_executes_no_file_that_only_the_folder_names(files, run_main):
    names = ["--model", "my_model.py:build", "--data", "my_data.py:pair"]
    flags = [*names, "--backend", "threads", "--steps", "4", "--checkpoint-steps", "1000"]
    assert run_main("async_sgd", *flags)[0] == 0
    for given, missing in (([], names[:2]), (names[:2], names[2:])):
        code, _, errors = run_main("evaluate", "latest", *given)
        assert (code, len(errors.splitlines())) == (2, 1)
        assert f"a file cannot make this program execute code: add {' '.join(missing)}" in errors
    code, _, errors = run_main("evaluate", "latest", "--model", "my_model.py:other", *names[2:])
    assert code == 2
    assert "where the run has 2 variables, 650 parameters" in errors


@pytest.mark.rotating
def test_a_model_by_name_trains_on_data_of_a_file_and_is_replayed(files, run_main):
    flags = ["--data", "my_data.py:pair", "--backend", "threads", "--learning-rate", "0.01"]
    code, _, errors = run_main("async_sgd", "--model", "mlp:hidden=8", *flags, "--steps", "20")
    assert code == 0, errors
    assert run_main("replay", "latest")[0] == 0
    code, output, errors = run_main("simulate", "downpour", "--workers", "8", *flags[:2], "--steps", "5", "--json")
    assert code == 0, errors
    assert json.loads(output.splitlines()[-1])["examples"] == 8 * 5 * 32


@pytest.mark.rotating
def test_a_model_of_a_file_trains_on_processes_and_resumes(files, warm, run_main):
    flags = ["--model", "my_model.py:build", "--data", "my_data.py:alone", "--checkpoint-steps", "10"]
    assert run_main("downpour", *flags, "--epochs", "2", "--run-dir", "runs/mine")[0] == 0
    code, output, errors = run_main("downpour", *flags, "--epochs", "3", "--resume", "runs/mine", "--json")
    assert code == 0, errors
    assert json.loads(output.splitlines()[-1])["recovery"]["resumed_from"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model none.py:build", r"--model: there is no file /\S*/none.py"),
        (
            "--model my_model.py",
            "--model needs a Python file and a function in it, as in my_file.py:build. Received: my_mo",
        ),
        ("--model my_model.py:", "--model needs a Python file and a function in it"),
        ("--model my_model.py:bild", r"--model: my_model.py has no function 'bild'. Did you mean build\?"),
        ("--model my_model.py:keras", r"--model: my_model.py has no function 'keras'"),
        ("--model my_model.py:text", "--model: my_model.py:text must return a compiled Keras model. Received: str"),
        ("--model my_model.py:uncompiled", r"the model has no loss: call model.compile\(loss=...\) first"),
        (
            "--model my_model.py:fails",
            r"my_model.py, line 20 \(return build\(\).get_layer\(\"none\"\)\): ValueError: No such layer: none",
        ),
        ("--model my_model.py:build --data my_data.py:nothing", "data must be .* Received: None"),
        ("--model my_model.py:build --data my_data.py:without_labels", r"with labels: give data=\(x, y\)"),
        ("--data my_data.py:load", "--data: my_data.py has no function 'load'. Define it"),
        (
            "--data my_data.py:floats",
            "the models by name need class numbers in y, .* Received: --data my_data.py:floats",
        ),
        ("--data digits", "--data needs a Python file and a function in it, as in my_file.py:load. Received: digits"),
        ("--data my_data.py:pair --dataset digits", "--data and --dataset exclude each other"),
        ("--data my_data.py:pair --model mpl", "unknown model 'mpl'. Did you mean mlp"),
    ],
)
def test_a_wrong_file_of_a_model_or_data_is_refused_in_one_line(flags, message, files, run_main):
    code, output, errors = run_main("downpour", *flags.split())
    assert (code, output) == (2, "")
    assert re.search(message, errors), errors
    assert len(errors.strip().splitlines()) == 1
    assert not (files / "runs").exists()


@pytest.mark.parametrize("flags", ["--model none.py:build", "--model my_model.py:bild", "--data digits"])
def test_files_and_functions_are_looked_for_before_tensorflow_is_imported(flags, files, run_main, monkeypatch):
    monkeypatch.setattr("distsgd.common.cli.own.import_tensorflow", lambda: pytest.fail("it was imported"))
    assert run_main("downpour", *flags.split())[0] == 2
