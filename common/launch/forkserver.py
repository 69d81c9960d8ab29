"""The fork server: imports TensorFlow once, then forks the tasks of a run, each ready in milliseconds.

The launcher starts it as `python -m distsgd.common.launch.forkserver FD ISOLATION`, and exchanges messages with it
over one socket (see `channel`). Its children report their events on the same socket. It has a single thread, so forking
is safe. When the launcher's end closes, for any reason, it ends its children and itself.

During a run, the fork server and each child send a sign of life once a second at least; a child from a thread that only
sends.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from ..cluster.task_spec import Addresses
from ..errors import DistsgdError
from ..files import no_link
from ..kernels import used_here
from ..record.events import Subscriber
from ..reports import Report
from .channel import FORK_SERVER, Channel
from .gpus import gpus, seen_by
from .isolation import enter_private_network

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15

BEAT_SECONDS = 1.0


class TaskForker:
    """The process that forks, watches and ends the tasks of the requested runs."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.tasks: dict[int, tuple[int, str]] = {}  # pid -> number of the run, task
        self.reserved: list[socket.socket] = []  # the ports of the present run
        self.number = 0  # of the present run; children of an earlier run may still be alive
        self.run: tuple[Any, ...] = ()  # job, addresses and log folder of the present run

    def serve(self) -> None:
        """Serve requests until the launcher closes its end."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        while True:
            readable, _, _ = select.select([self.channel, wake_read], [], [], BEAT_SECONDS)
            if not readable and self.tasks:
                self.channel.send(event="beat", task=FORK_SERVER, run=self.number)
            if wake_read in readable:
                os.read(wake_read, 4096)
                self.reap()
            if self.channel in readable:
                try:
                    request = self.channel.receive()
                except (EOFError, ConnectionError):
                    return self.kill()
                if request is not None:
                    self.answer(request)

    def answer(self, request: dict[str, Any]) -> None:
        """Carry out one request of the launcher."""
        if request["op"] == "start":
            self.start(request)
        elif request["op"] == "stop":
            self.kill(how=signal.SIGTERM)
        elif request["op"] == "restart":
            self.fork([tuple(task) for task in request["tasks"]])
        elif request["op"] == "kill":
            self.kill(request.get("task"))

    def start(self, request: dict[str, Any]) -> None:
        """Fork the tasks of a run; the data and the algorithm of the job file are loaded once, and shared by all."""
        self.number = request["run"]
        with open(request["job"], "rb") as file:
            train, test, algorithm, blob = pickle.load(file)
        os.unlink(request["job"])  # large, and not needed any more
        if algorithm is not None:
            importlib.import_module(algorithm)
        names = [tuple(task) for task in request["tasks"]]
        addresses = Addresses(**request["addresses"]) if request["addresses"] else self.reserve(names)
        self.run = (train, test, blob), addresses, Path(request["logs"])
        gc.freeze()  # otherwise a collection in a child would copy the pages of the objects shared until now
        self.fork(names)

    def fork(self, names: list[tuple[str, int]]) -> None:
        """Start tasks of the present run, for the first time or again."""
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            message = f"{threads} threads before the fork, where only one is safe"
            self.channel.send(event="error", task=FORK_SERVER, kind="RuntimeError", message=message, run=self.number)
            return
        here = os.getpid()
        for job_name, index in names:
            pid = os.fork()
            if pid == 0:
                self.become(job_name, index, here)
            with contextlib.suppress(OSError):  # the child does the same: the first call of the two counts
                os.setpgid(pid, pid)
            self.tasks[pid] = self.number, f"{job_name}-{index}"
        pids = {task: pid for pid, (number, task) in self.tasks.items() if number == self.number}
        self.channel.send(event="started", pids=pids, run=self.number)

    def reserve(self, names: list[tuple[str, int]]) -> Addresses:
        """Reserve a free port for each task that listens, until the run ends: no other program is assigned it."""
        for holder in self.reserved:  # of the previous run
            holder.close()
        self.reserved.clear()
        hosts: dict[str, list[str]] = {"ps": [], "worker": []}
        for job_name, _ in names:
            if job_name in hosts:
                holder = socket.socket()
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                holder.bind(("", 0))
                self.reserved.append(holder)
                hosts[job_name].append(f"127.0.0.1:{holder.getsockname()[1]}")
        return Addresses(**hosts)

    def become(self, job_name: str, index: int, parent: int) -> None:
        """Run one task in this child process until its end; never returns."""
        code = 1
        try:
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            ctypes.CDLL(None).prctl(PR_SET_NAME, f"{job_name}-{index}".encode())  # as `top` and `ps -e` show it
            for holder in self.reserved:  # inherited: each of 64 workers would hold 65 of these sockets
                holder.close()
            if os.getppid() == parent:  # a parent that died before `prctl` would send no signal to this process
                code = run_task(self.channel, self.number, job_name, index, *self.run)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # TensorFlow's servers cannot be stopped: end the process

    def reap(self) -> None:
        """Report the children that have ended, with their exit status, to the launcher."""
        while self.tasks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number, task = self.tasks.pop(pid)
            with contextlib.suppress(OSError):  # the launcher may have closed its end
                self.channel.send(event="exit", task=task, status=os.waitstatus_to_exitcode(status), run=number)

    def kill(self, only: str | None = None, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to all children, or to one task, and to the processes that they have started."""
        for pid in [pid for pid, (_, task) in self.tasks.items() if only in (None, task)]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, how)


