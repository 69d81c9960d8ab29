"""No task waits for ever, nor for a slow subscriber: messages, threads that hand on events, signs of life."""

import itertools
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from distsgd.common import waiting
from distsgd.common.cluster import departure, membership
from distsgd.common.cluster.cluster import Cluster
from distsgd.common.cluster.departure import Departure
from distsgd.common.cluster.failure_detector import POLL_SECONDS, QUIET_SECONDS, FailureDetector
from distsgd.common.cluster.member import Member
from distsgd.common.cluster.restart_rule import RestartRule
from distsgd.common.cluster.task_spec import Addresses, TaskSpec
from distsgd.common.errors import TaskLost, WaitTimeout
from distsgd.common.kernels import choose
from distsgd.common.launch import client, run_state, sessions, task_process, tasks
from distsgd.common.launch import supervisor as supervision
from distsgd.common.launch.channel import FORK_SERVER, PACKET_BYTES, Channel, pair
from distsgd.common.launch.client import ForkServer
from distsgd.common.launch.run_state import pause
from distsgd.common.record import events as subscriber
from distsgd.common.record.events import EventBus, Subscriber
from distsgd.common.tasks import calls, requests, worker_recovery
from distsgd.common.tasks.requests import CommonRequests, WorkerRequests, requests_of
from distsgd.common.tasks.worker_recovery import SideThread, is_done
from distsgd.common.waiting import LOOK_SECONDS, STEP_SECONDS, AwakeClock, reachable
from runs import wait_until


@contextmanager
def listening(count):
    """Yield sockets that listen on this machine."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]


def test_a_task_that_loses_its_connections_before_its_address_is_named(monkeypatch):
    with listening(3) as (ps, *workers):

        def look(host):
            there = reachable(host)
            if host == hosts[0]:
                ps.close()  # a process that was killed lets go of one after the other
            return there

        monkeypatch.setattr(departure, "reachable", look)
        hosts = [f"127.0.0.1:{one.getsockname()[1]}" for one in (ps, *workers)]
        spec = TaskSpec("worker", 1, Addresses(hosts[:1], hosts[1:]))
        rule = RestartRule(uses_ps=True, wait_seconds=60)
        member = Member(spec=spec, task=("worker", 1), identity={}, program="", restarts=rule)
        assert Departure(member, SimpleNamespace()).absent_peers() == f"ps 0 at {hosts[0]}"


# Messages.


@pytest.fixture(params=["packets", "stream"])
def channels(request, monkeypatch):
    """Two ends; the stream is that of macOS, which has no sockets of packets."""
    if request.param == "stream":
        monkeypatch.setattr(socket, "SOCK_SEQPACKET", 99)
    ends = [Channel(end) for end in pair()]
    assert ends[0].is_stream == (request.param == "stream")
    yield ends
    for end in ends:
        end.close()


def received(channel: Channel):
    while (message := channel.receive()) is None:
        pass
    return message


def test_messages_of_any_size_arrive_whole_from_several_senders(channels):
    here, there = channels
    sent = [{"event": str(i), "payload": str(i) * (i * PACKET_BYTES // 2)} for i in range(1, 9)]
    senders = [threading.Thread(target=lambda m=message: there.send(**m), daemon=True) for message in sent]
    for sender in senders:
        sender.start()
    assert sorted((received(here) for _ in sent), key=lambda message: message["event"]) == sent


def server_of(channel: Channel, number: int = 1) -> ForkServer:
    """Build a launcher's end without a process."""
    server = object.__new__(ForkServer)
    server.channel, server.number = channel, number
    server.log, server.log_stays = Path("none.log"), True
    return server


def test_events_of_a_task_of_an_earlier_run_are_ignored(channels):
    here, there = channels
    server = server_of(here, number=2)
    there.send(event="exit", task="worker-0", status=-9, run=1)
    there.send(event="exit", task="worker-0", status=0, run=2)
    event = server.receive(10)
    assert event is not None
    assert event["status"] == 0
    assert server.receive(0) is None


def test_a_fork_server_that_does_not_read_is_an_error_not_an_endless_wait(channels):
    here, _ = channels
    here.socket.settimeout(0.1)
    with pytest.raises(TaskLost, match="takes no requests"):
        server_of(here).send(op="start", tasks=["x" * PACKET_BYTES] * 100)


# Threads that hand on events.


class Held:
    """A handler that does nothing until it is let go."""

    def __init__(self):
        self.go, self.entered, self.seen = threading.Event(), threading.Event(), []

    def __call__(self, event):
        self.entered.set()
        assert self.go.wait(60)
        self.seen.append(event)


