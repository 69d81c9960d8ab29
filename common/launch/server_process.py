"""The process of a fork server.

A command starts it before it reads its options, so that both import their modules at the same time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..cards import left_visible
from ..errors import CannotWrite
from ..files import SCRATCH, open_in_place, temporary_folder, writing
from ..signals import blocked, held
from ..system import lock
from .channel import FORK_SERVER, Channel, pair
from .isolation import PRELOAD, command

SEND_SECONDS = 60.0  # for a fork server to read a request

END_SECONDS = 5.0  # for the remaining processes of a run to end

OWNER = "owner"

FRESH_SECONDS = 60.0

# Flags with which a command may start no tasks here, or not in the usual private network.
UNUSUAL = {
    "backend", "cluster", "config", "dry_run", "h", "help", "help_all", "isolation", "job_name", "print_commands",
    "ps_hosts", "worker_hosts",
}  # fmt: skip


class Scratch:
    """A temporary folder that is deleted with this process, or by the fork server that outlives it.

    Where both are killed, the next process deletes it.

    Attributes:
        name: path of the folder.
    """

    def __init__(self):
        place = temporary_folder()
        for left in place.glob(f"{SCRATCH}*"):
            with contextlib.suppress(OSError):  # another process owns it, or it is deleted already
                _sweep(left)
        with writing(place / f"{SCRATCH}*"):
            self.folder = tempfile.TemporaryDirectory(prefix=SCRATCH, dir=place)
            self.name = self.folder.name
            self.owned = os.open(Path(self.name) / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        lock(self.owned)

    def cleanup(self) -> None:
        """Delete the folder."""
        self.folder.cleanup()
        os.close(self.owned)


def _sweep(folder: Path) -> None:
    """Delete a folder of this user whose owner has ended; raises `OSError` if the owner is alive."""
    owner = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        status = os.fstat(owner)
        fresh = time.time() - status.st_mtime < FRESH_SECONDS  # its owner may not have locked it yet
        if status.st_uid == folder.lstat().st_uid == os.getuid() and not fresh and lock(owner):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(owner)


def import_path() -> list[str]:
    """Return the folders from which tasks import modules: those of this program."""
    return [folder or current_folder() for folder in sys.path]


def current_folder() -> str:
    """Return the current folder; an empty text if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def environment(scratch: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for tasks: those that this program has now, `more`, and a few of their own."""
    inherited = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return {
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "MALLOC_ARENA_MAX": "2",  # a quarter less memory for each worker
        **inherited,
        **left_visible(),
        **more,
        "PYTHONPATH": os.pathsep.join(import_path()),
        "OPENBLAS_NUM_THREADS": "1",  # a process with several threads cannot fork safely
        "OMP_NUM_THREADS": "1",
        "TF_GRPC_REUSE_PORT": "true",  # the fork server holds the ports until the run ends
        "KERAS_BACKEND": "tensorflow",
        "TMPDIR": scratch,  # tasks end with `os._exit`, so TensorFlow does not delete its temporary files
    }


class ServerProcess:
    """A process that imports what needs no settings, then waits for the request `prepare` to import TensorFlow.

    Args:
        isolation: private network for it: "auto", "require" or "off".
        python: the command that starts an interpreter.
        log: its log; without one, the log is deleted with the process.
    """

    def __init__(self, isolation: str, python: Sequence[str] = (sys.executable,), log: Path | None = None):
        parent_end, child_end = pair()
        parent_end.settimeout(SEND_SECONDS)
        self.isolation, self.python = isolation, python
        self.channel, self.folder = Channel(parent_end), Scratch()
        self.log = log or Path(self.folder.name) / f"{FORK_SERVER}.log"
        variables = environment(self.folder.name, {})
        variables.pop(PRELOAD, None)  # see `isolation`
        try:
            with writing(self.log):
                output = open_in_place(self.log, "wb")
            arguments = str(child_end.fileno()), self.folder.name
            with held(), child_end, output, blocked():
                self.process = subprocess.Popen(
                    command(python, isolation, "distsgd.common.launch.forkserver", *arguments),
                    pass_fds=[child_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=variables,
                    start_new_session=True,  # Ctrl-C reaches the launcher only
                )
        except BaseException:
            if hasattr(self, "process"):
                self.close(0)
            raise

    def keep_log(self, log: Path) -> None:
        """Continue the log in another file, which the request `prepare` names, and which stays."""
        with writing(log), open_in_place(log, "wb") as file:
            file.write(self.log.read_bytes())
        self.log = log

    def kill(self) -> None:
        """Kill the process and all its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self, seconds: float = END_SECONDS) -> None:
        """End the process and all its children, by SIGKILL if that takes longer than `seconds`."""
        self.channel.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self.folder.cleanup()


_ahead: ServerProcess | None = None  # of this command, until a run takes it


@contextmanager
def ahead(arguments: Sequence[str]) -> Iterator[None]:
    """Start the process of a fork server for the run inside this block, if its arguments are usual."""
    global _ahead
    flags = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in arguments if word.startswith("-")}
    try:
        if not (UNUSUAL & flags or "TF_CONFIG" in os.environ or sys.platform == "win32"):
            # The run reports an error. A signal waits until the process and its folder have an owner.
            with contextlib.suppress(CannotWrite, OSError), held():
                _ahead = ServerProcess("auto")
        yield
    finally:
        if _ahead is not None:
            _ahead.close(0)
            _ahead = None


def adopted(isolation: str, python: Sequence[str], log: Path | None) -> ServerProcess | None:
    """Return the process that was started ahead, which no other run gets then; None if there is none, or another kind.

    Raises:
        CannotWrite: its log cannot be written.
    """
    global _ahead
    found, _ahead = _ahead, None
    if found is None:
        return None
    try:
        if (found.isolation, found.python, found.process.poll()) == (isolation, python, None):
            if log is not None:
                found.keep_log(log)
            return found
    except BaseException:
        found.close(0)
        raise
    found.close(0)
    return None
