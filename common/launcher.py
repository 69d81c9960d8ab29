"""The launcher: starts the processes of a local run, watches them, and ends them, whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cluster import Isolation
from .data import is_arrays
from .errors import KINDS, DistsgdError, TaskFailed, TaskLost, UserError, WaitTimeout
from .files import Scratch
from .forkserver import EVENT_BYTES

if TYPE_CHECKING:
    from .job import Job

END_SECONDS = 5.0  # for what is left of a run to go away
LEAVE_SECONDS = 2.0  # for a ps to leave by itself once the result is there
STOP_SECONDS = 2.0  # for a task to tell the other machines that it was stopped
LEAVE_FAR_SECONDS = 20.0  # the same where other machines have to hear of it
CAUSE_SECONDS = 1.0  # a task that only lost its peers waits so long for the real cause to show up
LOG_LINES = 8

OnEvent = Callable[[dict[str, Any]], None]


class ForkServer:
    """A running fork server and the channel to it."""

    def __init__(self, isolation: Isolation, python: Sequence[str] = (sys.executable,)):
        self.isolation = isolation
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = ours
        self.folder = Scratch()
        self.log = Path(self.folder.name) / "forkserver.log"
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        environment |= {
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            "OPENBLAS_NUM_THREADS": "1",  # no thread but one before the forks
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),  # a quarter less memory for each worker
            "TF_GRPC_REUSE_PORT": "true",  # the fork server holds the ports until the run ends
            "KERAS_BACKEND": "tensorflow",
        }
        with theirs, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*python, "-m", "distsgd.common.forkserver", str(theirs.fileno()), isolation],
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
            self.close()
            raise

    def send(self, **request: Any) -> None:
        """One request."""
        self.channel.send(json.dumps(request).encode())

    def receive(self, seconds: float | None) -> dict[str, Any] | None:
        """The next event, or None after so many seconds.

        Raises:
            TaskLost: the fork server is gone.
        """
        if not select.select([self.channel], [], [], seconds)[0]:
            return None
        message = self.channel.recv(EVENT_BYTES)
        if not message:
            raise TaskLost(f"the fork server ended. {last_lines(self.log)}")
        return json.loads(message)

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next event of that kind."""
        while True:
            event = self.receive(None)
            if event and event["event"] == kind:
                return event

    def close(self) -> None:
        """End the server and all its children."""
        self.channel.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.folder.cleanup()


_warm: ForkServer | None = None


@contextmanager
def keep_warm(isolation: Isolation = "auto") -> Iterator[None]:
    """Runs inside this context share one fork server, so that TensorFlow is imported only once."""
    global _warm
    server = ForkServer(isolation)
    before, _warm = _warm, server
    try:
        yield
    finally:
        _warm = before
        server.close()


@contextmanager
def fork_server(isolation: Isolation) -> Iterator[ForkServer]:
    """The warm fork server if there is one of that isolation, else one for this run alone."""
    if _warm is not None and _warm.isolation == isolation and _warm.process.poll() is None:
        yield _warm
        return
    server = ForkServer(isolation)
    try:
        yield server
    finally:
        server.close()


def launch(job: Job, run_dir: Path, on_event: OnEvent) -> None:
    """Run a job in processes until all of them have ended; `on_event` sees every event.

    Raises:
        DistsgdError: the first thing that went wrong, with the task's name and the last lines of its log.
    """
    logs = run_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with fork_server(job.cluster.isolation) as server:
        on_event({"event": "network", "state": server.network})
        with tempfile.TemporaryDirectory(dir=server.folder.name) as scratch:
            names = task_names(job)
            if ("evaluator", 0) in names:
                job = replace(job, graph_file=Path(scratch) / "worker.graph")
            place = job.cluster.place
            supervision = Supervision(server, job, names, logs, on_event)
            path = write(job, Path(scratch))
            try:
                addresses = asdict(place.addresses) if place else None
                server.send(op="start", job=str(path), tasks=names, logs=str(logs.resolve()), addresses=addresses)
                supervision.run()
            finally:
                supervision.end()


