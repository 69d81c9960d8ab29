"""Without TensorFlow and Keras: commands that need neither work, all others name in one line what is missing."""

import subprocess
import sys

import pytest

from distsgd import AsyncSGD
from distsgd.common.lazy import WITHOUT
from runs import record

# Each finder of this process, except that it finds neither TensorFlow nor Keras.
ABSENT = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *more):
        return None if name.partition(".")[0] in ("tensorflow", "keras") else self.finder.find_spec(name, *more)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = map(Without, sys.meta_path)
"""
MAIN = ABSENT + "from distsgd.__main__ import main; main()"
EACH = (
    ABSENT + "from distsgd.common.cli.main import dispatch; print(*[dispatch(text.split()) for text in sys.argv[1:]])"
)
MISSING = "not installed in this environment: tensorflow, keras. To install: pip install tensorflow keras."


def python(code, *arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=200, cwd=cwd
    )


def test_the_commands_that_read_a_run_or_predict_one_work_without_tensorflow(tmp_path):
    run = tmp_path / "run"
    record(AsyncSGD(), run, workers=2, backend="threads", steps=20, hidden=(8,))
    shown = {
        "list": "ringleader",
        "explain ef21_sgdm": "Richtárik",
        "advise --workers 4": "Take sync_sgd",
        f"replay {run}": "the run did what the paper's equations say",
        f"timeline {run}": "Perfetto",
        "doctor": "tensorflow",
    }
    assert [command.split()[0] for command in shown] == WITHOUT.split(", ")
    done = python(EACH, *shown, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == " ".join("0" for _ in shown), done.stderr
    assert not [text for text in shown.values() if text not in done.stdout]


@pytest.mark.parametrize("command", ["downpour", "simulate agn --steps 5", "evaluate .", "launch own.py", "benchmark"])
def test_a_command_that_needs_tensorflow_names_it_in_one_line_and_writes_nothing(command, tmp_path):
    (tmp_path / "own.py").write_text("")
    done = python(MAIN, *command.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"error: {MISSING}")
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["own.py"]


def test_algorithms_and_predictions_can_be_imported_and_train_names_what_is_missing(tmp_path):
    code = f"""{ABSENT}
from distsgd import Callback, Cluster, Downpour, Platform, Recovery, Scheme, forecast, keep_warm, train
from distsgd.algorithms import SCHEMES
print(len([kind() for kind in SCHEMES.values()]) == len(SCHEMES))
print(forecast(Downpour(), Platform(step_ms=20.0), workers=4, parameters=10_000).compute)
try:
    train(None, None, Downpour())
except ValueError as error:
    print(error)
"""
    done = python(code, cwd=tmp_path)
    assert done.stdout.startswith(f"True\n1.0\n{MISSING}"), done.stderr
