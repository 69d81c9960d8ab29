"""Without TensorFlow and Keras, and on Windows: some commands work, all others say in one line what is missing."""

import subprocess
import sys

import pytest

from distsgd import AsyncSGD
from distsgd.common.errors import UserError
from distsgd.common.lazy import WITHOUT, require_tensorflow
from distsgd.common.packages import INSTALL
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
# Windows, as far as it can be emulated: what it lacks is taken away, but for what the module subprocess needs here.
WINDOWS = """
import os, signal, socket, subprocess, sys, urllib.request
import argcomplete, cloudpickle, numpy, rich.console, rich.live, rich.table, scipy, sklearn  # which ask for the system
sys.platform = "win32"
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
for module, names in {
    os: "O_CLOEXEC O_NOFOLLOW O_NONBLOCK fork geteuid getuid killpg memfd_create pipe2 posix_fallocate posix_spawn "
        "pread pwrite sched_getaffinity setpgid sysconf uname",
    signal: "SIGALRM SIGCHLD SIGHUP SIGUSR1 SIG_BLOCK pthread_sigmask sigwait",
    socket: "AF_UNIX SOCK_SEQPACKET SO_REUSEPORT socketpair",
}.items():
    for name in names.split():
        delattr(module, name)
"""
EACH = (
    WINDOWS
    + ABSENT
    + "from distsgd.common.cli.main import dispatch; print(*[dispatch(text.split()) for text in sys.argv[1:]])"
)
REFUSED = f"""{ABSENT}
from distsgd.common.cli.main import dispatch
from distsgd.common.errors import UserError
for text in sys.argv[1:]:
    try:
        dispatch(text.split())
    except UserError as error:
        print(error)
"""
MISSING = f"not installed in this environment: tensorflow, keras. To install: {INSTALL} tensorflow keras."


def python(code, *arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=200, cwd=cwd
    )


@pytest.mark.rotating
def test_the_commands_that_read_a_run_or_predict_one_work_without_tensorflow_and_on_windows(tmp_path):
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


@pytest.mark.gate
def test_commands_that_need_tensorflow_name_it_in_one_line_and_write_nothing(tmp_path):
    (tmp_path / "own.py").write_text("")
    commands = ["downpour", "simulate agn --steps 5", "evaluate .", "launch own.py", "benchmark"]
    done = python(REFUSED, *commands, cwd=tmp_path)
    said = done.stdout.splitlines()
    assert len(said) == len(commands), done.stdout + done.stderr
    assert all(line.startswith(MISSING) for line in said)
    assert [path.name for path in tmp_path.iterdir()] == ["own.py"]


def test_a_run_on_windows_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UserError, match=f"^runs need Linux or macOS: on Windows use WSL2, or .* work here: {WITHOUT}$"):
        require_tensorflow()


@pytest.mark.rotating
def test_the_command_line_ends_with_that_line(tmp_path):
    done = python(ABSENT + "from distsgd.__main__ import main; main()", "downpour", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {MISSING}")
    assert len(done.stderr.splitlines()) == 1


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
