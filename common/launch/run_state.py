"""The decisions on each event of a run: restarts, continuing without a worker, failure; all rules are in `RULES`."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar

from ..cluster.restart_rule import RestartRule
from ..cluster.task_spec import CHIEF_TASK
from ..errors import KINDS, DistsgdError, TaskFailed, TaskLost, WaitTimeout, first_line
from ..reports import OF_LATER_JOIN
from ..waiting import awake

LEAVE_SECONDS = 2.0  # for a ps to end by itself after the result has arrived

LEAVE_FAR_SECONDS = 20.0  # the same if other machines must be notified

TERMINATED_SECONDS = 3.0  # for the launcher to receive a signal that a task has received, too

OF_EACH_JOIN = ("joined", "saving", "checkpoint", "warning", "result")  # events that count for each join of a script

Event = dict[str, Any]

CAUSE_SECONDS = 1.0  # for the cause to become known, after a failure that may be a consequence

PAUSE_SECONDS = 1.0  # before a task is started for the third time; doubled before each further start

LONGEST_PAUSE_SECONDS = 30.0

STEADY_SECONDS = 60.0  # a task that has lived for that long does not count as dying at its start


class Restarts:
    """A counter of restarts, with the time when each is due.

    Args:
        rule: the rule for lost tasks, and for the time that the others wait for a restart.
    """

    def __init__(self, rule: RestartRule):
        self.rule = rule
        self.number = 0  # of restarts decided so far
        self.due: dict[str, tuple[float, str]] = {}  # time and reason of each restart that has not been made yet
        self._began: dict[str, float] = {}  # time of each task's last restart
        self._in_a_row: Counter[str] = Counter()  # restarts of a task that never lived for long

    @property
    def left(self) -> int:
        """The number of restarts that are left."""
        return self.rule.max_restarts - self.number

    @property
    def possible(self) -> bool:
        """True if a task that dies now is started again."""
        return not self.rule.is_collective and self.left > 0

    @property
    def soonest(self) -> float:
        """The time of the next restart, on the clock `awake`; infinite if none is due."""
        return min((when for when, _ in self.due.values()), default=math.inf)

    def age(self, task: str) -> float:
        """Return the seconds since a task was started again; infinite if it never was."""
        return awake.now() - self._began.get(task, -math.inf)

    def schedule(self, task: str, reason: str) -> None:
        """Schedule a restart of a task, after a pause if the task dies again and again."""
        self.number += 1
        if self.age(task) > STEADY_SECONDS:
            self._in_a_row[task] = 0
        self.due[task] = awake.now() + pause(self._in_a_row[task], self.rule.wait_seconds), reason
        self._in_a_row[task] += 1

    def take(self) -> list[tuple[str, str]]:
        """Remove and return the tasks whose restart is due, each with its reason."""
        now = awake.now()
        ready = [(task, reason) for task, (when, reason) in self.due.items() if now >= when]
        for task, _ in ready:
            del self.due[task]
            self._began[task] = now
        return ready


def pause(restarts: int, wait_seconds: float) -> float:
    """Return the seconds before the next restart of a task that was restarted `restarts` times in a row.

    The first restart is immediate. Before later ones the cause may need time to disappear, but the pause is bounded,
    as other tasks wait for this one.
    """
    if restarts == 0:
        return 0.0
    return min(PAUSE_SECONDS * 2.0 ** (restarts - 1), LONGEST_PAUSE_SECONDS, wait_seconds / 2)


class RootCause:
    """The failure that counts so far.

    For example, worker 1 reports that the ps does not answer any more, and a moment later the ps is reported killed:
    the second failure is the one for the user.

    Attributes:
        failure: None if no failure was reported.
        is_provisional: True if `failure` may be the consequence of one that is not known yet.
        deadline: the time at which to stop waiting for another failure.
    """

    def __init__(self):
        self.failure: DistsgdError | None = None
        self.is_provisional = False
        self.deadline = math.inf

    def fail(self, failure: DistsgdError, *, final: bool) -> None:
        """Take note of a failure; `final` if it is not the consequence of another one."""
        replaceable = self.is_provisional and (final or isinstance(self.failure, TaskFailed))
        if self.failure is None or (replaceable and not isinstance(failure, TaskFailed)):
            self.failure, self.is_provisional = failure, not final
            self.deadline = awake.now() + (0 if final else CAUSE_SECONDS)


class Phase(Enum):
    """The state of a run."""

    REPAIRABLE = "it trains, and a task that dies is started again"
    TRAINING = "it trains, and a task that dies is not started again"
    FAILING = "a failure was reported; its cause may become known in a moment"
    DONE = "the result has arrived"


def kind_of(event: Event) -> str:
    """Return the kind of an event, a key of `RunState.RULES`."""
    if event["event"] == "exit":
        return "ended" if event["status"] == 0 else "killed" if event["status"] < 0 else "failed"
    if event["event"] == "error":
        return "lost a peer" if event.get("consequence") else "error"
    return event["event"]


def _join_of(event: Event) -> str:
    """Return the name of the later join of a script whose event this is; empty for the first one."""
    return event.get("join", "")


class RunState:
    """The state machine of a run: it keeps the state, and acts on each event.

    Args:
        tasks: the tasks that are started here, by name.
        rule: the rule for lost tasks, and for the time that tasks wait for each other.
        several_machines: True if other machines have tasks, which must be notified when a task here ends.
        in_process: True if one process has the whole run: it is not started again.
        kill: ends a task, given its name.
        publish: receives each decision as an event.
        log_of: returns the path and the last lines of the log of a task, given its name.

    Attributes:
        alive: tasks that have not ended, or will be started again.
        silenced: tasks that were killed because they were silent, with the seconds of their silence.
        terminated: tasks that were sent SIGTERM, with the time on the clock `awake` at which that ends them.
        saving: the task that writes a checkpoint, its version, and its deadline on the clock `awake`, by the join of a
            script; of the first join, and of a run without a script, the name is empty.
        open_joins: joins of a script that have no result yet.
        awaiting_restart: tasks that lost a peer which is being restarted, and will end; with their message.
        left_block: workers whose script has left the block of each `join` that it has entered.
        reported_failure: tasks that have reported a failure.
        ready: workers that have connected to all tasks on which they depend, and taken their slot.
        to_announce: a task that was killed, and could not notify the other machines.
    """

    def __init__(
        self,
        tasks: Mapping[str, tuple[str, int]],
        rule: RestartRule,
        *,
        several_machines: bool,
        in_process: bool,
        kill: Callable[[str], None],
        publish: Callable[[Event], None],
        log_of: Callable[[str], str],
    ):
        self.tasks, self.rule, self.several_machines, self.in_process = tasks, rule, several_machines, in_process
        self.kill, self.publish, self.log_of = kill, publish, log_of
        self.restarts = Restarts(rule)
        self.root_cause = RootCause()
        self.alive = set(tasks)
        self.done = self.has_result = False
        self.leave_by = self.stop_by = math.inf
        self.saving: dict[str, tuple[str, str, float]] = {}
        self.open_joins: set[str] = set()
        self.silenced: dict[str, float] = {}
        self.terminated: dict[str, float] = {}
        self.awaiting_restart: dict[str, str] = {}
        self.reported_failure: set[str] = set()
        self.ready: set[str] = set()
        self.left_block: set[str] = set()
        self.to_announce: str | None = None

    @property
    def phase(self) -> Phase:
        """The state of the run."""
        if self.done:
            return Phase.DONE
        if self.root_cause.failure:
            return Phase.FAILING
        again = self.restarts.possible and not self.in_process and not self.has_result
        return Phase.REPAIRABLE if again else Phase.TRAINING

    @property
    def deadline(self) -> float:
        """The time at which to stop waiting for events; a run that ended well waits for its last checkpoint."""
        deadline = min(self.root_cause.deadline, self.leave_by)
        saving = [until for task, _, until in self.saving.values() if task in self.alive]
        return max([deadline, *saving]) if self.done else deadline

    def handle(self, event: Event) -> None:
        """Apply the rule for an event in the present state."""
        phase = self.phase
        if event["event"] == "exit":
            self.alive.discard(event["task"])
        if event["event"] == OF_LATER_JOIN and event["its"] in OF_EACH_JOIN:
            event = event | {"event": event["its"]}
        if rule := self.RULES.get(kind_of(event)):
            rule[list(Phase).index(phase)](self, event)

    def _ignore(self, event: Event) -> None:
        pass

    def _note_saving(self, event: Event) -> None:
        until = awake.now() + event["seconds"]
        self.saving[_join_of(event)] = event["task"], f"version {event['version']}", until

    def _note_saved(self, event: Event) -> None:
        """Note that the last checkpoint was written, or cannot be: the run of its task need not end for that."""
        version, join = event.get("version", event.get("unsaved")), _join_of(event)
        if version is not None and join in self.saving and self.saving[join][1] == f"version {version}":
            del self.saving[join]

    def _note_ready(self, event: Event) -> None:
        self.ready.add(event["task"])

    def _note_termination(self, event: Event) -> None:
        self.terminated.setdefault(event["task"], awake.now() + TERMINATED_SECONDS)

    def take_terminated(self) -> list[str]:
        """Return the tasks to end of their SIGTERM, each once: a run that the same signal has interrupted has none."""
        if self.done:
            return []
        ready = [task for task, when in self.terminated.items() if awake.now() >= when]
        self.terminated |= dict.fromkeys(ready, math.inf)
        return ready

    def _note_blocks(self, event: Event) -> None:
        """Note whether a script has left all blocks of `join`."""
        (self.left_block.discard if event["open"] else self.left_block.add)(event["task"])

    def _note_end(self, event: Event) -> None:
        """Note that a task ended well: if it wrote a checkpoint, it has reported the outcome."""
        task, may_end = event["task"], self.done or event["task"] in self.left_block
        self.saving = {join: entry for join, entry in self.saving.items() if entry[0] != task}
        if not self.rule.awaits_workers:
            return
        if self.tasks[task][0] == "worker" and not may_end:
            text = f"{task}: the process of its script ended before the end of the block of distsgd.join"
            self.to_announce = self.to_announce or (task if self.several_machines else None)
            self.root_cause.fail(TaskFailed(text), final=True)
        elif self.has_result:
            self._finish(event)

    def _note_joined(self, event: Event) -> None:
        self.open_joins.add(_join_of(event))

    def _finish(self, event: Event) -> None:
        """Note that the result is safe, and cancel all restarts that are due; each join of a script has a result."""
        if event["event"] == "result":
            self.open_joins.discard(_join_of(event))
        self.has_result = self.has_result or not _join_of(event)
        scripts = self.rule.awaits_workers and any(self.tasks[task][0] == "worker" for task in self.alive)
        if self.open_joins or (scripts and not self.done):
            return
        self.done = True
        self.alive -= self.restarts.due.keys()
        self.restarts.due.clear()
        self.leave_by = awake.now()
        if self.several_machines or scripts or not self.rule.awaits_workers:  # else no task has anything left to do
            self.leave_by += LEAVE_FAR_SECONDS if self.several_machines else LEAVE_SECONDS
        self.leave_by = min(self.leave_by, self.stop_by)

    def stop(self, seconds: float) -> None:
        """Wait for the result of an interrupted run, for so many seconds; failures do not count any more."""
        self.done = True
        self.leave_by = self.stop_by = awake.now() + seconds

    def _restart(self, event: Event) -> None:
        """Start a task again that was killed."""
        reason = self._reason(event)
        self.silenced.pop(event["task"], None)
        self.terminated.pop(event["task"], None)
        self._start_again(event["task"], reason)

    def _restart_or_fail(self, event: Event) -> None:
        """Start a task again that ended with an error, if the error was a lost peer; otherwise fail."""
        reason = self.awaiting_restart.get(event["task"])
        if reason is None:
            self._fail_for_code(event)
        else:
            self._start_again(event["task"], reason)

    def _start_again(self, task: str, reason: str) -> None:
        self.awaiting_restart.pop(task, None)
        self.alive.add(task)
        self.restarts.schedule(task, reason)

    def _await_restart(self, event: Event) -> None:
        """Note a task that lost a peer which is being restarted; this task is started again when it has ended."""
        self.awaiting_restart[event["task"]] = first_line(event["message"])

    def _kill_silent_worker(self, event: Event) -> None:
        """Kill a silent worker, to be restarted when it has ended, unless an earlier report has just restarted it."""
        silent = f"worker-{event['worker']}"
        if self.restarts.age(silent) > self.rule.wait_seconds:
            self.kill(silent)

    def _do_without_or_fail(self, event: Event) -> None:
        """Continue without a killed task that is not restarted if the rule allows it; otherwise fail."""
        workers = {task for task, (name, _) in self.tasks.items() if name == "worker"}
        if not self.rule.can_do_without(self.tasks[event["task"]], len(workers & self.alive)):
            self._fail_for_death(event)
        elif self.rule.is_collective and not workers <= self.ready:  # the others would wait for it until a time limit
            self._fail_for_death(event, before=" before all workers were connected")
        else:
            self.publish({"event": "not_restarted", "task": event["task"], "reason": self._reason(event)})

    def _fail_for_death(self, event: Event, before: str = "") -> None:
        task, silence = event["task"], self.silenced.get(event["task"])
        if self.several_machines and not self.rule.tolerates:
            self.to_announce = self.to_announce or task
        why = f"{task} was killed by {self._reason(event)}{before}."
        if silence:
            why = f"no word from {task} for {silence:.0f} s: is it stopped?"
        if self.rule.min_workers is not None and self.tasks[task] == CHIEF_TASK:
            why += " min_workers is of the others: worker 0 keeps the record and the checkpoints, from which to resume."
        kind = WaitTimeout if silence and not self.several_machines else TaskLost
        self.root_cause.fail(kind(f"{why} {self.log_of(task)}"), final=True)

    def _fail_for_code(self, event: Event) -> None:
        text = f"{event['task']} ended with code {event['status']}. {self.log_of(event['task'])}"
        self.root_cause.fail(TaskFailed(text), final=True)

    def _fail_for_now(self, event: Event) -> None:
        """Fail provisionally over a lost peer, as the cause of the loss may become known."""
        self._fail_with(event, final=False)

    def _fail(self, event: Event) -> None:
        """Fail; a timeout without a ps is provisional: all workers but the one that is stopped will report it."""
        self._fail_with(event, final=not (self.rule.is_collective and event.get("kind") == WaitTimeout.__name__))

    def _fail_with(self, event: Event, final: bool) -> None:
        task, kind = str(event.get("task")), KINDS.get(event.get("kind", ""))
        self.reported_failure.add(task)
        text = f"{task}: {event['message']}"
        if event.get("consequence") and kind in (None, WaitTimeout):
            helps = " --max-restarts lets a run get over it." if self.rule.uses_ps and not self.rule.recovers else ""
            text += f", and no task is known to have ended: was a machine paused, or its network cut?{helps} "
            text += first_line(self.log_of(task))
        elif kind is None:
            text = f"{task} raised {event.get('kind')}: {first_line(event['message'])}\n{self.log_of(task)}"
        self.root_cause.fail((kind or TaskFailed)(text), final=final)

    def _reason(self, event: Event) -> str:
        """Return the reason why a task was killed, in short."""
        if silence := self.silenced.get(event["task"]):
            return f"silent for {silence:.0f} s"
        if event["task"] in self.terminated:
            return "SIGTERM"
        return signal.Signals(-event["status"]).name

    # The action on each kind of event, by Phase:
    #                REPAIRABLE            TRAINING              FAILING          DONE
    RULES: ClassVar[Mapping[str, tuple[Callable[[Any, Event], None], ...]]] = {
        "blocks":      (_note_blocks,        _note_blocks,         _note_blocks,    _note_blocks),
        "ended":       (_note_end,           _note_end,            _note_end,       _note_end),
        "killed":      (_restart,            _do_without_or_fail,  _fail_for_death, _ignore),
        "failed":      (_restart_or_fail,    _fail_for_code,       _fail_for_code,  _ignore),
        "lost a peer": (_await_restart,      _fail_for_now,        _fail_for_now,   _ignore),
        "error":       (_fail,               _fail,                _fail,           _ignore),
        "silent":      (_kill_silent_worker, _ignore,              _ignore,         _ignore),
        "terminated":  (_note_termination,   _note_termination,    _ignore,         _ignore),
        "ready":       (_note_ready,         _note_ready,          _note_ready,     _note_ready),
        "saving":      (_note_saving,        _note_saving,         _note_saving,    _note_saving),
        "checkpoint":  (_note_saved,         _note_saved,          _note_saved,     _note_saved),
        "warning":     (_note_saved,         _note_saved,          _note_saved,     _note_saved),
        "joined":      (_note_joined,        _note_joined,         _note_joined,    _note_joined),
        "result":      (_finish,             _finish,              _finish,         _finish),
    }  # fmt: skip
