"""Full and slow disks, folders that two runs want, files that were cut: it is said in one line, and nothing is lost."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from distsgd.algorithms import AsyncSGD
from distsgd.common import files
from distsgd.common.errors import CannotWrite, Interrupted, UserError
from distsgd.common.launch.server_process import Scratch
from distsgd.common.record import checkpoint
from distsgd.common.record.callbacks import Callback
from distsgd.common.record.metrics import Metrics
from distsgd.common.record.run_directory import RunRecord
from distsgd.common.record_format import read_json
from distsgd.common.tasks.checkpointing import Saver
from distsgd.common.tasks.options import Recovery
from doubles import SlowDisk
from runs import DIGITS, record

THREADS = {"hidden": (8,), "batch_size": 8, "workers": 1, "backend": "threads"}
CONFIG = {
    "algorithm": "x", "hyperparameters": {"rate": float("inf")}, "backend": "threads", "workers": 1, "ps": 1,
    "dataset": "d", "model": "m", "batch_size": 1, "ema_decay": None, "seed": 0, "steps_per_worker": 5,
    "earlier_step_targets": [], "record": "full",
}  # fmt: skip


def content(folder):
    """All files of a folder, and what is in them."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def no_room(*names):
    """In place of `flush`: the disk is full for the files of these names, or for all."""

    def flush(file):
        if not names or Path(file.name).name in [f".{name}.part" for name in names]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return flush


def strictly(text):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


# Whose folder it is.


