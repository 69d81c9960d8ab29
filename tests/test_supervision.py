"""What each event of a run means, by the state that the run is in: without a process, from a script of events."""

import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from distsgd.common.cluster.cluster import PLACEMENTS
from distsgd.common.cluster.restart_rule import RestartRule
from distsgd.common.errors import DistsgdError, Diverged, TaskFailed, TaskLost, WaitTimeout
from distsgd.common.launch import run_state
from distsgd.common.launch import supervisor as supervision
from distsgd.common.waiting import awake

NAMES = [("ps", 0), ("worker", 0), ("worker", 1), ("evaluator", 0)]
TASKS = ["ps-0", "worker-0", "worker-1", "evaluator-0"]
RESULT = {"event": "result", "task": "evaluator-0"}
ALL_NEEDED = RestartRule(uses_ps=True, wait_seconds=10.0)
COLLECTIVE = RestartRule(uses_ps=False, wait_seconds=10.0)
FAR = SimpleNamespace(tasks=list)


def ended(task, status=0):
    return {"event": "exit", "task": task, "status": status}


def killed(task):
    return ended(task, -9)


def error(task, kind, message="it says why", consequence=False):
    return {"event": "error", "task": task, "kind": kind, "message": message, "consequence": consequence}


def lost_peer(task):
    return error(task, "UnavailableError", "it lost its connection", consequence=True)


def silent(worker):
    return {"event": "silent", "worker": worker}


def saving(seconds):
    return {"event": "saving", "task": "worker-0", "version": 7, "seconds": seconds}


class Watched:
    """A run whose events are a script: how it ended, what was asked of the fork server, and what has been said."""

    def __init__(self, *events, names=NAMES, rule=ALL_NEEDED, spec=None, backend="processes", interrupted=bool):
        self.left, self.asked, self.said, self.error = list(events), [], [], None
        process = SimpleNamespace(pid=os.getpid())
        server = SimpleNamespace(process=process, forks=True, receive=self._receive, send=self._send)
        cluster = SimpleNamespace(task=spec, placement=PLACEMENTS[backend])
        self.watch = supervision.Supervision(server, names, cluster, rule, Path("logs"), self.said.append)
        try:
            self.watch.run(interrupted)
        except DistsgdError as error:
            self.error = error
        self.watch.end()

    def _receive(self, seconds):
        del seconds
        return self.left.pop(0) if self.left else None

    def _send(self, **request):
        self.asked.append((request["op"], request.get("tasks") or request.get("task")))

    @property
    def events(self):
        return [event for event in self.said if event["event"] in ("restarted", "not_restarted")]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(run_state, "CAUSE_SECONDS", 0.05)
    for module, name in ((run_state, "LEAVE_SECONDS"), (run_state, "LEAVE_FAR_SECONDS"), (supervision, "STOP_SECONDS"),
                         (supervision, "END_SECONDS")):  # fmt: skip
        monkeypatch.setattr(module, name, 0.0)


def restarts(number, **more):
    return RestartRule(uses_ps=True, wait_seconds=10.0, max_restarts=number, **more)


LOST = (
    "worker-1: it lost its connection, and no task is known to have ended: was a machine paused, or its network cut? "
    "--max-restarts lets a run get over it. Log: logs/worker-1.log"
)
ALL_END = [ended(task) for task in TASKS]


@pytest.mark.parametrize(
    ("events", "kind", "text"),
    [
        ([killed("worker-1")], TaskLost, "worker-1 was killed by SIGKILL. Log: logs/worker-1.log"),
        ([ended("ps-0", 1)], TaskFailed, "ps-0 ended with code 1. Log: logs/ps-0.log"),
        ([error("worker-0", "Diverged"), ended("worker-0", 3)], Diverged, "worker-0: it says why"),
        ([error("worker-0", "KeyError")], TaskFailed, "worker-0 raised KeyError: it says why\nLog: logs/worker-0.log"),
        ([lost_peer("worker-1")], TaskFailed, LOST),
        ([error("worker-1", "WaitTimeout")], WaitTimeout, "worker-1: it says why"),
        # The first failure counts, unless it is a consequence of one that follows.
        ([error("worker-0", "Diverged"), killed("ps-0")], Diverged, "worker-0: it says why"),
        ([ended("worker-0", 1), error("worker-1", "Diverged")], TaskFailed, "worker-0 ended with code 1"),
        ([lost_peer("worker-1"), killed("ps-0")], TaskLost, "ps-0 was killed by SIGKILL"),
        ([lost_peer("worker-1"), error("worker-0", "Diverged")], Diverged, "worker-0: it says why"),
        ([lost_peer("worker-1"), ended("worker-1", 1)], TaskFailed, LOST),
        ([lost_peer("worker-1"), lost_peer("worker-0")], TaskFailed, LOST),
    ],
)
def test_a_failure_ends_the_run_with_its_reason(events, kind, text):
    run = Watched(*events)
    assert type(run.error) is kind
    assert str(run.error).startswith(text)
    assert run.asked == [("kill", None)]


