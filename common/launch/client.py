"""The launcher's client of the fork server, which starts the server, sends requests, keeps it warm and ends it."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cluster.cluster import Isolation
from ..cluster.failure_detector import POLL_SECONDS, FailureDetector
from ..errors import TaskLost, UserError, WaitTimeout
from ..kernels import Choice
from ..waiting import awake
from .channel import FORK_SERVER
from .server_process import ServerProcess, adopted, current_folder, environment, import_path

START_SECONDS = 60.0  # limit of silence while a fork server starts

LOG_LINES = 8


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
        self.number = 0  # of the present run
        self.log_stays = logs is not None
        self.kernels_environment = kernels.environment
        log = logs and logs / f"{FORK_SERVER}.log"
        begun = adopted(isolation, python, log) or ServerProcess(isolation, python, log)
        self.process, self.channel, self.folder, self.log = begun.process, begun.channel, begun.folder, begun.log
        self.close, self.kill = begun.close, begun.kill
        try:
            with contextlib.suppress(OSError):  # it has ended: `wait_for` tells
                self.channel.send(op="prepare", environment=self.environment(), log=str(self.log.absolute()))
            ready = self.wait_for("server")
            self.network, self.kernels = ready["network"], ready["kernels"]
            self.forks = self.kernels is not None  # otherwise each task imports TensorFlow itself
            if isolation == "require" and self.network != "private":
                raise UserError(
                    f"this machine allows no private network ({self.network}): use --isolation off; the ports of "
                    "the run are then open to all hosts that can reach this machine"
                )
        except BaseException:
            self.close(0)
            raise

    def environment(self) -> dict[str, str]:
        """Return the environment variables for tasks: those that this program has now, with a few of their own."""
        return environment(self.folder.name, self.kernels_environment)

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
            f"no word from the fork server, which imports TensorFlow, for {START_SECONDS:g} s: is it stopped? "
            f"{self.last_words()}"
        )

    def last_words(self) -> str:
        """Return the last lines of the server's log, with its path if the log is kept."""
        return last_lines(self.log, named=self.log_stays)


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