def test_a_run_directory_belongs_to_one_run_and_another_writes_nothing(tmp_path):
    first = files.Lock(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    before = content(tmp_path)
    with pytest.raises(UserError, match=r"another run is under way in .*: wait for its end, or choose another"):
        record(AsyncSGD(), tmp_path, steps=2, **THREADS)
    assert content(tmp_path) == before
    first.release()
    files.Lock(tmp_path).release()


def test_the_folder_of_a_run_that_was_killed_is_free(tmp_path):
    code = "import sys; from pathlib import Path; from distsgd.common.files import Lock; "
    code += "lock = Lock(Path(sys.argv[1])); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=-1, stdout=-1) as holder:
        assert holder.stdout.readline() == b"1\n"
        with pytest.raises(UserError, match="another run is under way"):
            files.Lock(tmp_path)
        holder.kill()
        holder.wait()
        files.Lock(tmp_path).release()


def test_a_run_that_was_refused_or_has_ended_leaves_the_folder_free(tmp_path):
    record(AsyncSGD(), tmp_path, steps=2, **THREADS)
    files.Lock(tmp_path).release()
    with pytest.raises(UserError, match="already holds a run"):
        record(AsyncSGD(), tmp_path, steps=2, **THREADS)
    files.Lock(tmp_path).release()


def test_only_temporary_folders_of_killed_processes_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import tempfile, sys; tempfile.tempdir = sys.argv[1]; "
    code += "from distsgd.common.launch.server_process import Scratch; scratch = Scratch()\n"
    code += "print(scratch.name, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=-1, stdout=-1, text=True) as other:
        theirs = Path(other.stdout.readline().strip())
        ours = Scratch()
        (tmp_path / "distsgd-of-another").mkdir()
        long_ago = (0, 0)
        for folder in (theirs, Path(ours.name)):
            os.utime(folder / "owner", long_ago)
        Scratch().cleanup()
        assert theirs.exists()
        other.kill()
    Scratch().cleanup()
    assert sorted(tmp_path.iterdir()) == sorted([Path(ours.name), tmp_path / "distsgd-of-another"])
    ours.cleanup()


# What was there before.


@pytest.mark.gate
def test_a_run_with_only_damaged_checkpoints_is_refused_with_record_kept(tmp_path):
    keep = Recovery(checkpoint_steps=5)
    record(AsyncSGD(), tmp_path, steps=20, recovery=keep, **THREADS)
    for path in checkpoint.found(tmp_path):
        (path / "arrays.npz").write_bytes(b"x")
    before = content(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match=r"all checkpoints in .* are damaged .*To start over, choose another run"):
            record(AsyncSGD(), tmp_path, steps=40, recovery=keep, **THREADS)
    assert content(tmp_path) == before


@pytest.mark.rotating
def test_a_run_that_resumes_from_an_older_checkpoint_warns(tmp_path):
    keep = Recovery(checkpoint_steps=1000)  # of the end alone: how many are made before depends on the machine
    record(AsyncSGD(), tmp_path, steps=20, recovery=keep, **THREADS)
    save = checkpoint.newest(tmp_path)
    older = checkpoint.Checkpoint({**save.arrays, "version": np.int64(10)}, save.about)
    checkpoint.publish(checkpoint.write(tmp_path, older), keep=9)
    (checkpoint.folder(tmp_path) / "000000000020" / "arrays.npz").write_bytes(b"x")
    run = record(AsyncSGD(), tmp_path, steps=40, recovery=keep, **THREADS)
    recovery = run.result["recovery"]
    assert recovery["resumed_from"] == 10
    (warning,) = recovery["warnings"]
    assert "000000000020 cannot be read: its checksum is wrong; it was passed over" in warning


@pytest.mark.parametrize("name", ["config.json", "result.json"])
@pytest.mark.parametrize("damage", ["", "[]", '{"outcome"'])
def test_files_that_were_cut_end_in_one_line_or_do_no_harm(name, damage, tmp_path):
    checkpoint.folder(tmp_path).joinpath("000000000001").mkdir(parents=True)
    files.write_json(tmp_path / "config.json", CONFIG)
    (tmp_path / name).write_text(damage)
    if name == "config.json":
        with pytest.raises(UserError, match=r"config.json is damaged: .*, or choose another run directory"):
            RunRecord(tmp_path, CONFIG)
    else:
        RunRecord(tmp_path, CONFIG).finish(None, picture=False)
        assert strictly((tmp_path / name).read_text())["outcome"] == "completed"


# JSON.


def test_numbers_that_are_not_finite_are_null_in_every_file(tmp_path):
    log = RunRecord(tmp_path, CONFIG)
    log.on_event({"event": "worker", "worker": 0, "steps": 1, "loss": float("nan")})
    log.on_event({"event": "center", "version": 1, "examples": 1, "test_loss": float("inf"), "staleness_mean": 0.0})
    log.on_event({"event": "center", "version": 2, "examples": 2, "test_loss": 1.0, "staleness_mean": 0.0})
    result = log.finish(None)
    assert strictly((tmp_path / "config.json").read_text())["hyperparameters"] == {"rate": None}
    rows = [strictly(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("loss") for row in rows] == [None, None, None]
    assert [row.get("test_loss") for row in rows] == [None, None, 1.0]
    assert strictly((tmp_path / "result.json").read_text()) == strictly(json.dumps(result))
    checkpoint.folder(tmp_path).joinpath("000000000001").mkdir(parents=True)
    again = RunRecord(tmp_path, {**CONFIG, "steps_per_worker": 6})  # the rows come back as nulls, and are drawn
    assert again.finish(None)["outcome"] == "completed"


def test_a_result_without_an_evaluation_has_no_metrics_of_an_earlier_center(tmp_path):
    """After a signal an evaluation is given up: its run must not seem to be where it began."""
    log = RunRecord(tmp_path, CONFIG)
    log.on_event({"event": "center", "version": 0, "examples": 0, "test_loss": 2.4, "test_accuracy": 0.1})
    for event in ("center", "result"):
        log.on_event({"event": event, "version": 36, "updates": 36, "examples": 36})
    result = log.finish(None, picture=False)
    assert [result[name] for name in ("updates", "test_loss", "test_accuracy", "advice")] == [36, None, None, None]


def test_a_result_has_the_figures_of_the_center_that_was_kept_at_a_signal(tmp_path):
    """A second signal ends the run without a later result: its center is not the one that was evaluated before."""
    log = RunRecord(tmp_path, CONFIG)
    log.on_event({"event": "center", "version": 19, "examples": 19, "test_loss": 2.4})
    log.on_event({"event": "kept", "version": 183, "examples": 183})
    result = log.finish(Interrupted(2), picture=False)
    assert [result[name] for name in ("outcome", "updates", "test_loss")] == ["interrupted", 183, None]


def test_a_signal_that_no_task_has_noticed_is_in_the_result(tmp_path):
    result = RunRecord(tmp_path, CONFIG).finish(Interrupted(15), picture=False)
    assert [result[name] for name in ("outcome", "exit_code", "stopped_by")] == ["interrupted", 143, "SIGTERM"]


# A full disk.


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1})
    monkeypatch.setattr(files, "flush", no_room("a.json"))
    with pytest.raises(CannotWrite, match=r"cannot write .*/a.json: No space left on device"):
        files.write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_metrics_on_a_full_disk_warn_once_and_end_no_run(tmp_path):
    log = RunRecord(tmp_path, CONFIG)
    log.metrics.close()
    log.metrics = Metrics(tmp_path / "metrics.jsonl")
    log.metrics.close()
    log.metrics.file = Path("/dev/full").open("a", buffering=1)  # noqa: SIM115
    for version in range(3):
        log.on_event({"event": "center", "version": version, "examples": 1})
    result = log.finish(None, picture=False)
    (warning,) = result["recovery"]["warnings"]
    assert "metrics.jsonl: No space left on device, " in warning
    assert warning.endswith(f"free in {tmp_path}: the metrics from here on are not on the disk")
    assert log.history()["version"] == [0, 1, 2]


