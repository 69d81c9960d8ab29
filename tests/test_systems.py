"""Environments that people have: file systems without locks, small disks, other systems."""

import errno
import io
import os
import pickle
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from distsgd.algorithms import AsyncSGD
from distsgd.benchmarks.outcome_files import locked
from distsgd.common import files, system
from distsgd.common.cli import streams, train
from distsgd.common.cli.flag_groups import Output
from distsgd.common.data import mapped
from distsgd.common.errors import CannotWrite
from distsgd.common.launch import launcher
from distsgd.common.launch.server_process import Scratch
from distsgd.common.record.display import Display
from runs import job_of

# File systems without locks.


@pytest.fixture(params=[errno.ENOSYS, errno.ENOLCK, 524], ids=["Lustre", "NFS", "autofs"])
def no_locks(request, monkeypatch):
    def flock(*_):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(system.fcntl, "flock", flock)


def test_files_that_cannot_be_locked_are_used_without_a_lock(no_locks, tmp_path):
    lock = files.Lock(tmp_path)
    lock.release()
    assert lock.handle is None
    with locked(tmp_path / "outcomes.json"):
        pass


def test_a_temporary_folder_without_locks_is_used_and_those_of_others_stay(no_locks, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = Scratch()
    os.utime(Path(theirs.name) / "owner", (0, 0))
    Scratch().cleanup()
    assert list(tmp_path.iterdir()) == [Path(theirs.name)]  # its owner may be alive
    theirs.cleanup()


def test_the_lock_of_a_folder_reserves_space_by_a_call_that_every_system_has(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    lock = files.Lock(tmp_path)
    assert (tmp_path / files.LOCK).stat().st_blocks * 512 >= files.RESERVE_BYTES
    lock.release()


# The temporary folder.


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_temporary_folder_is_named_with_what_needed_how_much(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(launcher.Pickler, "dump", no_room)
    job = job_of(AsyncSGD(), model="mlp:hidden=4", steps=4, run_dir=tmp_path)
    (folder := tmp_path / f"{files.SCRATCH}x").mkdir()
    need = re.escape("(data and model for the tasks, 0.4 MB): No space left on device, ")
    remedy = f"MB are free in {tmp_path}: set TMPDIR to a folder with room, as in TMPDIR=/scratch$"
    with pytest.raises(CannotWrite, match=rf"^cannot write {folder}/job.pkl {need}[0-9.]+ {remedy}"):
        launcher.write(job, folder)


def test_a_full_disk_is_named_with_its_free_space_and_a_file_that_is_not_known_with_two(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/elsewhere/run/center.npz")
    assert re.fullmatch(
        r"cannot write /elsewhere/run/center.npz: No space left on device, [0-9.]+ MB are free in /",
        str(files.in_one_line(full)),
    )
    monkeypatch.chdir(tmp_path)
    found = str(files.in_one_line(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    assert found.startswith("cannot write a file: No space left on device, ")
    assert found.endswith(f"free in {tmp_path}")


def test_a_temporary_folder_that_cannot_be_had_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    with pytest.raises(CannotWrite, match=r"^No usable temporary directory .*: set TMPDIR to a folder that can be"):
        Scratch()


# Memory-mapped arrays.


def travelled(array):
    """An array as another process gets it, and the bytes that the way there took."""
    file = io.BytesIO()
    mapped.Pickler(file, protocol=5).dump((array,))
    (found,) = pickle.loads(file.getvalue())
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    return found, len(file.getvalue())


PARTS = {
    "whole": lambda a: a,
    "slice": lambda a: a[3:900],
    "backwards": lambda a: a[::-2, 1:],
    "transposed": lambda a: a.T,
    "another view": lambda a: np.asarray(a).reshape(-1)[7:].view("i4"),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_arrays_in_files_travel_by_name(part, mode, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4000.0).reshape(1000, 4))
    array = PARTS[part](np.load(tmp_path / "x.npy", mmap_mode=mode))
    found, size = travelled(array)
    assert size < 1000
    assert mapped.size_of(array) == 0
    assert isinstance(found.base, np.memmap)


def test_an_array_that_its_file_does_not_hold_travels_as_numbers(tmp_path):
    file, content = tmp_path / "x.npy", np.arange(4000.0)
    np.save(file, content)
    array, private = (np.load(file, mmap_mode=mode) for mode in ("r", "c"))
    assert travelled(private)[1] > private.nbytes == mapped.size_of(private)
    np.save(tmp_path / "other.npy", content + 1)
    (tmp_path / "other.npy").replace(file)
    assert travelled(array)[1] > array.nbytes == mapped.size_of(array)
    file.write_bytes(b"")
    assert travelled(array)[1] > array.nbytes
    file.unlink()
    assert travelled(array)[1] > array.nbytes


def test_an_array_is_read_where_a_file_system_cannot_map_it(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(4.0))

    def cannot_map(*_, **__):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr("mmap.mmap", cannot_map)
    assert mapped.loaded(tmp_path / "x.npy").tolist() == [0, 1, 2, 3]


# Standard output and standard error.


def shell(command, cwd):
    """Run a command of the shell, in which `$distsgd` is the program; return its exit code and what it says."""
    program = f"{shlex.quote(sys.executable)} -m distsgd"
    done = subprocess.run(
        ["bash", "-c", command.replace("$distsgd", program)], cwd=cwd, capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout + done.stderr


def test_an_output_that_cannot_be_written_is_one_line(tmp_path):
    assert shell("$distsgd --version >/dev/full", tmp_path) == (
        1, "error: cannot write standard output: No space left on device\n",
    )  # fmt: skip


def test_closed_streams_are_opened_so_that_no_file_gets_their_numbers(tmp_path):
    code = "import os, sys; from distsgd.common.cli.streams import prepare; prepare(); print('out'); "
    code += "file = open('own', 'w'); os.system('echo child; echo child >&2'); sys.stderr.write('err')"
    code += "; sys.exit(file.fileno())"
    for closed in (">&-", "2>&-", ">&- 2>&- <&-"):
        descriptor, said = shell(f'{shlex.quote(sys.executable)} -c "{code}" {closed}', tmp_path)
        assert descriptor > 2
        assert "Traceback" not in said
        assert (tmp_path / "own").read_text() == ""


def test_the_exit_code_of_a_run_is_its_own_where_its_result_cannot_be_printed(monkeypatch, capsys, tmp_path):
    descriptor = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(sys, "stdout", streams._opened(descriptor, None))
    record = SimpleNamespace(task=None, rows=[{}], run_dir=tmp_path)
    result = {"exit_code": 3, "outcome": "diverged", "recovery": {"warnings": []}}
    assert train.show(record, result, None, Output(quiet=True, json=True)) == 3
    said = f"error: cannot write standard output: No space left on device. The result is in {tmp_path}\n"
    assert capsys.readouterr().err == said
    os.close(descriptor)


def test_a_stream_that_does_not_block_is_waited_for_and_letters_that_it_lacks_are_replaced():
    read, write = os.pipe()
    os.set_blocking(write, False)
    text = "η" * (1 << 17)  # more than the pipe holds
    pipe, found = os.fdopen(read, "rb"), []
    reader = threading.Thread(target=lambda: found.append(pipe.read()))
    stream = streams._opened(write, SimpleNamespace(encoding="ascii"))
    reader.start()
    stream.write(text)
    stream.flush()
    os.close(write)
    reader.join()
    pipe.close()
    assert found == [b"?" * len(text)]


def test_a_display_on_a_full_disk_ends_no_run():
    disk = io.FileIO("/dev/full", "w")
    stream = io.TextIOWrapper(disk, write_through=True)  # as a script of the user has it
    config = {"algorithm": "x", "workers": 1, "ps": 0, "dataset": "d", "model": "m"}
    with Display(config, Console(file=stream)) as display:
        display.say("a warning")
    disk.close()


def test_the_standard_error_of_native_code_is_redirected_where_the_stream_is_closed(tmp_path):
    code = "import os; from pathlib import Path; from distsgd.common.files import standard_error_to\n"
    code += "with standard_error_to(Path('log')): os.write(2, b'native')"
    assert shell(f'{shlex.quote(sys.executable)} -c "{code}" 2>&-', tmp_path) == (0, "")
    assert (tmp_path / "log").read_text() == "native"


# macOS.

ORPHAN = """
import os, threading, time
from distsgd.common.launch import task_process
task_process.BEAT_SECONDS = 0.01
parent = os.getpid()
if os.fork() == 0:
    threading.Thread(target=task_process.end_with, args=[parent]).start()
    time.sleep(600)
print("started", flush=True)
os._exit(0)
"""


def test_a_task_ends_with_its_parent_on_a_system_that_sends_no_signal_then(tmp_path):
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout == "started\n"  # and the orphan has ended: the pipe of its standard output is closed