def progress(worker: int, steps: int):
    return {"event": "worker", "worker": worker, "steps": steps}


def test_a_slow_subscriber_blocks_no_sender_and_skips_old_progress():
    held = Held()
    slow = Subscriber(held, room=0)
    slow.put({"event": "started"})
    assert held.entered.wait(60)
    for step in range(10_000):
        slow.put(progress(step % 2, step))
        if step % 1000 == 0:
            slow.put({"event": "checkpoint", "version": step})
    assert slow.backlog() == 1 + 2 + 10
    held.go.set()
    assert slow.close(60)
    assert [e["steps"] for e in held.seen if e["event"] == "worker"] == [9998, 9999]
    assert [e["version"] for e in held.seen if e["event"] == "checkpoint"] == list(range(0, 10_000, 1000))


def test_an_event_bus_closes_after_all_subscribers_got_all_events(monkeypatch):
    monkeypatch.setattr(subscriber, "ANNOUNCED_SECONDS", 0.0)
    held, said = Held(), []

    def announce(text):
        said.append(text)
        held.go.set()

    with EventBus(announce) as bus:
        bus.add(held, lambda: "callback Held")
        for step in range(3):
            bus.publish({"event": "center", "version": step})
        bus.publish({"event": "beat"})
    assert [event["version"] for event in held.seen] == [0, 1, 2]
    assert "waiting for callback Held" in said[0]


def test_an_event_bus_waits_for_no_subscriber_after_ctrl_c(monkeypatch):
    monkeypatch.setattr(subscriber, "INTERRUPTED_SECONDS", 0.0)
    held = Held()
    with pytest.raises(KeyboardInterrupt), EventBus(print) as bus:  # noqa: PT012
        bus.add(held, lambda: "held")
        bus.publish({"event": "started"})
        raise KeyboardInterrupt
    held.go.set()


def test_an_idle_subscriber_sends_heartbeats():
    beats = threading.Semaphore(0)
    idle = Subscriber(print, beat=beats.release, beat_seconds=0.001)
    assert beats.acquire(timeout=60)
    assert beats.acquire(timeout=60)
    idle.close(60)


# Signs of life.


class World:
    """A clock, and the CPU time of process 7."""

    def __init__(self):
        self.time = self.used = 0.0
        self.detector = FailureDetector(10, clock=lambda: self.time, cpu=lambda pid: self.used if pid == 7 else None)
        self.detector.expect("ps-0", 7)
        self.detector.expect("worker-0", 8)

    def passes(self, seconds: float, speaking=(), busy=False):
        for _ in range(round(seconds / POLL_SECONDS)):
            self.time += POLL_SECONDS
            self.used += 0.01 * busy
            for name in speaking:
                self.detector.heard(name)
            self.detector.poll()


def test_only_a_task_without_messages_is_silent():
    world = World()
    world.passes(20, speaking=["worker-0", "a stranger"])
    assert world.detector.silent() == {"ps-0": 20}
    world.detector.forget("ps-0")
    assert not world.detector.silent()


def test_a_process_that_uses_the_cpu_is_not_silent():
    world = World()
    world.passes(60, speaking=["worker-0"], busy=True)
    assert not world.detector.quiet(QUIET_SECONDS + POLL_SECONDS)
    world.passes(60, speaking=["worker-0"])
    assert world.detector.quiet(50).keys() == {"ps-0"}


def test_a_suspended_supervisor_suspects_no_task():
    world = World()
    world.time += 10_000
    world.detector.poll()
    assert not world.detector.quiet(POLL_SECONDS)


def test_pauses_before_restarts_of_a_dying_task_grow():
    pauses = [pause(count, 60) for count in range(12)]
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[1:5] == [1, 2, 4, 8]
    assert pauses[-1] == 30
    assert pause(11, 10) == 5  # less than others wait for it


class Script:
    """A fork server that says what it is told to say, and then that it is there."""

    def __init__(self, *events):
        self.events, self.there = list(events), itertools.cycle([{"event": "beat", "task": FORK_SERVER}, None])
        self.process = SimpleNamespace(pid=os.getpid())

    def receive(self, seconds):
        del seconds
        return self.events.pop(0) if self.events else next(self.there)


def supervised(server, names, max_restarts=0):
    rule = RestartRule(uses_ps=True, wait_seconds=10.0, max_restarts=max_restarts)
    run = supervision.Supervision(server, names, Cluster.local(), rule, Path("logs"), lambda event: None)
    run.detector = FailureDetector(10.0, clock=itertools.count().__next__)  # a second for each poll
    return run