def run_task(
    channel: Channel, run: int, job_name: str, index: int, parts: tuple[Any, ...], addresses: Addresses, logs: Path
) -> int:
    """Set up the process of one task of a run, run the task, and report how it ended; returns the exit code."""
    task = f"{job_name}-{index}"
    set_up_process(logs / f"{task}.log")

    # Send from a thread of its own. Otherwise a suspended launcher, which reads no events, would stop training.
    outbox = Subscriber(
        lambda event: channel.send(**event),
        beat=lambda: channel.send(event="beat", task=task, run=run),
        beat_seconds=BEAT_SECONDS,
    )

    def report(**event: Any) -> None:
        outbox.put({"task": task, "run": run, "when": time.monotonic(), **event})
        if event["event"] in ("error", "blocks"):  # this process may end at once
            outbox.flush()

    try:
        from .tasks import TASKS

        train, test, blob = parts
        job = pickle.loads(blob)
        job.train = job.train if train is None else train
        job.test = job.test if test is None else test
        os.environ.update(seen_by(job_name, index, job.devices_per_worker, gpus(), placed=job.cluster.task is not None))
        if job.cluster.task is not None:  # the fork server holds no port here: a port in use must be an error
            os.environ["TF_GRPC_REUSE_PORT"] = "false"
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the membership waits for it, to notify others
        # Import `transport` before any other module that registers Python functions. Otherwise the tasks would have
        # different tokens for the same `PyFunc`. Import it after the signal mask, which its threads inherit.
        from ..messages import transport  # noqa: F401

        TASKS[job_name](job, addresses, index, report)
        return 0
    except BaseException as raised:
        return report_error(raised, report)
    finally:
        outbox.flush()


def set_up_process(log: Path) -> None:
    """Reset the signal handlers to those of a fresh process, and redirect its output to `log`."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    file = no_link(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()


def report_error(raised: BaseException, report: Report) -> int:
    """Report the error that ended a task, in its log and to the launcher; returns the exit code."""
    from ..files import in_one_line
    from ..packages import remedy
    from ..server.failures import is_absence, is_refusal

    error = in_one_line(raised) if isinstance(raised, Exception) else raised
    with contextlib.suppress(OSError):  # the log may be on a full disk
        traceback.print_exception(raised)
    peer_lost = not isinstance(error, DistsgdError) and (is_absence(error) or is_refusal(error))
    report(
        event="error",
        kind=type(error).__name__,
        message=(str(error) or type(error).__name__)[:2000] + remedy(error),
        consequence=peer_lost,  # most likely another task ended first
    )
    return error.exit_code if isinstance(error, DistsgdError) else 1


def import_tensorflow() -> None:
    """Import the modules that a task needs, without scikit-learn and Matplotlib, in 60 % of the CPU time.

    Keras imports both for wrappers and pictures, and works without them. A user's code imports both as usual. The
    garbage collector is off meanwhile: otherwise it would scan the imported modules again and again.
    """
    absent = [name for name in ("sklearn", "matplotlib") if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(absent))  # with None there, an import raises ModuleNotFoundError
    gc.disable()
    try:  # not the lazy import: the tasks are forked with all modules loaded, and these settings need a first import
        import keras  # noqa: F401
        import tensorflow  # noqa: F401

        from . import tasks  # noqa: F401
    finally:
        gc.enable()
        for name in absent:
            del modules[name]


def main() -> None:
    """Enter a private network if asked to, import TensorFlow, and serve requests."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    server = TaskForker(channel)
    network = "open"
    if sys.argv[2] != "off":
        try:
            enter_private_network()
            network = "private"
        except OSError as error:
            network = f"refused: {error.strerror or error}"
    from ..messages.segments import raise_limit

    raise_limit()
    import_tensorflow()
    channel.send(event="server", network=network, kernels=used_here())
    server.serve()
    os._exit(0)  # Python would take half a second to free all modules, for which the user would wait


if __name__ == "__main__":
    main()