def test_a_result_that_cannot_be_written_is_an_error_and_the_old_one_stays(tmp_path):
    log = RunRecord(tmp_path, CONFIG)
    (tmp_path / "result.json").write_text("old")
    (tmp_path / ".result.json.part").mkdir()  # as good as full
    with pytest.raises(CannotWrite, match=r"cannot write .*result.json: Is a directory"):
        log.finish(None, picture=False)
    assert (tmp_path / "result.json").read_text() == "old"
    assert log.finish(CannotWrite("first"), picture=False)["message"] == "first"


def test_a_full_disk_names_the_results_it_lost_and_has_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "flush", no_room("center.npz", "trace.npz"))
    with pytest.raises(CannotWrite, match=r"^cannot write .*center.npz: No space .*; cannot write .*trace.npz: No sp"):
        record(AsyncSGD(), tmp_path, steps=20, **THREADS)
    result = strictly((tmp_path / "result.json").read_text())
    assert (result["outcome"], result["exit_code"], result["updates"]) == ("failed", 1, 20)
    assert (tmp_path / "model.keras").exists()
    assert not (tmp_path / "center.npz").exists()
    assert not list(tmp_path.glob(".*.part*"))


def test_a_checkpoint_on_a_full_disk_is_a_warning_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "flush", no_room())
    run = record(AsyncSGD(), tmp_path, steps=20, recovery=Recovery(checkpoint_steps=5), **THREADS)
    assert run.result["recovery"]["checkpoints"] == 0
    (warning,) = run.result["recovery"]["warnings"]
    assert warning.startswith("no checkpoint of ")
    assert "No space left on device" in warning
    assert list(checkpoint.folder(tmp_path).iterdir()) == []


def test_a_checkpoint_written_at_the_second_attempt_leaves_no_warning(tmp_path, monkeypatch):
    """The disk was full when its version was saved first, and had room when it was saved as the last."""
    failures = [no_room()]
    monkeypatch.setattr(checkpoint, "flush", lambda file: failures.pop()(file) if failures else None)
    log = RunRecord(tmp_path, CONFIG)
    rule, nothing = Recovery(checkpoint_steps=1000), SimpleNamespace(bytes=0)
    saver = Saver({}, tmp_path, rule, 60.0, lambda **event: log.on_event({"task": "worker-0", **event}), nothing)
    arrays = {"version": np.int64(7), "rounds_applied": np.zeros(1, np.int64), "joins": np.int64(0)}
    saver.write(checkpoint.Checkpoint(arrays, {}))
    assert [warning[:28] for warning in log.faults.warnings] == ["no checkpoint of version 7: "]
    saver.write(checkpoint.Checkpoint(arrays, {}))
    assert log.finish(None, picture=False)["recovery"]["warnings"] == []
    assert checkpoint.newest(tmp_path).version == 7


