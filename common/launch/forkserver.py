"""The fork server: imports TensorFlow once, then forks the tasks of a run, each ready in milliseconds.

The launcher starts it as `python -m distsgd.common.launch.forkserver FD FOLDER NETWORK` (see `isolation`), and
exchanges messages with it over one socket (see `channel`). Its children report their events on the same socket. When
the launcher's end closes, for any reason, it ends its children and itself.

It then deletes FOLDER, the temporary files of all of them. A launcher that was killed cannot, nor can a script that a
signal has ended between two runs of `keep_warm`.

It is started before the launcher has read the options of the run (see `server_process`). Meanwhile it imports all that
needs no TensorFlow; the request `prepare` has the environment variables with which it imports TensorFlow.

Forking is safe in a process with a single thread. If the environment starts another one, each task is a new interpreter
instead, which imports TensorFlow itself.

During a run, the fork server and each child send a sign of life once a second at least; a child from a thread that only
sends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cluster.task_spec import Addresses
from ..data.mapped import Pickler
from ..files import no_link
from ..kernels import used_here
from ..messages.segments import raise_limit
from ..signals import LEAVE, ignore
from . import task_process, tasks  # noqa: F401  # of `tasks` all that needs no TensorFlow: imported before `prepare`
from .channel import FORK_SERVER, Channel
from .deferral import import_tensorflow
from .task_process import BEAT_SECONDS, Parts, Start, become, load

TASKS = Path("/proc/self/task")


class TaskForker:
    """The process that starts, watches and ends the tasks of the requested runs.

    Args:
        channel: the socket for requests and events.
        others: names of the threads that this process had besides the main one before it imported TensorFlow. With
            such a thread it has not imported it.
    """

    def __init__(self, channel: Channel, others: Sequence[str] = ()):
        self.channel, self.others = channel, others
        self.tasks: dict[int, tuple[int, str]] = {}  # pid -> number of the run, task
        self.reserved: list[socket.socket] = []  # the ports of the present run
        self.number = 0  # of the present run; children of an earlier run may still be alive
        self.program: dict[str, Any] = {}  # see `Start`: of the present run
        self.environment: Mapping[str, str] = os.environ
        self.job = Path()
        self.parts: Parts | None = None  # of the job, if tasks are forked

    def serve(self) -> None:
        """Serve requests until the launcher closes its end."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
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
                    return
                if request is not None:
                    self.answer(request)

    def answer(self, request: dict[str, Any]) -> None:
        """Carry out one request of the launcher."""
        if request["op"] == "start":
            self.start(request)
        elif request["op"] == "stop":
            self.kill(request.get("task"), *LEAVE)
        elif request["op"] == "restart":
            self.start_tasks([tuple(task) for task in request["tasks"]])
        elif request["op"] == "kill":
            self.kill(request.get("task"))

    def start(self, request: dict[str, Any]) -> None:
        """Start the tasks of a run; forked ones share its data and algorithm, which are loaded once."""
        self.number, self.job, self.environment = request["run"], Path(request["job"]), request["environment"]
        ignore(request["signals"])
        names = [tuple(task) for task in request["tasks"]]
        addresses = Addresses(**request["addresses"]) if request["addresses"] else self.reserve(names)
        self.program = {name: request[name] for name in ("logs", "path", "folder")} | {"addresses": addresses}
        self.parts = None
        if others := self.others or other_threads():
            message = (
                "tasks start as new Python processes, seconds slower than forks: this environment starts another "
                f"thread in each process ({', '.join(others)})"
            )
            self.channel.send(event="warning", task=FORK_SERVER, message=message, run=self.number)
        else:
            self.parts = load(self.job)
            self.job.unlink()  # large, and not needed any more
            if self.parts[2] is not None:
                importlib.import_module(self.parts[2])
            gc.freeze()  # otherwise a collection in a child would copy the pages of the objects shared until now
        self.start_tasks(names)

    def start_tasks(self, names: list[tuple[str, int]]) -> None:
        """Start tasks of the present run, for the first time or again."""
        parts = None if other_threads() else self.parts
        for job_name, index in names:
            start = Start(run=self.number, job_name=job_name, index=index, **self.program)
            pid = self.spawn(start) if parts is None else self.fork(start, parts)
            self.tasks[pid] = self.number, start.task
        pids = {task: pid for pid, (number, task) in self.tasks.items() if number == self.number}
        self.channel.send(event="started", pids=pids, run=self.number)

    def fork(self, start: Start, parts: Parts) -> int:
        """Fork a child that is a task; returns its pid."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                for holder in self.reserved:  # inherited: each of 64 workers would hold 65 of these sockets
                    holder.close()
                os.environ.clear()
                os.environ.update(self.environment)
                become(start, self.channel, parent, lambda: parts)
            finally:
                os._exit(1)  # no child may continue as a second fork server
        with contextlib.suppress(OSError):  # the child does the same: the first call of the two counts
            os.setpgid(pid, pid)
        return pid

    def spawn(self, start: Start) -> int:
        """Start a new interpreter that is a task; returns its pid."""
        if not self.job.exists():  # the tasks of this run were forked when they started
            with self.job.open("wb") as file:
                Pickler(file, protocol=5).dump(self.parts)
        arguments = [str(self.channel.fileno()), str(os.getpid()), str(self.job), start.as_json()]
        command = [sys.executable, "-P", "-m", task_process.__name__, *arguments]
        return os.posix_spawn(sys.executable, command, self.environment, setpgroup=0)

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

    def reap(self) -> None:
        """Report the children that have ended, with their exit status, to the launcher."""
        while self.tasks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number, task = self.tasks.pop(pid)
            with contextlib.suppress(OSError):  # the launcher may have closed its end
                self.channel.send(event="exit", task=task, status=os.waitstatus_to_exitcode(status), run=number)

    def kill(self, only: str | None = None, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to all children, or to one task, and to the processes that they have started."""
        for pid in [pid for pid, (_, task) in self.tasks.items() if only in (None, task)]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal_number)

    def end(self) -> None:
        """Kill all children, and block until they have ended."""
        self.kill()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


def other_threads() -> list[str]:
    """Return the names of all threads of this process but the main one.

    Where the system does not show them, as macOS, there may always be one.
    """
    if not TASKS.exists():
        return ["threads that the system does not show"]
    named = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = []
    for number in map(int, os.listdir(TASKS)):
        with contextlib.suppress(OSError):  # it has ended
            if number != os.getpid():
                found.append(named.get(number) or (TASKS / f"{number}/comm").read_text().strip())
    return found


def prepare(channel: Channel) -> None:
    """Wait for the request `prepare`, and take over its environment variables and its log.

    Raises:
        EOFError: the launcher has closed its end, as no run needs this process.
    """
    while (request := channel.receive()) is None:
        pass
    os.environ.clear()
    os.environ.update(request["environment"])
    log = no_link(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def main() -> None:
    """Import TensorFlow, unless tasks will do that themselves, and serve requests."""
    ignore()
    number, folder, network = sys.argv[1:]
    channel = Channel(socket.socket(fileno=int(number)))
    raise_limit()
    others = other_threads()
    with contextlib.suppress(EOFError, ConnectionError):  # the launcher has closed its end
        prepare(channel)
        if not others:
            import_tensorflow()
        channel.send(event="server", network=network, kernels=None if others else used_here())
        forker = TaskForker(channel, others)
        try:
            forker.serve()
        finally:
            forker.end()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # Python would take half a second to free all modules, for which the user would wait


if __name__ == "__main__":
    main()