def test_restarts_are_no_advice_where_they_are_used_up():
    run = Watched(killed("worker-1"), None, lost_peer("worker-0"), ended("worker-0", 1), rule=restarts(1))
    assert str(run.error).endswith("or its network cut? Log: logs/worker-0.log")


@pytest.mark.parametrize("late", [killed("worker-1"), ended("ps-0", 1), error("ps-0", "KeyError"), lost_peer("ps-0")])
@pytest.mark.parametrize("number", [0, 3])
def test_a_failure_after_the_result_does_no_harm(late, number):
    run = Watched(RESULT, late, *ALL_END, rule=restarts(number))
    assert (run.error, run.asked, run.events) == (None, [], [])


def test_a_dead_task_is_started_again_while_restarts_are_left():
    run = Watched(killed("worker-1"), None, killed("ps-0"), None, *ALL_END, rule=restarts(2))
    assert run.error is None
    assert run.asked == [("restart", [("worker", 1)]), ("restart", [("ps", 0)])]
    assert run.events == [
        {"event": "restarted", "task": "worker-1", "reason": "SIGKILL", "left": 1},
        {"event": "restarted", "task": "ps-0", "reason": "SIGKILL", "left": 0},
    ]
    run = Watched(killed("worker-1"), None, killed("ps-0"), None, rule=restarts(1))
    assert str(run.error).startswith("ps-0 was killed by SIGKILL")


def test_a_task_that_lost_its_peer_is_restarted_and_a_failed_one_is_not():
    ps_is_lost = [lost_peer("worker-1"), killed("ps-0"), None, ended("worker-1", 1), None]
    run = Watched(*ps_is_lost, *ALL_END, rule=restarts(2))
    assert run.error is None
    assert run.asked == [("restart", [("ps", 0)]), ("restart", [("worker", 1)])]
    assert [event["reason"] for event in run.events] == ["SIGKILL", "it lost its connection"]
    run = Watched(*ps_is_lost, rule=restarts(1))
    assert type(run.error) is TaskFailed
    assert str(run.error).startswith("worker-1 ended with code 1")
    run = Watched(ended("worker-1", 1), rule=restarts(2))
    assert str(run.error).startswith("worker-1 ended with code 1")
    run = Watched(error("worker-1", "KeyError"), ended("worker-1", 1), rule=restarts(2))
    assert (type(run.error), run.asked) == (TaskFailed, [("kill", None)])


def test_a_restart_that_is_due_is_dropped_after_the_result(monkeypatch):
    monkeypatch.setattr(supervision.Supervision, "restart_and_kill", lambda self: None)  # before the first poll
    run = Watched(killed("worker-1"), RESULT, ended("ps-0"), ended("worker-0"), ended("evaluator-0"), rule=restarts(1))
    assert (run.error, run.asked) == (None, [])


@pytest.mark.parametrize(
    ("rule", "names", "backend"),
    [
        (RestartRule(uses_ps=False, wait_seconds=10.0, max_restarts=2), NAMES[1:3], "processes"),
        (restarts(2), [("threads", 0)], "threads"),
    ],
)
def test_a_task_with_nothing_to_resume_from_is_not_restarted(rule, names, backend):
    task = "-".join(map(str, names[0]))
    run = Watched(killed(task), names=names, rule=rule, backend=backend)
    assert type(run.error) is TaskLost
    assert [op for op, _ in run.asked if op == "restart"] == []


def test_one_worker_alone_is_restarted_from_its_checkpoint():
    rule = RestartRule(uses_ps=False, wait_seconds=10.0, alone=True, max_restarts=1)
    run = Watched(killed("worker-0"), None, ended("worker-0"), names=[("worker", 0)], rule=rule)
    assert (run.error, run.asked) == (None, [("restart", [("worker", 0)])])


