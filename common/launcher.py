"""The launcher: starts the processes of a local run, watches them, and ends them, whatever happens."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .channel import FORK_SERVER, Channel
from .cluster import Isolation
from .data import is_arrays
from .errors import KINDS, DistsgdError, TaskFailed, TaskLost, UserError, WaitTimeout
from .files import Scratch
from .waiting import LOOK_SECONDS, QUIET_SECONDS, LifeSigns

if TYPE_CHECKING:
    from .job import Job

START_SECONDS = 60.0  # without a sign of life from a fork server that starts
SEND_SECONDS = 60.0  # for a fork server to read a request
END_SECONDS = 5.0  # for what is left of a run to go away
LEAVE_SECONDS = 2.0  # for a ps to leave by itself once the result is there
STOP_SECONDS = 2.0  # for a task to tell the other machines that it was stopped
LEAVE_FAR_SECONDS = 20.0  # the same where other machines have to hear of it
CAUSE_SECONDS = 1.0  # a task that only lost its peers waits so long for the real cause to show up
PAUSE_SECONDS = 1.0  # before a task is started for the third time; then twice as long each time
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0  # a task that has lived so long is not one that dies at its start
LOG_LINES = 8

OnEvent = Callable[[dict[str, Any]], None]


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
        }
        with theirs, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                # -P: the modules that this process can import, and none that just lie in the current folder.
                [*python, "-P", "-m", "distsgd.common.forkserver", str(theirs.fileno()), isolation],
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
        """The next event of the present run, or None after so many seconds.

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
        signs = LifeSigns()
        signs.expect(FORK_SERVER, self.process.pid)
        while not signs.silent(START_SECONDS):
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


