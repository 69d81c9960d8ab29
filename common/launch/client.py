"""The fork server as the launcher sees it: start it, talk to it, keep it warm, end it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cluster.cluster import Isolation
from ..cluster.failure_detector import LOOK_SECONDS, LifeSigns
from ..errors import TaskLost, UserError, WaitTimeout
from ..files import open_in_place, writing
from .channel import FORK_SERVER, Channel
from .scratch import Scratch

START_SECONDS = 60.0  # without a sign of life from a fork server that starts

SEND_SECONDS = 60.0  # for a fork server to read a request

END_SECONDS = 5.0  # for what is left of a run to go away

LOG_LINES = 8


class ForkServer:
    """A running fork server and the channel to it.

    Args:
        isolation: whether its processes get a private network.
        python: the command that starts an interpreter.
        logs: the folder for its log; without one, the log goes away with the server.
    """

    def __init__(self, isolation: Isolation, python: Sequence[str] = (sys.executable,), logs: Path | None = None):
        self.isolation = isolation
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(SEND_SECONDS)
        self.channel = Channel(ours)
        self.number = 0  # of the present run
        self.folder = Scratch()
        self.log_stays = logs is not None
        self.log = (logs or Path(self.folder.name)) / f"{FORK_SERVER}.log"
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        environment |= {
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "OPENBLAS_NUM_THREADS": "1",  # no thread but one before the forks
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),  # a quarter less memory for each worker
            "TF_GRPC_REUSE_PORT": "true",  # the fork server holds the ports until the run ends
            "KERAS_BACKEND": "tensorflow",
            "TMPDIR": self.folder.name,  # tasks leave with `os._exit`: TensorFlow would not delete its files there
        }
        with writing(self.log):
            log = open_in_place(self.log, "wb")
        with theirs, log:
            self.process = subprocess.Popen(
                # -P: the modules that this process can import, and none that just lie in the current folder.
                [*python, "-P", "-m", "distsgd.common.launch.forkserver", str(theirs.fileno()), isolation],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is the launcher's business
            )
        try:
            self.network: str = self.wait_for("server")["network"]
            if isolation == "require" and self.network != "private":
                raise UserError(
                    f"this machine allows no private network ({self.network}): use --isolation off, and know "
                    f"that the ports of the run are open to everybody who can reach this machine"
                )
        except BaseException:
            self.close(0)
            raise

    def start(self, **request: Any) -> None:
        """Start the tasks of a run. What is still on its way from an earlier one is not received any more."""
        self.number += 1
        self.send(op="start", run=self.number, **request)

    def send(self, **request: Any) -> None:
        """One request.

        Raises:
            TaskLost: the fork server is gone, or does not read.
        """
        try:
            self.channel.send(**request)
        except OSError as error:
            raise TaskLost(f"the fork server takes no requests ({error}). {self.last_words()}") from None

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next event of the present run, or None if there is none for `seconds`.

        Raises:
            TaskLost: the fork server is gone.
        """
        deadline = time.monotonic() + seconds
        while select.select([self.channel], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                event = self.channel.receive()
            except (EOFError, ConnectionError):
                raise TaskLost(f"the fork server ended. {self.last_words()}") from None
            if event is not None and event.get("run", self.number) == self.number:
                return event
        return None

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next event of that kind.

        Raises:
            TaskLost: the fork server is gone.
            WaitTimeout: it shows no sign of life.
        """
        signs = LifeSigns(START_SECONDS)
        signs.expect(FORK_SERVER, self.process.pid)
        while not signs.silent():
            event = self.receive(LOOK_SECONDS / 2)
            if event and event["event"] == kind:
                return event
            signs.look()
        raise WaitTimeout(
            f"the fork server, which imports TensorFlow, has shown no sign of life for {START_SECONDS:g} s: is it "
            f"stopped? {self.last_words()}"
        )

    def last_words(self) -> str:
        """How its log ends, and where it is if it stays."""
        return last_lines(self.log, named=self.log_stays)

    def kill(self) -> None:
        """End it and all its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self, seconds: float = END_SECONDS) -> None:
        """End the server and all its children; by force if that takes longer."""
        self.channel.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self.folder.cleanup()


_warm: ForkServer | None = None


@contextmanager
def keep_warm(isolation: Isolation = "auto") -> Iterator[None]:
    """Runs inside this context share one fork server, so that TensorFlow is imported only once.

    Example:
        >>> with keep_warm():
        ...     for rate in (0.05, 0.2):
        ...         result = train(model, (x, y), Downpour(learning_rate=rate), verbose=False)
    """
    global _warm
    server = ForkServer(isolation)
    before, _warm = _warm, server
    try:
        yield
    finally:
        _warm = before
        server.close()


@contextmanager
def fork_server(isolation: Isolation, logs: Path) -> Iterator[ForkServer]:
    """The warm fork server if there is one of that isolation, else one for this run alone, with its log in `logs`."""
    if _warm is not None and _warm.isolation == isolation and _warm.process.poll() is None:
        yield _warm
        return
    server = ForkServer(isolation, logs=logs)
    try:
        yield server
    finally:
        server.close()


def last_lines(log: Path, named: bool = True) -> str:
    """The path of a log, if it is to be `named`, and its last lines."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        lines = []
    return "\n".join([f"Log: {log}" if named else "Its log ends:", *(f"  | {line}" for line in lines)])
