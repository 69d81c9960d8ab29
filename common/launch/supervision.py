"""Supervision: which event of a run means what, and how the run ended."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import KINDS, DistsgdError, TaskFailed, TaskLost, WaitTimeout
from ..run.job import Job
from ..waiting import LOOK_SECONDS, QUIET_SECONDS, LifeSigns
from .channel import FORK_SERVER
from .client import END_SECONDS, ForkServer, last_lines

LEAVE_SECONDS = 2.0  # for a ps to leave by itself once the result is there

STOP_SECONDS = 2.0  # for a task to tell the other machines that it was stopped

LEAVE_FAR_SECONDS = 20.0  # the same where other machines have to hear of it

CAUSE_SECONDS = 1.0  # a task that only lost its peers waits so long for the real cause to show up

PAUSE_SECONDS = 1.0  # before a task is started for the third time; then twice as long each time

LONGEST_PAUSE_SECONDS = 30.0

STEADY_SECONDS = 60.0  # a task that has lived so long is not one that dies at its start

OnEvent = Callable[[dict[str, Any]], None]


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
        self.far = job.cluster.task is not None  # tasks on other machines should hear how this one ended
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
                if self.far and not self.job.restarts.tolerates:
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
                self.server.send(op="restart", tasks=[("death_notice", list(self.names).index(self.killed))])
                self._await_exits(STOP_SECONDS, only="death_notice")
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