def launch(job: Job, run_dir: Path, on_event: OnEvent) -> None:
    """Run a job in processes until all of them have ended; `on_event` sees every event.

    Raises:
        DistsgdError: the first thing that went wrong, with the task's name and the last lines of its log.
    """
    logs = run_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with fork_server(job.cluster.isolation, logs) as server:
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
                server.start(job=str(path), tasks=names, logs=str(logs.resolve()), addresses=addresses)
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
        self.in_a_row: Counter[str] = Counter()  # restarts of a task that never lived for long
        self.due: dict[str, tuple[float, str]] = {}  # restarts that are still to come: when, and why
        self.done = False  # the result is there
        self.stumbled: dict[str, str] = {}  # why
        self.complained: set[str] = set()  # who has said that something went wrong
        self.failure: DistsgdError | None = None
        self.provisional = False  # the failure may be a consequence of one that is not known yet
        self.deadline = math.inf  # when to stop waiting for the rest
        self.saving: tuple[str, str, float] | None = None  # who writes what, and until when it may
        self.far = job.cluster.place is not None  # tasks on other machines should hear how this one ended
        self.killed: str | None = None  # who could not tell them
        self.signs = LifeSigns()
        self.silenced: dict[str, float] = {}  # killed because nothing was heard from them for so many seconds

    def run(self) -> None:
        """Until every task has ended, or one has failed."""
        self.signs.expect(FORK_SERVER, self.server.process.pid)
        while self.alive:
            now = time.monotonic()
            soonest = min(self._end_of_waiting(), now + LOOK_SECONDS / 2, *(when for when, _ in self.due.values()))
            event = self.server.receive(max(0.0, soonest - now))
            if event is not None:
                self.signs.heard(str(event.get("task")))
                self.on_event(event)
                self.judge(event)
            elif time.monotonic() >= self._end_of_waiting():
                break
            self.look_after()
        if self.failure:
            raise self._with_the_mute(self.failure)
        if self.saving:
            message = f"no checkpoint of {self.saving[1]}: it could not be written to its end"
            self.on_event({"event": "warning", "message": message})

    def _end_of_waiting(self) -> float:
        """The end of a run that went well waits for the last checkpoint."""
        if self.done and self.saving and self.saving[0] in self.alive:
            return max(self.deadline, self.saving[2])
        return self.deadline

    def look_after(self) -> None:
        """Start what is due; end what has not been heard of for longer than a wait may take."""
        for task, (when, reason) in list(self.due.items()):
            if time.monotonic() >= when:
                self._start_again(task, reason)
        self.signs.look()
        for name, seconds in self.signs.silent(self.job.cluster.wait_seconds).items():
            self.signs.forget(name)
            if name == FORK_SERVER:
                self.server.kill()
                self.fail(WaitTimeout(f"no word from the fork server for {seconds:.0f} s: is it stopped?"), final=True)
            else:  # whatever is done about it is done when it has ended
                self.silenced[name] = seconds
                self.server.send(op="kill", task=name)

    def judge(self, event: dict[str, Any]) -> None:
        """What an event means for the run; the first failure that is not a consequence counts."""
        task = event.get("task")
        if event["event"] == "started":
            for name, pid in event["pids"].items():
                if self.signs.pids.get(name) != pid:
                    self.signs.expect(name, pid)
        elif event["event"] == "exit":
            self.alive.discard(str(task))
            self.signs.forget(str(task))
            status = event["status"]
            if self.saving and task == self.saving[0] and status == 0:
                self.saving = None  # it has said what became of it
            if self.done:
                return  # the result is safe
            if status < 0:
                silence = self.silenced.pop(str(task), None)
                reason = f"silent for {silence:.0f} s" if silence else signal.Signals(-status).name
                if self.restart(str(task), reason) or self.is_dispensable(str(task), reason):
                    return
                if self.far and not self.job.tolerates:
                    self.killed = self.killed or str(task)
                why = (
                    f"no word from {task} for {silence:.0f} s: is it stopped?"
                    if silence
                    else f"{task} was killed by {reason}."
                )
                kind = WaitTimeout if silence and not self.far else TaskLost
                self.fail(kind(f"{why} {self.log_of(task)}"), final=True)
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
            self.alive -= self.due.keys()
            self.due.clear()
            self.deadline = time.monotonic() + (LEAVE_FAR_SECONDS if self.far else LEAVE_SECONDS)

    def restart(self, task: str, reason: str) -> bool:
        """Start a dead task again, if there are restarts left and its state is somewhere else or in a checkpoint."""
        job_name, _ = self.names[task]
        if self.failure or not self.restarts_left or job_name == "threads" or self.is_ring:
            return False
        self.restarts_left -= 1
        self.stumbled.pop(task, None)
        self.alive.add(task)
        now = time.monotonic()
        if now - self.restarted.get(task, -math.inf) > STEADY_SECONDS:
            self.in_a_row[task] = 0
        self.due[task] = now + pause(self.in_a_row[task], self.job.cluster.wait_seconds), reason
        self.in_a_row[task] += 1
        return True

    def _start_again(self, task: str, reason: str) -> None:
        del self.due[task]
        self.restarted[task] = time.monotonic()
        self.server.send(op="restart", tasks=[self.names[task]])
        self.on_event({"event": "restarted", "task": task, "reason": reason, "left": self.restarts_left})

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
        """Those who wait complain of whom they wait for; the cause may be another one, who says nothing at all."""
        if not (self.provisional or isinstance(failure, WaitTimeout)):
            return failure
        limit = max(QUIET_SECONDS, self.job.cluster.wait_seconds / 2)
        if silent := self.signs.silent(limit):
            names = ", ".join(f"{name} for {seconds:.0f} s" for name, seconds in sorted(silent.items()))
            before = f"{failure}. " if isinstance(failure, WaitTimeout) else ""
            return WaitTimeout(f"{before}No word from {names}: is it stopped?")
        mute = sorted(task for task in self.alive - self.complained if task.startswith("worker-"))
        if not (self.is_ring and isinstance(failure, WaitTimeout) and mute):
            return failure
        return WaitTimeout(f"{failure}. No word from {', '.join(mute)}")

    def log_of(self, task: Any) -> str:
        """Where the log of a task is, and how it ends."""
        if task == FORK_SERVER:
            return self.server.last_words()
        if task not in self.tasks:
            return "Its log is on its own machine."
        return last_lines(self.logs / f"{task}.log")

    def end(self) -> None:
        """Nothing of the run is left when this returns."""
        self.alive -= self.due.keys()
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


def pause(restarts: int, wait_seconds: float) -> float:
    """Seconds before a task is started again that had so many restarts in a row.

    The first time is at once; later the cause may need time to go away, but those who wait for the task do not wait
    for ever.
    """
    if restarts == 0:
        return 0.0
    return min(PAUSE_SECONDS * 2.0 ** (restarts - 1), LONGEST_PAUSE_SECONDS, wait_seconds / 2)


def last_lines(log: Path, named: bool = True) -> str:
    """The path of a log, if it is to be `named`, and its last lines."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        lines = []
    return "\n".join([f"Log: {log}" if named else "Its log ends:", *(f"  | {line}" for line in lines)])