@pytest.mark.parametrize(("victim", "least", "goes_on"), [("worker-1", 1, True), ("worker-1", 2, False),
                                                          ("worker-0", 1, False), ("ps-0", 1, False)])  # fmt: skip
def test_a_run_continues_without_a_worker_if_enough_remain_and_not_chief(victim, least, goes_on):
    run = Watched(killed(victim), *[e for e in ALL_END if e["task"] != victim], rule=restarts(0, min_workers=least))
    assert (run.error is None) == goes_on
    expected = [{"event": "not_restarted", "task": victim, "reason": "SIGKILL"}]
    assert run.events == (expected if goes_on else [])


def test_gossip_can_do_without_a_worker_only_after_all_workers_were_connected():
    rule = RestartRule(uses_ps=False, wait_seconds=10.0, min_workers=1, loses_without_ps=True)
    ready = [{"event": "ready", "task": task} for task in ("worker-0", "worker-1")]
    ends = [RESULT, *[ended(task) for task in ("worker-0", "evaluator-0")]]
    names = NAMES[1:]
    run = Watched(*ready, killed("worker-1"), *ends, names=names, rule=rule)
    assert (run.error, run.events[0]["task"]) == (None, "worker-1")
    run = Watched(ready[1], killed("worker-1"), *ends, names=names, rule=rule)
    assert "worker-1 was killed by SIGKILL before all workers were connected." in str(run.error)
    assert type(run.error) is TaskLost


def test_a_silent_worker_is_killed_to_be_started_again_once():
    run = Watched(silent(1), killed("worker-1"), None, silent(1), *ALL_END, rule=restarts(2))
    assert run.error is None
    assert run.asked == [("kill", "worker-1"), ("restart", [("worker", 1)])]  # and then it is given some time
    assert Watched(silent(1), *ALL_END).asked == []


@pytest.mark.parametrize("quiet", [True, False])
def test_without_a_ps_workers_that_have_not_complained_are_named(quiet, monkeypatch):
    """With the truth: one that gives signs of life was once said to be silent."""
    workers = [("worker", k) for k in range(3)]
    complaints = [error(f"worker-{k}", "WaitTimeout") for k in (2, 0)]
    known = lambda detector, seconds: {"worker-1": 4.0} if quiet and seconds == supervision.QUIET_SECONDS else {}  # noqa: E731
    monkeypatch.setattr(supervision.FailureDetector, "quiet", known)
    run = Watched(*complaints, names=workers, rule=COLLECTIVE)
    assert type(run.error) is WaitTimeout
    about = "No word from worker-1" if quiet else "worker-1 came too late, and gives signs of life: is it short of CPU?"
    assert str(run.error) == f"worker-2: it says why. {about}"


def test_a_complaint_of_the_evaluator_accuses_no_worker():
    """On a busy machine it waited for worker 0, which built its graph, and all workers were named."""
    names = [("worker", 0), ("worker", 1), ("evaluator", 0)]
    run = Watched(error("evaluator-0", "WaitTimeout"), names=names, rule=COLLECTIVE)
    assert str(run.error) == "evaluator-0: it says why"


@pytest.mark.parametrize("rule", [ALL_NEEDED, COLLECTIVE])
def test_who_waits_for_a_task_that_still_builds_its_graph_hears_that_the_machine_is_busy(rule):
    names = NAMES[1:] if rule is COLLECTIVE else NAMES
    tasks = {f"{name}-{index}": os.getpid() for name, index in names}
    started, late = {"event": "started", "pids": tasks}, error("evaluator-0", "WaitTimeout")
    ready = [{"event": "ready", "task": f"worker-{k}"} for k in range(2)]
    busy = Watched(started, late, names=names, rule=rule).error
    assert str(busy) == f"evaluator-0: it says why. {supervision.STARTING}"
    asks = Watched(started, late | {"message": "is it short of CPU?"}, names=names, rule=rule).error
    assert str(asks) == "evaluator-0: is it short of CPU?"  # a question says what to look for already
    assert str(Watched(started, *ready, late, names=names, rule=rule).error) == "evaluator-0: it says why"


def test_a_task_that_has_ended_counts_as_silent_no_more():
    started = {"event": "started", "pids": {task: os.getpid() for task in TASKS}}
    assert Watched(started, *ALL_END).watch.detector.quiet(-1).keys() == {supervision.FORK_SERVER}


