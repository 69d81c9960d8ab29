"""The launcher's client of the fork server, which starts the server, sends requests, keeps it warm and ends it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cards import left_visible
from ..cluster.cluster import Isolation
from ..cluster.failure_detector import POLL_SECONDS, FailureDetector
from ..errors import TaskLost, UserError, WaitTimeout
from ..files import SCRATCH, open_in_place, temporary_folder, writing
from ..kernels import Choice
from ..signals import blocked, held
from ..system import lock
from ..waiting import awake
from .channel import FORK_SERVER, Channel, pair
from .isolation import PRELOAD, command

START_SECONDS = 60.0  # limit of silence while a fork server starts

SEND_SECONDS = 60.0  # for a fork server to read a request

END_SECONDS = 5.0  # for the remaining processes of a run to end

LOG_LINES = 8

OWNER = "owner"

FRESH_SECONDS = 60.0


class Scratch:
    """A temporary folder that is deleted with this process; the next process deletes those of killed processes.

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


class ForkServer:
    """A running fork server and the channel to it.

    Args:
        isolation: private network for its processes: "auto", "require" or "off".
        kernels: the kernels of TensorFlow in its processes.
        python: the command that starts an interpreter.
        logs: the folder for its log; without one, the log is deleted with the server.
    """

    def __init__(
        self, isolation: Isolation, kernels: Choice, python: Sequence[str] = (sys.executable,), logs: Path | None = None
    ):
        ours, theirs = pair()
        ours.settimeout(SEND_SECONDS)
        self.channel = Channel(ours)
        self.number = 0  # of the present run
        self.folder = Scratch()
        self.log_stays = logs is not None
        self.log = (logs or Path(self.folder.name)) / f"{FORK_SERVER}.log"
        self.kernels_environment = kernels.environment
        environment = self.environment()
        environment.pop(PRELOAD, None)  # see `isolation`
        with writing(self.log):
            log = open_in_place(self.log, "wb")
        try:
            with held(), theirs, log, blocked():
                self.process = subprocess.Popen(
                    command(python, isolation, "distsgd.common.launch.forkserver", str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches the launcher only
                )
            ready = self.wait_for("server")
            self.network, self.kernels = ready["network"], ready["kernels"]
            self.forks = self.kernels is not None  # otherwise each task imports TensorFlow itself
            if isolation == "require" and self.network != "private":
                raise UserError(
                    f"this machine allows no private network ({self.network}): use --isolation off, and know "
                    f"that the ports of the run are open to every host that can reach this machine"
                )
        except BaseException:
            if hasattr(self, "process"):
                self.close(0)
            raise

    def environment(self) -> dict[str, str]:
        """Return the environment variables for tasks: those that this program has now, with a few of their own."""
        known = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        return {
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "MALLOC_ARENA_MAX": "2",  # a quarter less memory for each worker
            **known,
            **left_visible(),
            **self.kernels_environment,
            "PYTHONPATH": os.pathsep.join(import_path()),
            "OPENBLAS_NUM_THREADS": "1",  # a process with several threads cannot fork safely
            "OMP_NUM_THREADS": "1",
            "TF_GRPC_REUSE_PORT": "true",  # the fork server holds the ports until the run ends
            "KERAS_BACKEND": "tensorflow",
            "TMPDIR": self.folder.name,  # tasks end with `os._exit`, so TensorFlow does not delete its temporary files
        }

    def start(self, **request: Any) -> None:
        """Start the tasks of a run; `receive` then ignores late events of earlier runs.

        The import path, the folder and the environment may have changed since a warm server was started.
        """
        self.number += 1
        program = {"path": import_path(), "folder": current_folder(), "environment": self.environment()}
        self.send(op="start", run=self.number, **program, **request)

    def send(self, **request: Any) -> None:
        """Send one request.

        Raises:
            TaskLost: the fork server has ended, or does not read.
        """
        try:
            self.channel.send(**request)
        except OSError as error:
            raise TaskLost(f"the fork server takes no requests ({error}). {self.last_words()}") from None

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the next event of the present run, or None after `seconds` without one.

        Raises:
            TaskLost: the fork server has ended.
        """
        deadline = awake.now() + seconds
        while select.select([self.channel], [], [], max(0.0, deadline - awake.now()))[0]:
            try:
                event = self.channel.receive()
            except (EOFError, ConnectionError):
                raise TaskLost(f"the fork server ended. {self.last_words()}") from None
            if event is not None and event.get("run", self.number) == self.number:
                return event
        return None

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Block until the next event of that kind, and return it.

        Raises:
            TaskLost: the fork server has ended.
            WaitTimeout: the fork server shows no sign of life.
        """
        detector = FailureDetector(START_SECONDS)
        detector.expect(FORK_SERVER, self.process.pid)
        while not detector.silent():
            event = self.receive(POLL_SECONDS / 2)
            if event and event["event"] == kind:
                return event
            detector.poll()
        raise WaitTimeout(
            f"the fork server, which imports TensorFlow, has shown no sign of life for {START_SECONDS:g} s: is it "
            f"stopped? {self.last_words()}"
        )

    def last_words(self) -> str:
        """Return the last lines of the server's log, with its path if the log is kept."""
        return last_lines(self.log, named=self.log_stays)

    def kill(self) -> None:
        """Kill the server and all its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self, seconds: float = END_SECONDS) -> None:
        """End the server and all its children, by SIGKILL if that takes longer than `seconds`."""
        self.channel.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self.folder.cleanup()


_warm: dict[tuple[str, str | None], ForkServer] | None = None  # by isolation and kernels


@contextmanager
def keep_warm() -> Iterator[None]:
    """Share one fork server between all runs inside this context, so that TensorFlow is imported only once.

    Runs with other kernels, or another private network, share another one.

    Example:
        >>> with keep_warm():
        ...     for rate in (0.05, 0.2):
        ...         result = train(model, (x, y), Downpour(learning_rate=rate), verbose=False)
    """
    global _warm
    before, _warm = _warm, {}
    warm = _warm
    try:
        yield
    finally:
        _warm = before
        for server in warm.values():
            server.close()


@contextmanager
def fork_server(isolation: Isolation, kernels: Choice, logs: Path) -> Iterator[ForkServer]:
    """Yield a warm fork server inside `keep_warm`, else one for this run alone, with its log in `logs`."""
    if _warm is None:
        server = ForkServer(isolation, kernels, logs=logs)
        try:
            yield server
        finally:
            server.close()
        return
    key = isolation, kernels.name
    if key in _warm and _warm[key].process.poll() is not None:
        _warm.pop(key).close()
    if key not in _warm:
        _warm[key] = ForkServer(isolation, kernels)
    yield _warm[key]


def last_lines(log: Path, named: bool = True) -> str:
    """Return the last lines of a log, after its path if `named`."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        lines = []
    return "\n".join([f"Log: {log}" if named else "Its log ends:", *(f"  | {line}" for line in lines)])