class Killed(Callback):
    """Leaves in the folder what a chief leaves that is killed while it saves."""

    def __init__(self, run_dir):
        self.part = checkpoint.folder(run_dir) / ".000000000099.part"

    def on_test_end(self, logs):
        self.part.mkdir(parents=True, exist_ok=True)
        (self.part / "arrays.npz").touch()


def test_a_run_that_completes_leaves_no_part_of_a_checkpoint(tmp_path):
    killed = Killed(tmp_path)
    record(AsyncSGD(), tmp_path, steps=20, callbacks=[killed], **THREADS)
    assert list(killed.part.parent.iterdir()) == []


# A slow disk.


@pytest.mark.gate
def test_the_end_of_a_run_waits_for_its_last_checkpoint(tmp_path, monkeypatch):
    """However long it takes: here until the evaluator has long had its result."""
    over, write = threading.Event(), checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *state: over.wait(60) and write(*state))

    class Over(Callback):
        def on_train_end(self, logs):
            over.set()

    asked = Recovery(checkpoint_seconds=1000)
    run = record(AsyncSGD(), tmp_path, steps=20, recovery=asked, callbacks=[Over()], **THREADS)
    assert checkpoint.newest(tmp_path).version == run.result["updates"] == 20
    assert run.result["recovery"]["checkpoints"] == 1
    assert run.result["recovery"]["warnings"] == []


@pytest.mark.rotating
def test_a_run_ends_with_its_last_checkpoint_even_on_a_slow_disk(warm, tmp_path):
    run = record(SlowDisk(), tmp_path, steps=30, workers=2, hidden=(8,), batch_size=8,
                 recovery=Recovery(checkpoint_seconds=1000))  # fmt: skip
    assert checkpoint.newest(tmp_path).version == run.result["updates"] == 60
    assert run.result["recovery"]["warnings"] == []


FULL = """
set -e
folder=$1
mount -t tmpfs -o size=400k tmpfs "$folder"
shift
set +e
"$@"
echo "first $?"
cat "$folder/run/result.json"
mount -o remount,size=50m "$folder"
"$@"
echo "second $?"
cat "$folder/run/result.json"
"""


@pytest.mark.timeout(300)
@pytest.mark.rotating
def test_a_run_that_fills_its_disk_ends_in_one_line_and_resumes_with_room(tmp_path):
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    probe = subprocess.run([*alone, "mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"a disk of its own is not to be had here: {probe.stderr.strip()}")
    command = [sys.executable, "-m", "distsgd.common.cli.main", "async_sgd", "--steps=3000", "--workers=1"]
    command += ["--checkpoint-steps=300", "--isolation=off", f"--run-dir={tmp_path}/run"]
    ended = subprocess.run([*alone, "bash", "-c", FULL, "-", tmp_path, *command], capture_output=True, text=True)
    first, second = ended.stdout.split("first 1\n")[1].split("second 0\n")
    before, after = strictly(first.partition("\n}\n")[0] + "}"), strictly(second)
    (error,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert re.match(r"error: (evaluator-0: )?cannot write .*: No space left on device", error)
    assert "Traceback" not in ended.stderr
    assert (before["outcome"], before["exit_code"], after["outcome"]) == ("failed", 1, "completed")
    assert after["recovery"]["resumed_from"] > 0
    assert after["steps"] == after["updates"] == 3000


@pytest.mark.rotating
def test_a_run_leaves_nothing_in_the_temporary_folder(tmp_path, monkeypatch):
    """TensorFlow writes code that it generates there, and deletes it at an end that tasks do not have."""
    (place := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    record(AsyncSGD(), tmp_path / "run", steps=10, workers=1, hidden=(8,), batch_size=8, test=DIGITS.test)
    assert list(place.iterdir()) == []
