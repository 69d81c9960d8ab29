"""How runs end: tasks that raise, die, stop or wait; signals; the private network. Nothing is ever left."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from going import Lasting, log_path, task_log

from conftest import children
from distsgd.algorithms import AllReduce, AsyncSGD, SyncSGD
from distsgd.common import keep_warm, train
from distsgd.common.data.models import ModelRecipe
from distsgd.common.errors import Diverged, TaskFailed, TaskLost, UserError, WaitTimeout
from distsgd.common.kernels import choose
from distsgd.common.launch.client import ForkServer
from distsgd.common.launch.launcher import write
from distsgd.common.record import checkpoint
from distsgd.common.record.callbacks import Callback
from doubles import RaisesInWorker
from runs import DIGITS, job_of, patience, record, updates_logged, wait_until

SLEEPING = Path(__file__).with_name("sleeping.py")
SECONDS_TO_END = 30  # a second or two, unless the machine is busy


def command_line_run(folder: Path, output: int, *flags: str) -> tuple[subprocess.Popen, set[int]]:
    """A run of 48 s started from the command line, once it trains, and the pids of its tasks."""
    arguments = ["--import", str(SLEEPING), *(flags or ["sleeping", "--steps", "480"]), "--run-dir", "run"]
    command = [sys.executable, "-m", "distsgd.common.cli.main", *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, text=True)
    metrics = folder / "run" / "metrics.jsonl"
    wait_until(lambda: process.poll() is not None or (metrics.exists() and "center" in metrics.read_text()))
    assert process.poll() is None
    return process, {pid for pid in children() if str(folder) in log_path(pid)}


@pytest.fixture
def background(warm, tmp_path):
    return lambda scheme, **options: Lasting(scheme, tmp_path / "run", **options)


class Killed:
    """A run of two workers, one task of which is killed: what is seen of it before, and how it ends."""

    def __init__(self, victim: str, run_dir: Path):
        going = Lasting(AsyncSGD(), run_dir)
        ps = Path(f"/proc/{going.pid('ps-0')}")
        self.network = os.readlink(ps / "ns" / "net")
        self.sockets = (ps / "net" / "tcp").read_text() + (ps / "net" / "tcp6").read_text()
        self.result_before = going.result
        going.send(victim, signal.SIGKILL)
        killed = time.monotonic()
        self.error = going.end()
        self.seconds, self.result = time.monotonic() - killed, going.result


@pytest.fixture(scope="module")
def killed(warm, tmp_path_factory):
    """Such runs by the victim's name, each made once."""
    return cache(lambda victim: Killed(victim, tmp_path_factory.mktemp(victim) / "run"))


@pytest.mark.parametrize(
    "victim",
    [
        "worker-1",
        "ps-0",
        *(pytest.param(name, marks=pytest.mark.rotating) for name in ("worker-0", "evaluator-0")),
    ],
)
@pytest.mark.gate
def test_a_killed_task_ends_the_run_with_its_name(victim, killed):
    going = killed(victim)
    error = going.error
    assert going.seconds < patience(SECONDS_TO_END)
    assert isinstance(error, TaskLost)
    assert f"{victim} was killed by SIGKILL" in str(error)
    assert f"{victim}.log" in str(error)
    assert (going.result["outcome"], going.result["exit_code"]) == ("lost", 4)
    assert not [pid for pid in children() if task_log(pid).endswith(("-0.log", "-1.log"))]


def test_the_ports_of_a_run_are_invisible_from_outside(private_network, killed):
    if not private_network:
        pytest.skip("this machine allows no private network")
    going = killed("worker-1")
    assert going.network != os.readlink("/proc/self/ns/net")
    assert going.result_before == {}
    ports = {line.split()[1].rsplit(":", 1)[1] for line in going.sockets.splitlines() if " 0A " in line}
    assert len(ports) >= 3  # a ps and two workers listen


@pytest.mark.rotating
def test_a_stopped_task_ends_the_run_with_its_name(background):
    going = background(AsyncSGD(), wait_seconds=patience(5))
    going.send("evaluator-0", signal.SIGSTOP)
    error = going.end()
    assert isinstance(error, WaitTimeout), error
    assert re.search("[Nn]o word from evaluator-0", str(error))
    assert (going.result["outcome"], going.result["exit_code"]) == ("timeout", 5)


@pytest.mark.rotating
def test_a_fork_server_that_is_stopped_in_a_run_is_named(tmp_path):
    others = children()
    with keep_warm():
        going = Lasting(AsyncSGD(), tmp_path / "run", wait_seconds=patience(5))
        (server,) = [pid for pid in children() - others if task_log(pid) == "forkserver.log"]
        os.kill(server, signal.SIGSTOP)
        error = going.end()
        assert isinstance(error, WaitTimeout), error
        assert "no word from the fork server" in str(error)
        wait_until(lambda: not [pid for pid in children() if task_log(pid).endswith(("-0.log", "-1.log"))])


