"""Supervision of the tasks of one run that are started here, until all have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..cluster.cluster import Cluster
from ..cluster.failure_detector import POLL_SECONDS, QUIET_SECONDS, FailureDetector
from ..cluster.restart_rule import RestartRule
from ..errors import DistsgdError, WaitTimeout
from ..waiting import awake
from .channel import FORK_SERVER
from .client import ForkServer, last_lines
from .run_state import Event, RunState
from .server_process import END_SECONDS

STOP_SECONDS = 2.0  # for a task to notify the other machines that it was stopped

IMPORT_SECONDS = 20.0  # for a task that is not forked to import TensorFlow before that

INTERRUPTED_SECONDS = 25.0  # for the result of a run after a signal; a scheduler kills all processes after about 30 s

STARTING = "All tasks give signs of life, and some still start: is the machine busy? Give a longer --wait-seconds"

LEAVING_SECONDS = 10.0  # for center and checkpoint of a run that the other machines continue

OnEvent = Callable[[dict[str, Any]], None]


class Supervision:
    """The supervisor of the tasks of one run that are started here; `run_state` decides what follows from an event.

    Args:
        server: the fork server that starts the tasks.
        names: job and index of each task.
        cluster: the machines of the run.
        rule: the rule for lost tasks, and for the time that tasks wait for each other.
        logs: the folder of the tasks' logs.
        on_event: receives every event.
    """

    def __init__(
        self,
        server: ForkServer,
        names: list[tuple[str, int]],
        cluster: Cluster,
        rule: RestartRule,
        logs: Path,
        on_event: OnEvent,
    ):
        self.server, self.logs, self.on_event = server, logs, on_event
        self.wait_seconds = rule.wait_seconds
        self.tasks = {f"{name}-{index}": (name, index) for name, index in names}
        self.detector = FailureDetector(rule.wait_seconds)
        self.run_state = RunState(
            self.tasks,
            rule,
            several_machines=cluster.task is not None,
            in_process=cluster.placement.in_process,
            kill=lambda task: self.server.send(op="kill", task=task),
            publish=on_event,
            log_of=self.log_of,
        )

    def run(self, interrupted: Callable[[], object] = bool) -> None:
        """Block until all tasks have ended; raises the failure that ended the run.

        After an interruption, the tasks have a limited time to end, and failures do not count.
        """
        with awake.looking():
            self._run(interrupted)

    def _run(self, interrupted: Callable[[], object]) -> None:
        run_state, stopped = self.run_state, False
        self.detector.expect(FORK_SERVER, self.server.process.pid)
        while run_state.alive:
            if not stopped and interrupted():
                stopped = True
                leaves = run_state.several_machines and run_state.rule.recovers
                run_state.stop(LEAVING_SECONDS if leaves else INTERRUPTED_SECONDS)
            now = awake.now()
            soonest = min(run_state.deadline, now + POLL_SECONDS / 2, run_state.restarts.soonest)
            event = self.server.receive(max(0.0, soonest - now))
            if event is not None:
                self._hear(event)
                self.on_event(event)
                run_state.handle(event)
            elif awake.now() >= run_state.deadline:
                break
            self.restart_and_kill()
        if run_state.root_cause.failure:
            raise self._name_silent_workers(run_state.root_cause.failure)
        for _, version, _ in run_state.saving.values():
            message = f"no checkpoint of {version}: it could not be written to its end"
            self.on_event({"event": "warning", "message": message})

    def _hear(self, event: Event) -> None:
        """Note an event as a sign of life of its task."""
        self.detector.heard(str(event.get("task")))
        if event["event"] == "exit":
            self.detector.forget(event["task"])
        elif event["event"] == "started":
            for name, pid in event["pids"].items():
                if self.detector.pids.get(name) != pid:
                    self.detector.expect(name, pid)

    def restart_and_kill(self) -> None:
        """Make the restarts that are due; end tasks after SIGTERM, and those silent for longer than a wait may take."""
        restarts = self.run_state.restarts
        for task, reason in restarts.take():
            self.server.send(op="restart", tasks=[self.tasks[task]])
            self.on_event({"event": "restarted", "task": task, "reason": reason, "left": restarts.left})
        for task in self.run_state.take_terminated():
            self.server.send(op="stop" if self.run_state.several_machines else "kill", task=task)
        self.detector.poll()
        for name, seconds in self.detector.silent().items():
            self.detector.forget(name)
            if name == FORK_SERVER:
                self.server.kill()
                error = WaitTimeout(f"no word from the fork server for {seconds:.0f} s: is it stopped?")
                self.run_state.root_cause.fail(error, final=True)
            else:  # the run state decides on a restart when the task has ended
                self.run_state.silenced[name] = seconds
                self.server.send(op="kill", task=name)

    def _name_silent_workers(self, failure: DistsgdError) -> DistsgdError:
        """Return the failure with the names of silent tasks, which may be the cause instead of those that it names."""
        run_state = self.run_state
        if not (run_state.root_cause.is_provisional or isinstance(failure, WaitTimeout)):
            return failure
        if silent := self.detector.quiet(max(QUIET_SECONDS, self.wait_seconds / 2)):
            names = ", ".join(f"{name} for {seconds:.0f} s" for name, seconds in sorted(silent.items()))
            before = f"{failure}. " if isinstance(failure, WaitTimeout) else ""
            return WaitTimeout(f"{before}No word from {names}: is it stopped?")
        if run_state.silenced or not isinstance(failure, WaitTimeout):  # the others only waited for a silenced one
            return failure
        workers = {task for task, (name, _) in self.tasks.items() if name == "worker"}
        late_workers = sorted(workers & run_state.alive - run_state.reported_failure)
        # Without a ps no task knows which worker is awaited: if some have complained, it is one that has not.
        if run_state.rule.is_collective and late_workers and late_workers != sorted(workers):
            if set(late_workers) <= self.detector.quiet(QUIET_SECONDS).keys():
                return WaitTimeout(f"{failure}. No word from {', '.join(late_workers)}")
            return WaitTimeout(
                f"{failure}. {', '.join(late_workers)} came too late, and gives signs of life: is it short of CPU?"
            )
        starts = not run_state.several_machines and not workers <= run_state.ready and not str(failure).endswith("?")
        return WaitTimeout(f"{failure}. {STARTING}") if starts and self._all_give_signs() else failure

    def _all_give_signs(self) -> bool:
        """Return True if all tasks that have not ended are observed, and none is quiet."""
        observed = {FORK_SERVER, *self.run_state.alive} <= self.detector.last.keys()
        return observed and not self.detector.quiet(QUIET_SECONDS)

    def log_of(self, task: str) -> str:
        """Return the path of a task's log and its last lines."""
        if task == FORK_SERVER:
            return self.server.last_words()
        if task not in self.tasks:
            return "Its log is on its own machine."
        return last_lines(self.logs / f"{task}.log")

    def end(self) -> None:
        """End all tasks of the run; no process of it is left when this returns."""
        run_state = self.run_state
        run_state.alive -= run_state.restarts.due.keys()
        with contextlib.suppress(DistsgdError, OSError):
            if run_state.to_announce:
                self.server.send(op="restart", tasks=[("death_notice", list(self.tasks).index(run_state.to_announce))])
                self._await_exits(STOP_SECONDS + (0 if self.server.forks else IMPORT_SECONDS), only="death_notice")
            if run_state.several_machines and run_state.alive:
                self.server.send(op="stop")
                self._await_exits(STOP_SECONDS)
            if run_state.alive:
                self.server.send(op="kill")
            self._await_exits(END_SECONDS)

    def _await_exits(self, seconds: float, only: str = "") -> None:
        """Block until all tasks have ended, or one whose name begins with `only`."""
        deadline = awake.now() + seconds
        while (self.run_state.alive or only) and awake.now() < deadline:
            event = self.server.receive(max(0.0, deadline - awake.now()))
            if event and event["event"] == "exit":
                self.run_state.alive.discard(event["task"])
                if only and event["task"].startswith(only):
                    return