def task_names(job: Job) -> list[tuple[str, int]]:
    """The tasks of a run that are started here."""
    if job.cluster.place is not None:
        return job.cluster.place.tasks()
    if job.cluster.backend == "threads":
        return [("threads", 0)]
    ps = [] if not job.uses_ps else [("ps", i) for i in range(job.cluster.ps)]
    return [*ps, *(("worker", k) for k in range(job.cluster.workers)), ("evaluator", 0)]


def write(job: Job, folder: Path) -> Path:
    """The job as a file: arrays first, which every child shares; the rest by value, rebuilt in each child."""
    import cloudpickle

    arrays = [data if is_arrays(data) else None for data in (job.train, job.test)]
    rest = replace(
        job,
        train=job.train if arrays[0] is None else None,
        test=job.test if arrays[1] is None else None,
    )
    path = folder / "job.pkl"
    with path.open("wb") as file:
        pickle.dump((*arrays, cloudpickle.dumps(rest)), file, protocol=5)
    return path


class Supervision:
    """Watches the tasks of one run, and decides how it ended."""

    def __init__(self, server: ForkServer, job: Job, names: list[tuple[str, int]], logs: Path, on_event: OnEvent):
        self.server, self.job, self.logs, self.on_event = server, job, logs, on_event
        self.names = {f"{name}-{index}": (name, index) for name, index in names}
        self.alive = set(self.names)
        self.tasks = frozenset(self.names)  # those that are started here
        self.restarts_left = job.recovery.max_restarts
        self.restarted: dict[str, float] = {}  # when
        self.done = False  # the result is there
        self.stumbled: dict[str, str] = {}  # why
        self.complained: set[str] = set()  # who has said that something went wrong
        self.failure: DistsgdError | None = None
        self.provisional = False  # the failure may be a consequence of one that is not known yet
        self.deadline: float | None = None  # when to stop waiting for the rest
        self.saving: tuple[str, str, float] | None = None  # who writes what, and until when it may
        self.far = job.cluster.place is not None  # tasks on other machines should hear how this one ended
        self.killed: str | None = None  # who could not tell them

    def run(self) -> None:
        """Until every task has ended, or one has failed."""
        while self.alive:
            left = None if self.deadline is None else max(0.0, self._end_of_waiting() - time.monotonic())
            event = self.server.receive(left)
            if event is None:
                break
            self.on_event(event)
            self.judge(event)
        if self.failure:
            raise self._with_the_mute(self.failure)
        if self.saving:
            message = f"no checkpoint of {self.saving[1]}: it could not be written to its end"
            self.on_event({"event": "warning", "message": message})

    def _end_of_waiting(self) -> float:
        """The end of a run that went well waits for the last checkpoint."""
        if self.done and self.saving and self.saving[0] in self.alive:
            return max(self.deadline or 0.0, self.saving[2])
        return self.deadline or 0.0

    def judge(self, event: dict[str, Any]) -> None:
        """What an event means for the run; the first failure that is not a consequence counts."""
        task = event.get("task")
        if event["event"] == "exit":
            self.alive.discard(str(task))
            status = event["status"]
            if self.saving and task == self.saving[0] and status == 0:
                self.saving = None  # it has said what became of it
            if self.done:
                return  # the result is safe
            if status < 0:
                name = signal.Signals(-status).name
                if self.restart(str(task), name) or self.is_dispensable(str(task), name):
                    return
                if self.far and not self.job.tolerates:
                    self.killed = self.killed or str(task)
                self.fail(TaskLost(f"{task} was killed by {name}. {self.log_of(task)}"), final=True)
            elif status:
                if str(task) in self.stumbled and self.restart(str(task), self.stumbled[str(task)]):
                    return
                self.fail(TaskFailed(f"{task} ended with code {status}. {self.log_of(task)}"), final=True)
        elif event["event"] == "error" and event.get("consequence") and self.restarts_left:
            # Over a peer that is being started again; its turn comes when it has ended.
            self.stumbled[str(task)] = first_line(event["message"])
        elif event["event"] == "error" and not self.done:
            kind = KINDS.get(event.get("kind", ""))
            self.complained.add(str(task))
            text = f"{task}: {event['message']}"
            if kind is None:
                text = f"{task} raised {event.get('kind')}: {first_line(event['message'])}\n{self.log_of(task)}"
            waits = self.is_ring and kind is WaitTimeout  # let the others say the same
            self.fail((kind or TaskFailed)(text), final=not (event.get("consequence") or waits))
        elif event["event"] == "silent" and self.restarts_left:
            silent = f"worker-{event['worker']}"
            if time.monotonic() - self.restarted.get(silent, 0.0) > self.job.cluster.wait_seconds:
                self.server.send(op="kill", task=silent)  # and then started again; several may have noticed
        elif event["event"] == "saving":
            self.saving = str(task), f"version {event['version']}", time.monotonic() + event["seconds"]
        elif event["event"] == "result":
            self.done = True
            self.deadline = time.monotonic() + (LEAVE_FAR_SECONDS if self.far else LEAVE_SECONDS)

    def restart(self, task: str, reason: str) -> bool:
        """Start a dead task again, if there are restarts left and its state is somewhere else or in a checkpoint."""
        job_name, index = self.names[task]
        if self.failure or not self.restarts_left or job_name == "threads" or self.is_ring:
            return False
        self.restarts_left -= 1
        self.stumbled.pop(task, None)
        self.restarted[task] = time.monotonic()
        self.alive.add(task)
        self.server.send(op="restart", tasks=[(job_name, index)])
        self.on_event({"event": "restarted", "task": task, "reason": reason, "left": self.restarts_left})
        return True

    def is_dispensable(self, task: str, reason: str) -> bool:
        """True if the run can do without a worker that has died."""
        wanted = self.job.recovery.min_workers
        left = sum(self.names[other][0] == "worker" for other in self.alive)
        if self.failure or wanted is None or not task.startswith("worker-") or task == "worker-0":
            return False
        if left < wanted or not self.job.uses_ps:
            return False
        self.on_event({"event": "abandoned", "task": task, "reason": reason})
        return True

    def fail(self, failure: DistsgdError, final: bool) -> None:
        """Keep the first failure; one that is only a consequence gives way to its cause."""
        vague = self.provisional and (final or isinstance(self.failure, TaskFailed))
        if self.failure is None or (vague and not isinstance(failure, TaskFailed)):
            self.failure, self.provisional = failure, not final
            self.deadline = time.monotonic() + (0 if final else CAUSE_SECONDS)

    @property
    def is_ring(self) -> bool:
        """True if the workers reduce among themselves: nothing that all can reach knows who has arrived."""
        return not (self.job.uses_ps or self.job.alone)

    def _with_the_mute(self, failure: DistsgdError) -> DistsgdError:
        """Workers in a ring wait for "another worker": it is the one that does not complain."""
        mute = sorted(task for task in self.alive - self.complained if task.startswith("worker-"))
        if not (self.is_ring and isinstance(failure, WaitTimeout) and mute):
            return failure
        return WaitTimeout(f"{failure}. No word from {', '.join(mute)}")

    def log_of(self, task: Any) -> str:
        """Where the log of a task is, and how it ends."""
        if task not in self.tasks:
            return "Its log is on its own machine."
        return last_lines(self.logs / f"{task}.log")

    def end(self) -> None:
        """Nothing of the run is left when this returns."""
        with contextlib.suppress(DistsgdError, OSError):
            if self.killed:
                self.server.send(op="restart", tasks=[("obituary", list(self.names).index(self.killed))])
                self._await_exits(STOP_SECONDS, only="obituary")
            if self.far and self.alive:
                self.server.send(op="stop")
                self._await_exits(STOP_SECONDS)
            if self.alive:
                self.server.send(op="kill")
            self._await_exits(END_SECONDS)

    def _await_exits(self, seconds: float, only: str = "") -> None:
        """Until all have ended, or one of that kind."""
        deadline = time.monotonic() + seconds
        while (self.alive or only) and time.monotonic() < deadline:
            event = self.server.receive(max(0.0, deadline - time.monotonic()))
            if event and event["event"] == "exit":
                self.alive.discard(event["task"])
                if only and event["task"].startswith(only):
                    return


def first_line(text: str) -> str:
    """The first line of a message that may be long."""
    return (text.splitlines() or [""])[0]


def last_lines(log: Path) -> str:
    """The path of a log and its last lines."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return f"Log: {log}"
    return "\n".join([f"Log: {log}", *(f"  | {line}" for line in lines)])