@pytest.mark.rotating
def test_a_launcher_suspended_longer_than_any_wait_continues_its_run(tmp_path):
    """It ends by SIGTERM, as others by Ctrl-C."""
    seconds = patience(4)
    flags = "sleeping_barrier", "--rest", "250", "--wait-seconds", f"{seconds:.0f}", "--steps", "480"  # of 120 s
    process, _ = command_line_run(tmp_path, subprocess.PIPE, *flags)
    # In its first round a worker compiles, perhaps for longer than the others wait.
    wait_until(lambda: updates_logged(tmp_path / "run") > 0 or process.poll() is not None)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3.3 * seconds)
    process.send_signal(signal.SIGCONT)
    metrics = tmp_path / "run" / "metrics.jsonl"
    before = metrics.stat().st_size
    wait_until(lambda: metrics.stat().st_size > 3 * before or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 143, errors


@pytest.mark.rotating
def test_an_all_reduce_ends_when_a_worker_does_not_answer(background):
    going = background(AllReduce(), workers=3, wait_seconds=patience(10))  # enough for three workers to start
    going.send("worker-2", signal.SIGSTOP)
    error = going.end()
    assert isinstance(error, WaitTimeout)
    assert re.search("[Nn]o word from worker-2", str(error))


def test_a_worker_that_raises_is_named_with_the_end_of_its_log(warm, tmp_path):
    here = os.getpid()

    def data(context):
        import tensorflow as tf

        if context.input_pipeline_id == 1 and os.getpid() != here:  # where its share is measured
            raise RuntimeError("no data for this one")
        return tf.data.Dataset.from_tensor_slices(DIGITS.train).batch(8)

    model = ModelRecipe.named("softmax", (64,), 10, 0).build()
    with pytest.raises(TaskFailed) as caught:
        train(model, data, AsyncSGD(), steps=5, batch_size=8, run_dir=tmp_path / "run", verbose=False)
    assert "worker-1 raised RuntimeError: no data for this one" in str(caught.value)
    assert "worker-1.log" in str(caught.value)
    assert "| RuntimeError" in str(caught.value)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["exit_code"]) == ("failed", 1)


@pytest.mark.rotating
def test_a_loss_that_becomes_nan_ends_the_run_as_diverged(warm, tmp_path):
    with pytest.raises(Diverged, match=r"loss of worker \d became (nan|inf).* at version \d+"):
        record(AsyncSGD(learning_rate=1e38), tmp_path / "run", workers=2, steps=300)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["exit_code"]) == ("diverged", 3)


@pytest.mark.gate
def test_a_signal_to_all_processes_ends_the_run_with_its_center_and_a_checkpoint(tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process, mine = command_line_run(tmp_path, subprocess.PIPE)
    assert len(mine) >= 4
    wait_until(lambda: updates_logged(tmp_path / "run") > 0)
    for pid in (*mine, process.pid):  # as `scancel` and the end of a container send it
        os.kill(pid, signal.SIGTERM)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert "sleeping: interrupted" in output
    assert errors.endswith("to continue: the same command with --resume run\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in mine)
    assert [*temporary.iterdir()] == []
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["stopped_by"]) == ("interrupted", "SIGTERM")
    assert result["message"] == "interrupted by SIGTERM"
    assert 0 < result["updates"] == checkpoint.newest(tmp_path / "run").version
    assert (tmp_path / "run" / "center.npz").exists()
    assert (tmp_path / "run" / "model.keras").exists()


def test_nothing_survives_a_launcher_that_is_killed(tmp_path, monkeypatch):
    """The fork server deletes the temporary files, as after a signal to a script between two runs of `keep_warm`."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process, mine = command_line_run(tmp_path, subprocess.DEVNULL)
    process.kill()
    process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in mine), patience(SECONDS_TO_END))
    wait_until(lambda: not [*temporary.iterdir()], patience(SECONDS_TO_END))


def test_isolation_that_is_demanded_and_refused_starts_nothing(monkeypatch):
    """The answer of a kernel without user namespaces, which this machine's may not be, is put in its mouth."""
    answer = {"event": "server", "network": "refused: Operation not permitted", "kernels": "eigen"}
    monkeypatch.setattr("distsgd.common.launch.client.ForkServer.wait_for", lambda *_: answer)
    with pytest.raises(UserError, match=r"allows no private network .*Operation not permitted"):
        ForkServer("require", choose())


class KillsAtTheResult(Callback):
    def on_train_end(self, logs):
        for pid in children():
            if task_log(pid) in ("ps-0.log", "worker-0.log"):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.rotating
def test_a_task_that_dies_after_the_result_does_no_harm(warm, tmp_path):
    """Found by the soak."""
    run = record(AsyncSGD(), tmp_path / "run", workers=2, callbacks=[KillsAtTheResult()])
    assert run.result["outcome"] == "completed"


@pytest.mark.parametrize(("scheme", "module"), [(SyncSGD(), "distsgd.algorithms.sync_sgd"), (RaisesInWorker(), None)])
def test_the_fork_server_imports_only_algorithms_of_this_package(tmp_path, scheme, module):
    job = job_of(scheme, backend="processes", steps=1, run_dir=tmp_path)
    assert pickle.loads(write(job, tmp_path).read_bytes())[2] == module