def test_restarts_of_a_task_that_keeps_dying_are_apart(monkeypatch):
    monkeypatch.setattr(run_state, "PAUSE_SECONDS", 0.02)
    death = {"event": "exit", "task": "ps-0", "status": -9}
    server = Script()
    times = []

    def send(**request):
        times.append(time.monotonic())
        server.events.append(death)
        assert request == {"op": "restart", "tasks": [("ps", 0)]}

    server.send = send
    server.events.append(death)
    with pytest.raises(TaskLost, match="ps-0 was killed by SIGKILL"):
        supervised(server, [("ps", 0)], max_restarts=4).run()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(gaps) == 3
    assert all(gap >= wanted for gap, wanted in zip(gaps, (0.02, 0.04, 0.08), strict=True))


def test_a_complaint_of_a_wait_is_reported_with_the_silent_task(monkeypatch):
    monkeypatch.setattr(supervision, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(run_state, "CAUSE_SECONDS", 0.0)
    complaint = {
        "event": "error",
        "task": "evaluator-0",
        "kind": "DeadlineExceededError",
        "message": "",
        "consequence": True,
    }
    for event, before in (
        (complaint, "^"),
        ({**complaint, "kind": "WaitTimeout", "message": "waited 1 s for x", "consequence": False}, "for x. "),
    ):
        server = Script({"event": "started", "pids": {"ps-0": 0}}, event)
        run = supervised(server, [("ps", 0)])
        run.detector.quiet = lambda seconds: {"ps-0": 9.0} if seconds == 5.0 else {}
        with pytest.raises(WaitTimeout, match=f"{before}No word from ps-0 for 9 s"):
            run.run()


def test_a_call_that_ends_with_its_peer_is_reported_in_one_line():
    """TensorFlow's error has many lines, and a traceback's: seen where all tasks were suspended for a minute."""
    reports = []
    of = "From /job:ps/replica:0/task:0:\n"
    for raised in (
        tf.errors.AbortedError(None, None, f"Graph execution error:\n\n{of}Step 1 cancelled.  Cancelling rendezvous."),
        tf.errors.InvalidArgumentError(None, None, f"{of}assertion failed: [refused] [1 2 0]"),
        tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded"),
    ):
        task_process.report_error(raised, lambda **event: reports.append(event))
    assert all(event["consequence"] for event in reports)
    assert [event["message"] for event in reports] == [
        "it lost its connection to another task (AbortedError)",
        "a parameter server refused its call (InvalidArgumentError)",
        "another task has not answered a call within the limit of a wait",
    ]


# Processes.


def test_a_fork_server_that_is_stopped_at_its_start_is_given_up(monkeypatch):
    monkeypatch.setattr(client, "START_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"no word from the fork server.* for 1 s"):
        ForkServer("off", choose(), ["sh", "-c", "kill -STOP $$"])
    assert time.monotonic() - began < 60


def test_the_log_that_a_message_names_exists(tmp_path):
    with pytest.raises(TaskLost) as caught:
        ForkServer("off", choose(), ["sh", "-c", "echo no memory; exit 1"], logs=tmp_path)
    assert f"Log: {tmp_path}/{FORK_SERVER}.log\n  | no memory" in str(caught.value)
    assert (tmp_path / f"{FORK_SERVER}.log").exists()
    with pytest.raises(TaskLost) as caught:
        ForkServer("off", choose(), ["sh", "-c", "echo no memory; exit 1"])
    assert "| no memory" in str(caught.value)
    assert tempfile.gettempdir() not in str(caught.value)


FORKS = """
import os, signal, socket, sys
import distsgd.common.launch.forkserver as module
from distsgd.common.launch import task_process
from distsgd.common.launch.channel import Channel
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
signal.alarm(60)
server = module.TaskForker(Channel(theirs))
server.program = {"addresses": server.reserve([]), "logs": "", "path": sys.path, "folder": ""}
server.parts = ()
start = task_process.Start(run=0, job_name="worker", index=0, **server.program)
module.become = lambda *_: signal.pause()  # killed before it has done anything
server.start_tasks([("worker", 0)])
(pid,) = server.tasks
server.kill()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
module.become = task_process.become
server = module.TaskForker(Channel(theirs))
task_process.run_task = lambda *_: os.write(1, b"an orphan ran") and 0
if os.fork() == 0:
    task_process.become(start, server.channel, 1 << 22, tuple)  # the fork server is gone: another is the parent
os.wait()
task_process.run_task = lambda *_: len(os.listdir("/proc/self/fd"))
here = len(os.listdir("/proc/self/fd"))
server.reserve([("worker", k) for k in range(8)])
server.fork(start, ())
there = os.waitstatus_to_exitcode(os.wait()[1])
assert here == there, f"{there} descriptors in the child of a server with {here} and 8 ports"
"""


def test_a_child_joins_its_group_inherits_no_port_and_ends_as_an_orphan():
    command = [sys.executable, "-P", "-c", FORKS]
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=one_thread, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_worker_that_waits_for_the_graph_names_the_evaluator(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "BUILD_SECONDS", 0.0)
    cluster, rule = SimpleNamespace(wait_seconds=0.05), RestartRule(uses_ps=True, wait_seconds=0.05, max_restarts=1)
    job = SimpleNamespace(shared_graph=tmp_path / "none", cluster=cluster, restarts=rule)
    with pytest.raises(WaitTimeout, match=r"waited 0\.15 s for evaluator-0, which builds the graph"):
        tasks._worker_graph(job, 0)


def test_a_session_without_references_is_closed():
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        one = tf.constant(1)
    session = sessions.open_session("", graph, tf.compat.v1.ConfigProto(), 30)
    assert session.run(one) == 1
    there = weakref.ref(session)
    del session
    wait_until(lambda: there() is None)


def test_a_task_is_silent_after_a_wait_and_twice_its_longest_silence():
    """A worker that could send nothing while the ps was away is not silent: it has time from the end of that on."""
    world = World()
    detector = world.detector = FailureDetector(5.0, own_pace=True, clock=lambda: world.time)
    for worker in ("fast", "slow", "new"):
        detector.expect(worker)
    for _ in range(3):
        world.passes(3, speaking=["fast"])
        world.passes(3, speaking=["fast", "slow"])
    assert detector.gaps == {"fast": 1, "slow": 4}
    world.passes(8)
    assert detector.silent() == {"fast": 9}
    assert not detector.complain("fast")
    assert not detector.silent()  # it has as long again
    world.passes(4)
    assert not detector.silent()
    world.passes(1)
    assert detector.silent() == {"slow": 14}
    world.passes(1)
    assert detector.silent() == {"fast": 15, "slow": 15}
    assert detector.complain("fast")
    world.passes(23)
    assert detector.silent().keys() == {"fast", "slow"}
    for worker in ("fast", "slow", "new"):
        detector.expect(worker)
    world.passes(7)
    assert not detector.silent()
    world.passes(1)
    assert detector.silent() == {"fast": 8}
    world.passes(48)
    assert detector.silent() == {"fast": 56, "slow": 56, "new": 56}


def test_the_first_machine_ends_the_run_if_the_heartbeat_of_one_stops():
    time_, numbers, ended = [0.0], {0: 0, 1: 0}, []
    watch = object.__new__(membership.Heartbeat)
    tasks, rule = [("ps", 0), ("worker", 0), ("worker", 1)], RestartRule(uses_ps=True, wait_seconds=10.0)
    watch.member = SimpleNamespace(tasks=tasks, restarts=rule, patience_seconds=10.0, named=lambda key: f"task {key}")
    watch.detector, watch.numbers = FailureDetector(10.0, clock=lambda: time_[0]), {}
    watch.rendezvous = SimpleNamespace(heartbeats=lambda: numbers.items())
    watch.departure = SimpleNamespace(conclude=lambda rendezvous, error, task: ended.append((str(error), task)))
    watch.all_arrived = False
    for second in range(1, 40):
        time_[0] += 1
        numbers |= {0: second, 1: min(second, 20)}
        watch.all_arrived = second > 25  # task 2 has registered then, and is never heard of
        watch._look_for_the_silent()
        assert not ended or second == 31
        if ended:
            break
    assert ended == [("no word from task 1 for 10 s", ("worker", 0))]
    time_[0] += 1
    for _ in range(8):
        time_[0] += 1
        numbers[1] += 1
        watch._look_for_the_silent()
    assert ended[-1] == ("no word from task 2 for 10 s", ("worker", 1))


def test_each_call_of_a_side_thread_has_its_own_answer():
    side, before = SideThread(), set(threading.enumerate())
    assert is_done(first := side.begin(lambda: 1), 60)
    go = threading.Event()
    held = side.begin(lambda: go.wait(60))
    assert not is_done(held, 0)
    assert is_done(second := side.begin(lambda: 2), 60)
    with pytest.raises(ZeroDivisionError):
        is_done(side.begin(lambda: 1 // 0), 60)
    go.set()
    assert is_done(held, 60)
    assert [first.result(), second.result(), held.result()] == [1, 2, True]
    own = set(threading.enumerate()) - before
    side.close()
    wait_until(lambda: not any(thread.is_alive() for thread in own))


# Suspended tasks: a wait does not count time in which the waiting task did not run itself.


class Suspended:
    """A clock set by hand, on which a process that sleeps misses all its looks."""

    def __init__(self, monkeypatch, *modules):
        self.time = 0.0
        self.awake = AwakeClock(lambda: self.time)
        self.awake._threads.append(threading.main_thread())  # as if a thread looked
        for module in modules:
            monkeypatch.setattr(module, "awake", self.awake)

    def runs(self, seconds):
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.time += LOOK_SECONDS
            self.awake.look()

    def sleeps(self, seconds):
        self.time += seconds


def test_the_clock_of_limits_stands_while_its_process_is_suspended(monkeypatch):
    world = Suspended(monkeypatch)
    world.runs(10)
    assert world.awake.now() == 10
    world.sleeps(3600)
    assert world.awake.now() == 10 + STEP_SECONDS  # also before the clock's own thread wakes
    world.runs(5)
    assert world.awake.now() == 15 + STEP_SECONDS - LOOK_SECONDS


def test_without_a_thread_the_clock_of_limits_is_an_ordinary_one():
    time_ = [0.0]
    clock = AwakeClock(lambda: time_[0])
    time_[0] = 100.0
    assert clock.now() == 100
    with clock.looking():
        time_[0] = 1000.0
        assert clock.now() in (100 + STEP_SECONDS, 100 + 2 * STEP_SECONDS)  # with one look or without
    before = clock.now()
    time_[0] += 60
    assert clock.now() == before + 60


@pytest.mark.parametrize("asleep", [True, False])
def test_a_poll_has_its_whole_limit_after_its_task_was_suspended(asleep, monkeypatch):
    world, polls = Suspended(monkeypatch, waiting), itertools.count(1)
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: (world.sleeps if asleep else world.runs)(30))
    wait = partial(waiting.wait_until, lambda: next(polls) > 4, 20, lambda: "the ps")
    if asleep:
        wait()
    else:
        with pytest.raises(WaitTimeout, match=r"^waited 20 s for the ps$"):
            wait()


@pytest.mark.parametrize("asleep", [True, False])
@pytest.mark.parametrize("name", ["version", "_join"])
def test_a_request_in_which_its_task_was_suspended_is_made_again(name, asleep, monkeypatch):
    """TensorFlow's own limit is over when the task wakes up; what must not come twice is not repeated."""
    import tensorflow as tf

    world, limits = Suspended(monkeypatch, calls), []

    def run(fetches, feeds, options):
        limits.append(options.timeout_in_ms)
        if len(limits) == 1:
            (world.sleeps if asleep else world.runs)(60)
            raise tf.errors.DeadlineExceededError(None, None, "over")
        return [7]

    request = requests_of(CommonRequests, WorkerRequests)[name]
    graph = SimpleNamespace(operations={name: requests.Operation(0)})
    made = partial(calls.Calls(SimpleNamespace(run=run), graph, 60.0).make, request)
    if asleep and name == "version":
        assert made() == 7
        assert limits == [60_000, 1000 * (60 - STEP_SECONDS)]
    else:
        with pytest.raises(tf.errors.DeadlineExceededError):
            made()


@pytest.mark.parametrize("asleep", [True, False])
def test_a_round_in_which_its_worker_was_suspended_is_not_late(asleep, monkeypatch):
    """Its call is not cancelled: in the middle of an update that would spoil the center."""
    world = Suspended(monkeypatch, worker_recovery)
    late = WaitTimeout("worker 0 waited 20 s at the barrier for worker 1")
    sync = SimpleNamespace(uses_ps=False)
    worker = SimpleNamespace(
        index=0, graph=SimpleNamespace(sync=sync, sees_waiting=False), limit=20.0, too_late=lambda: late
    )
    looks, done = itertools.count(), threading.Event()

    def is_done_(future, seconds):
        if next(looks) == 3:
            done.set()
            return is_done(future, 60)
        (world.sleeps if asleep else world.runs)(30)
        return False

    monkeypatch.setattr(worker_recovery, "is_done", is_done_)
    wait = worker_recovery.BarrierWait(worker, RestartRule(uses_ps=False, wait_seconds=20), lambda **event: None)
    if asleep:
        assert wait.later(lambda: done.wait(60)) is True
    else:
        with pytest.raises(WaitTimeout) as caught:
            wait.later(lambda: done.wait(60))
        assert caught.value is late
        done.set()


def test_no_limit_is_on_a_clock_that_runs_while_its_task_is_suspended():
    code = "".join(path.read_text() for path in (Path(waiting.__file__).parent).rglob("*.py"))
    assert not re.findall(r"(?:deadline|news|failing) = .*time\.monotonic\(\).*", code)