def test_without_a_ps_a_worker_that_was_found_silent_is_named_alone(monkeypatch):
    """The message once named the worker that waited for it, too."""
    workers, found = [("worker", k) for k in range(2)], [{"worker-1": 10.0}]
    monkeypatch.setattr(supervision.FailureDetector, "silent", lambda detector: found.pop() if found else {})
    run = Watched(None, killed("worker-1"), names=workers, rule=COLLECTIVE)
    assert type(run.error) is WaitTimeout
    assert str(run.error).startswith("no word from worker-1 for 10 s: is it stopped? Log: ")
    assert "worker-0" not in str(run.error)


def test_other_machines_hear_of_a_killed_task_unless_it_may_be_restarted():
    def spec(events, rule):
        run = Watched(*events, names=[("worker", 1), ("evaluator", 0)], rule=rule, spec=FAR)
        return [request for request in run.asked if request[0] == "restart"]

    assert spec([killed("evaluator-0")], restarts(0)) == [("restart", [("death_notice", 1)])]
    assert spec([killed("evaluator-0")], restarts(0, min_workers=1)) == []
    assert spec([killed("worker-1"), None, killed("worker-1")], restarts(1)) == [("restart", [("worker", 1)])]


@pytest.mark.parametrize("end", [[], [killed("worker-0")]], ids=["late", "killed"])
def test_a_last_checkpoint_that_is_late_or_lost_is_a_warning(end):
    run = Watched(saving(500 if end else 0.1), RESULT, *end)
    assert [event["message"] for event in run.said if event["event"] == "warning"] == [
        "no checkpoint of version 7: it could not be written to its end"
    ]


# The table by itself.

CALLS = {
    "blocks": {"event": "blocks", "task": "worker-1", "open": 0},
    "ready": {"event": "ready", "task": "worker-1"},
    "ended": ended("worker-1"),
    "killed": killed("worker-1"),
    "failed": ended("worker-1", 1),
    "lost a peer": lost_peer("worker-1"),
    "error": error("worker-1", "Diverged"),
    "silent": silent(1),
    "terminated": {"event": "terminated", "task": "worker-1"},
    "saving": {"event": "saving", "task": "worker-1", "version": 7, "seconds": 1000.0},
    "checkpoint": {"event": "checkpoint", "task": "worker-1", "version": 7},
    "warning": {"event": "warning", "task": "worker-1", "message": "the disk is full", "unsaved": 7},
    "joined": {"event": "joined", "task": "worker-1"},
    "result": RESULT,
}
EFFECTS = {  # of an event in the states REPAIRABLE, TRAINING, FAILING, DONE
    "blocks": ["", "", "Diverged", ""],
    "ready": ["", "", "Diverged", ""],
    "ended": ["", "", "Diverged", ""],
    "killed": ["due", "TaskLost", "Diverged", ""],
    "failed": ["TaskFailed", "TaskFailed", "Diverged", ""],
    "lost a peer": ["awaits", "TaskFailed", "Diverged", ""],
    "error": ["Diverged", "Diverged", "Diverged", ""],
    "silent": ["kill", "", "Diverged", ""],
    "terminated": ["ends", "ends", "Diverged", ""],
    "saving": ["saves", "saves", "Diverged saves", "saves"],
    "checkpoint": ["", "", "Diverged", ""],
    "warning": ["", "", "Diverged", ""],
    "joined": ["", "", "Diverged", ""],
    "result": ["done", "done", "Diverged done", ""],
}


def run_state_of(rule, told=None):
    """Return a new state of a run; what it kills and publishes goes into the list."""
    told = [] if told is None else told
    return run_state.RunState(
        dict(zip(TASKS, NAMES, strict=True)), rule, several_machines=False, in_process=False, kill=told.append,
        publish=told.append, log_of=lambda task: task,
    )  # fmt: skip


@pytest.mark.parametrize("number", range(4), ids=[phase.name for phase in run_state.Phase])
@pytest.mark.parametrize("kind", CALLS)
def test_each_event_has_its_effect_in_each_state(kind, number):
    asked = []
    run = run_state_of(restarts(1 if number == 0 else 0), asked)
    if number == 2:
        run.handle(error("ps-0", "Diverged"))
    elif number == 3:
        run.handle(RESULT)
    assert list(run_state.Phase).index(run.phase) == number
    assert run_state.kind_of(CALLS[kind]) == kind
    run.handle(CALLS[kind])
    effects = {
        type(run.root_cause.failure).__name__: run.root_cause.failure is not None,
        "due": bool(run.restarts.due),
        "awaits": bool(run.awaiting_restart),
        "kill": asked == ["worker-1"],
        "ends": bool(run.terminated),
        "saves": bool(run.saving),
        "done": run.done and number != 3,
    }
    assert " ".join(name for name, is_there in effects.items() if is_there) == EFFECTS[kind][number]


