"""The process of one task of a run: a fork of a process that has imported TensorFlow, or a new interpreter.

The fork server starts a new interpreter as `python -m distsgd.common.launch.task_process FD PARENT JOB START`: the
socket, its own pid, the file of the job, and the start of the task as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..cluster.task_spec import Addresses
from ..errors import DistsgdError, WaitTimeout
from ..files import no_link
from ..record.events import Subscriber
from ..reports import Report
from ..signals import report_terminations
from ..waiting import awake
from .channel import Channel
from .deferral import import_tensorflow
from .gpus import gpus, seen_by

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15

BEAT_SECONDS = 1.0

Parts = tuple[Any, Any, str | None, bytes]  # of a job: arrays for training and test, an algorithm's module, the rest


@dataclass(frozen=True)
class Start:
    """What a task needs to begin, besides its job and its environment variables.

    Attributes:
        run: number of the run.
        addresses: addresses of all tasks.
        logs: folder for the log of the task.
        path: `sys.path` of the program that has started the run.
        folder: the current folder of that program.
    """

    run: int
    job_name: str
    index: int
    addresses: Addresses
    logs: str
    path: Sequence[str]
    folder: str

    @property
    def task(self) -> str:
        """Name of the task."""
        return f"{self.job_name}-{self.index}"

    def as_json(self) -> str:
        """Return the start as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Start:
        """Return the start of a task from its JSON."""
        values = json.loads(text)
        return cls(**values | {"addresses": Addresses(**values["addresses"])})


def load(file: str | Path) -> Parts:
    """Return the parts of a job."""
    with open(file, "rb") as job:
        return pickle.load(job)


def become(start: Start, channel: Channel, parent: int, parts: Callable[[], Parts]) -> None:
    """Run one task in this process until its end; never returns.

    Args:
        start: the task.
        channel: the socket for its events.
        parent: pid of the process that has started this one.
        parts: returns the parts of the job.
    """
    code = 1
    try:
        os.setpgid(0, 0)
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            ctypes.CDLL(None).prctl(PR_SET_NAME, start.task.encode())  # as `top` and `ps -e` show it
        except AttributeError:  # macOS has no `prctl`
            threading.Thread(target=end_with, args=[parent], daemon=True).start()
        if os.getppid() == parent:  # a parent that died before `prctl` would send no signal to this process
            code = run_task(start, channel, parts)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # TensorFlow's servers cannot be stopped: end the process


def end_with(parent: int) -> None:
    """End this process soon after its parent has ended."""
    while os.getppid() == parent:
        time.sleep(BEAT_SECONDS)
    os._exit(1)


def run_task(start: Start, channel: Channel, parts: Callable[[], Parts]) -> int:
    """Set up the process of one task of a run, run the task, and report how it ended; returns the exit code."""
    set_up_process(Path(start.logs) / f"{start.task}.log")

    # Send from a thread of its own. Otherwise a suspended launcher, which reads no events, would stop training.
    outbox = Subscriber(
        lambda event: channel.send(**event),
        beat=lambda: channel.send(event="beat", task=start.task, run=start.run),
        beat_seconds=BEAT_SECONDS,
    )

    def report(**event: Any) -> None:
        outbox.put({"task": start.task, "run": start.run, "when": time.monotonic(), **event})
        if event["event"] in ("error", "blocks"):  # this process may end at once
            outbox.flush()

    report_terminations(lambda: report(event="terminated"))
    try:
        if "tensorflow" not in sys.modules:  # in a new interpreter
            import_tensorflow()
        from ..data.orders import seed_generators
        from ..tasks.job import unpickled
        from .tasks import TASKS

        _move_to(start)
        train, test, _, blob = parts()
        job = unpickled(blob)
        job.train = job.train if train is None else train
        job.test = job.test if test is None else test
        placed = job.cluster.task is not None
        shared = {"devices": job.devices_per_worker, "found": gpus(), "workers": job.cluster.workers}
        os.environ.update(seen_by(start.job_name, start.index, placed=placed, **shared))
        if placed:  # the fork server holds no port here: a port in use must be an error
            os.environ["TF_GRPC_REUSE_PORT"] = "false"
        # Import `transport` before any other module that registers Python functions. Otherwise the tasks would have
        # different tokens for the same `PyFunc`.
        from ..messages import transport  # noqa: F401

        seed_generators(job.options.seed, start.task)
        with awake.looking():
            TASKS[start.job_name](job, start.addresses, start.index, report)
        return 0
    except BaseException as raised:
        return report_error(raised, report)
    finally:
        outbox.flush()


def _move_to(start: Start) -> None:
    """Use the import path and the current folder that the program has now, which a warm fork server may not have."""
    sys.path[:] = start.path
    importlib.invalidate_caches()
    with contextlib.suppress(OSError):  # the folder was deleted
        os.chdir(start.folder)


def set_up_process(log: Path) -> None:
    """Reset the signal handlers of the fork server, and redirect the output of this process to `log`."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    file = no_link(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()


def report_error(raised: BaseException, report: Report) -> int:
    """Report the error that ended a task, in its log and to the launcher; returns the exit code."""
    from ..files import in_one_line
    from ..packages import remedy
    from ..server.failures import is_absence, is_late, is_refusal

    error = in_one_line(raised) if isinstance(raised, Exception) else raised
    with contextlib.suppress(OSError):  # the log may be on a full disk
        traceback.print_exception(raised)
    peer_lost = not isinstance(error, DistsgdError) and (is_absence(error) or is_refusal(error))
    message = (str(error) or type(error).__name__)[:2000] + remedy(error)
    if peer_lost and is_late(error):  # the other task may be suspended
        message = "another task has not answered a call within the limit of a wait"
        error = WaitTimeout(message)
    elif peer_lost:
        cause = "a parameter server refused its call" if is_refusal(error) else "it lost its connection to another task"
        message = f"{cause} ({type(error).__name__})"
    report(
        event="error",
        kind=type(error).__name__,
        message=message,
        consequence=peer_lost,  # most likely another task ended first
    )
    return error.exit_code if isinstance(error, DistsgdError) else 1


def main() -> None:
    """Run a task in this new interpreter."""
    descriptor, parent, job, start = sys.argv[1:]
    become(Start.from_json(start), Channel(socket.socket(fileno=int(descriptor))), int(parent), lambda: load(job))


if __name__ == "__main__":
    main()