@pytest.mark.parametrize("kind", ["checkpoint", "warning"])
def test_a_last_checkpoint_is_awaited_until_it_is_written_or_cannot_be(kind):
    run = run_state_of(restarts(0))
    run.handle(saving(1000))
    run.handle(CALLS[kind] | {"version" if kind == "checkpoint" else "unsaved": 6})
    assert run.saving
    run.handle(CALLS[kind])
    assert not run.saving


@pytest.mark.parametrize(("far", "how"), [(False, "kill"), (True, "stop")])
def test_a_task_that_alone_receives_sigterm_is_ended_once_and_lost(far, how, monkeypatch):
    monkeypatch.setattr(run_state, "TERMINATED_SECONDS", 0.0)
    spec = SimpleNamespace(tasks=list) if far else None
    run = Watched(CALLS["terminated"], CALLS["ready"], killed("worker-1"), spec=spec)
    assert [op for op, task in run.asked if task == "worker-1"] == [how]
    assert str(run.error).startswith("worker-1 was killed by SIGTERM.")


def test_a_task_that_receives_the_signal_of_its_run_is_left_to_finish(monkeypatch):
    monkeypatch.setattr(run_state, "TERMINATED_SECONDS", 0.0)
    run = Watched(CALLS["terminated"], RESULT, *ALL_END, interrupted=lambda: True)
    assert (run.error, run.asked) == (None, [])


def test_an_interrupted_run_has_a_limited_time_and_its_failures_do_not_count(monkeypatch):
    monkeypatch.setattr(supervision, "INTERRUPTED_SECONDS", 0.0)
    run = Watched(None, killed("worker-1"), error("ps-0", "Diverged"), interrupted=lambda: True)
    assert run.error is None
    assert "kill" in [op for op, _ in run.asked]


def test_a_run_waits_for_its_last_checkpoint_as_long_as_announced():
    run, began = run_state_of(restarts(0), told := []), awake.now()
    run.handle(saving(seconds=500))
    assert run.deadline == math.inf  # the run continues
    run.handle(RESULT)
    assert began + 500 <= run.deadline <= awake.now() + 500
    run.handle(ended("worker-0"))
    assert run.deadline <= awake.now()  # no task is awaited any more
    assert told == []


def test_a_script_that_ends_in_its_block_ends_the_run():
    run = run_state_of(RestartRule(uses_ps=True, wait_seconds=10.0, awaits_workers=True))
    for task, number in [("worker-0", 1), ("worker-0", 0), ("worker-1", 0), ("worker-1", 1)]:
        run.handle({"event": "blocks", "task": task, "open": number})
    run.handle(ended("worker-0"))
    assert run.root_cause.failure is None
    run.handle(RESULT)  # of the first block
    run.handle(ended("worker-1"))
    assert "worker-1: the process of its script ended before the end of the block" in str(run.root_cause.failure)


def test_an_interrupted_script_has_time_for_the_result_and_the_checkpoint_of_each_join():
    """Of two joins the one with the result first has ended the other, which was still on its way to a common round."""
    run, began = run_state_of(RestartRule(uses_ps=True, wait_seconds=10.0, awaits_workers=True)), awake.now()

    def of_critic(event):
        run.handle(event | {"event": "of_later_join", "its": event["event"], "join": "critic"})

    run.handle(CALLS["joined"])
    of_critic(CALLS["joined"])
    run.stop(seconds=25.0)
    run.handle(RESULT)
    assert run.deadline >= began + 25.0
    of_critic(saving(500))
    of_critic(RESULT)
    assert began + 500 <= run.deadline <= awake.now() + 500
    run.handle(CALLS["checkpoint"])  # that of the first join, with the same number
    assert run.saving
    of_critic(CALLS["checkpoint"])
    assert run.deadline <= awake.now() + run_state.LEAVE_SECONDS


def test_every_kind_of_event_of_the_table_is_tested():
    assert run_state.RunState.RULES.keys() == CALLS.keys() == EFFECTS.keys()
