"""One program started once for each task, on several machines: they meet, train, and end together."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from resting import CutDPSGD, Resting, RestingDPSGD, RestingTogether, RestingUntil

from distsgd.algorithms import SCHEMES, AllReduce, AsyncSGD, Downpour, SyncSGD
from distsgd.common import Cluster, train
from distsgd.common.cli import flags
from distsgd.common.cli.main import dispatch
from distsgd.common.cluster.task_spec import Addresses
from distsgd.common.data.models import ModelRecipe
from distsgd.common.errors import Diverged, TaskFailed, TaskLost, UserError, WaitTimeout
from distsgd.common.launch import sessions
from distsgd.common.record_format import EVENTS
from distsgd.common.replay.replay import replay
from doubles import PausingAsyncSGD
from machines import HERE, Run, machines_with_servers, task_process
from runs import DIGITS, LASTING, patience, wait_until

TOLERANCE = 1e-5
AGAIN = {"max_restarts": 3, "checkpoint_seconds": 0.5}

GARBAGE = """
import os, socket, sys
host, port = sys.argv[1].rsplit(":", 1)
greeting = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"  # of HTTP/2, on which gRPC is built
for noise in (os.urandom(65536), b"GET / HTTP/1.1\\r\\n\\r\\n", greeting + os.urandom(4096), b""):
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        try:
            peer.sendall(noise)
        except OSError:
            pass  # thrown out before the end
print("sent")
"""
LISTEN = "import socket, sys; s = socket.create_server(('', int(sys.argv[1]))); print(1, flush=True); sys.stdin.read()"


def gate(*values):
    return pytest.param(*values, marks=pytest.mark.gate)


def rotating(*values):
    return pytest.param(*values, marks=pytest.mark.rotating)


@pytest.fixture(scope="module")
def four():
    with machines_with_servers(4) as machines:
        yield machines


@pytest.fixture
def machines(four):
    yield four
    for machine in four:
        machine.tidy()


@pytest.mark.gate
def test_a_run_over_several_hosts_replays(machines, tmp_path):
    """Two ps, two workers; the last worker comes first and the first ps last."""
    cluster = Run(machines, tmp_path, ps=2)
    order = [("worker", 1), ("ps", 1), ("worker", 0), ("ps", 0)]
    tasks = {task: cluster.start(Downpour(), *task) for task in order}
    assert [task.end() for task in tasks.values()] == [None] * 4
    chief = tasks["worker", 0]
    assert chief.recorded().error() < TOLERANCE
    assert (chief.result["outcome"], chief.result["steps"], chief.result["network"]) == ("completed", 240, "open")
    assert chief.result["examples_per_second"] > 0
    assert chief.result["test_accuracy"] > 0.5
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {row["worker"] for row in rows if row["kind"] == "worker"} == {0, 1}  # reported over the network
    for name in ("ps-0", "ps-1", "worker-1"):
        assert json.loads((tmp_path / name / "result.json").read_text())["outcome"] == "completed"
        assert (tmp_path / name / "logs" / f"{name}.log").exists()


@pytest.mark.rotating  # each gate has such an evaluator in a run that resumes
def test_a_separate_evaluator_has_the_results_of_a_run_without_a_ps(machines, tmp_path):
    cluster = Run(machines, tmp_path, ps=0, separate_evaluator=True)
    tasks = cluster.start_all(AllReduce())
    evaluator = cluster.start(AllReduce(), "evaluator", 0)
    assert [task.end() for task in (*tasks.values(), evaluator)] == [None] * 3
    assert evaluator.recorded().error() < TOLERANCE
    assert (evaluator.result["updates"], evaluator.result["steps"]) == (120, 240)
    assert (tmp_path / "worker-0" / "result.json").exists()
    assert not (tmp_path / "worker-0" / "model.keras").exists()


@pytest.mark.gate
def test_tasks_that_are_missing_are_named_with_their_addresses(machines, tmp_path):
    cluster = Run(machines, tmp_path, workers=3)
    seconds = patience(8)  # in which ps 0 and worker 1 must find each other
    tasks = [cluster.start(AsyncSGD(), *task, wait_seconds=seconds) for task in [("ps", 0), ("worker", 1)]]
    lonely = Run(machines[2:], tmp_path / "lonely")
    alone = lonely.start(AsyncSGD(), "worker", 0, machine=machines[3], wait_seconds=seconds)
    for task in tasks:
        error = task.end()
        assert isinstance(error, WaitTimeout), error
        zero, _, two = cluster.addresses.worker
        assert f"waited {seconds:g} s for worker 0 at {zero}, worker 2 at {two}, the evaluator" in str(error)
        assert (task.result["outcome"], task.result["exit_code"]) == ("timeout", 5)
    error = alone.end()
    assert isinstance(error, WaitTimeout), error
    assert f"waited {seconds:g} s for ps 0 at {lonely.addresses.ps[0]} (" in str(error)


@pytest.mark.rotating
def test_a_run_continues_after_bad_input_and_foreign_tasks(machines, tmp_path):
    """Garbage, a task with other hyperparameters, one of another cluster, second workers 0 and 1; then a replay."""
    cluster = Run(machines, tmp_path)
    steps, scheme = 480, RestingUntil(file=str(tmp_path / "over"))
    cluster.options = {"steps": steps, "recovery": AGAIN}
    good = [cluster.start(scheme, "ps", 0), cluster.start(scheme, "worker", 0)]
    other = replace(scheme, learning_rate=0.123)
    different = cluster.start(other, "worker", 1, seed=7)
    error = different.end()
    assert isinstance(error, UserError), error
    assert f"worker 1 at {cluster.addresses.worker[1]} does not run the same as the others: " in str(error)
    assert "hyperparameters.learning_rate is 0.123 here and 0.1 at ps 0" in str(error)
    assert "seed is 7 here and 0 at ps 0" in str(error)
    assert "versions" not in str(error)
    assert (different.result["outcome"], different.result["exit_code"]) == ("rejected", 2)

    cluster.started.remove(different)
    (tmp_path / "worker-1").rename(tmp_path / "refused")
    good.append(cluster.start(scheme, "worker", 1))
    wait_until(cluster.trains)
    spare = machines[3]
    for address in (*cluster.addresses.ps, *cluster.addresses.worker):
        assert spare.python(GARBAGE, address) == "sent\n"
    strangers = Addresses(cluster.addresses.ps, [spare.address()])
    stranger = cluster.start(scheme, "worker", 0, machine=spare, addresses=strangers, run_dir=tmp_path / "strange")
    error = stranger.end()
    assert isinstance(error, UserError), error
    assert "addresses.worker is" in str(error)
    second = cluster.start(scheme, "worker", 0, machine=spare)  # in the folder of the first
    error = second.end()
    assert isinstance(error, UserError), error
    assert "another run is under way in" in str(error)
    assert not (tmp_path / "result.json").exists()
    twin = cluster.start(scheme, "worker", 1, machine=spare, run_dir=tmp_path / "twin")
    error = twin.end()
    assert isinstance(error, UserError), error
    assert ("is running already" if machines.real else "cannot listen") in str(error)
    assert good[1].thread.is_alive(), "the run was over before the bad input"
    (tmp_path / "over").touch()

    assert [task.end() for task in good] == [None] * 3
    assert good[1].recorded().error() < TOLERANCE
    assert good[1].result["steps"] == 2 * steps


@pytest.mark.parametrize("how", [rotating("killed"), gate("stopped"), gate("unplugged")])
@pytest.mark.rotating
def test_a_task_that_is_lost_ends_the_run_everywhere_and_is_named(how, machines, tmp_path):
    """A barrier is the harder case: the others are blocked in it."""
    if how == "unplugged" and not machines.real:
        pytest.skip(f"this machine allows no network of its own: {machines.refusal}")
    cluster = Run(machines, tmp_path)
    # Seconds of waiting: a stopped task reports that at once, and a killed task is reported by its program.
    seconds = patience(8) if how == "unplugged" else 10**3
    tasks = cluster.start_all(SyncSGD(), **LASTING, wait_seconds=seconds)
    wait_until(cluster.trains)
    victim = tasks["worker", 1]
    if how == "killed":
        os.kill(task_process(tmp_path, "worker-1"), signal.SIGKILL)
    elif how == "stopped":
        machines[2].server.send(op="stop")
    else:
        machines.plug(2, "down")
    try:
        for task in (tasks["ps", 0], tasks["worker", 0]):
            error = task.end()
            assert isinstance(error, TaskLost | WaitTimeout), error
            assert "worker 1" in str(error)
            assert task.result["exit_code"] in (4, 5)
        error = victim.end()
        if how == "unplugged":
            assert isinstance(error, TaskLost | WaitTimeout), error
        elif how == "killed":
            assert "worker-1 was killed by SIGKILL" in str(error)
    finally:
        if how == "unplugged":
            machines.plug(2, "up")


@pytest.mark.rotating  # each gate has it on one machine, and other faults on several
def test_a_nan_loss_on_one_machine_ends_the_run_on_all_as_diverged(machines, tmp_path):
    tasks = Run(machines, tmp_path).start_all(AsyncSGD(learning_rate=1e38), **LASTING)
    for task in tasks.values():
        error = task.end()
        assert isinstance(error, Diverged), error
        assert re.search(r"became|not finite", str(error))  # whatever comes first, the loss or the message
        assert (task.result["outcome"], task.result["exit_code"]) == ("diverged", 3)


@pytest.mark.rotating
@pytest.mark.parametrize("scheme", [AsyncSGD(), SyncSGD()], ids=lambda s: s.name)
def test_a_slow_and_lossy_network_changes_nothing_but_the_time(scheme, machines, tmp_path):
    if not machines.real:
        pytest.skip(f"this machine allows no network of its own: {machines.refusal}")
    with machines.slow_link(1, delay=0.005, jitter=0.002, loss=0.01) as link:
        if link.refusal:
            pytest.skip(f"this machine allows no link in user space: {link.refusal}")
        tasks = Run(machines, tmp_path).start_all(scheme, steps=60)
        assert [task.end() for task in tasks.values()] == [None] * 3
    assert link.carried > 10 * link.lost > 0
    assert tasks["worker", 0].recorded().error() < TOLERANCE


@pytest.mark.rotating
def test_a_script_that_calls_train_is_started_on_every_machine(machines, tmp_path):
    cluster = Run(machines, tmp_path, workers=1)
    results = {}

    def script(machine, job):
        """The same for both, but for the task, which TF_CONFIG would tell."""
        HERE.machine = machine
        model = ModelRecipe.named("softmax", (64,), 10, 0).build()
        here = Cluster.at(
            ps_hosts=cluster.addresses.ps, worker_hosts=cluster.addresses.worker, job_name=job,
            wait_seconds=patience(30),
        )  # fmt: skip
        before = [np.copy(w) for w in model.get_weights()]
        result = train(
            model, DIGITS.train, AsyncSGD(), cluster=here, steps=20, validation_data=DIGITS.test,
            run_dir=tmp_path / "run", verbose=False,
        )  # fmt: skip
        moved = any(not np.array_equal(a, b) for a, b in zip(before, result.model.get_weights(), strict=True))
        results[job] = here.evaluates, moved, result.metrics["outcome"], result.run_dir.name

    threads = [
        threading.Thread(target=script, args=(machine, job), daemon=True)
        for machine, job in zip(machines, ("ps", "worker"), strict=False)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert results == {
        "ps": (False, False, "completed", "ps-0"),
        "worker": (True, True, "completed", "run"),
    }


@pytest.mark.gate
def test_a_task_whose_port_is_taken_is_refused_with_the_address(machines, tmp_path):
    cluster = Run(machines, tmp_path)
    port = cluster.addresses.ps[0].rpartition(":")[2]
    command = [*machines[0].enter, sys.executable, "-c", LISTEN, port]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "1\n"
        error = cluster.start(AsyncSGD(), "ps", 0, wait_seconds=5).end()
        other.communicate()
    assert isinstance(error, UserError), error
    assert f"ps 0 cannot listen on the port of {cluster.addresses.ps[0]}: is it taken" in str(error)


def test_a_taken_port_in_a_slurm_step_adds_how_to_get_others(monkeypatch):
    def server(*_, **__):
        raise tf.errors.UnknownError(None, None, "Could not start gRPC server")

    monkeypatch.setattr(tf.distribute, "Server", server)
    for step, advice in (("", False), ("0", True)):
        monkeypatch.setenv("SLURM_STEP_ID", step)
        with pytest.raises(UserError, match="ps 0 cannot listen on the port of n1:2222") as refused:
            sessions.start_server(Addresses(["n1:2222"], ["n2:2222"]), "ps", 0, None)
        assert ("Submit the Slurm job again, or reserve ports: srun --resv-ports" in str(refused.value)) == advice


@pytest.mark.rotating
@pytest.mark.parametrize("others", [0, 1])
def test_the_command_line_needs_no_more_than_flags_or_tf_config(others, tmp_path):
    result, ps = by_flags_and_tf_config(tmp_path, "downpour", "--epochs=3", others=others)
    assert (result["outcome"], result["workers"], result["ps"], result["steps"]) == ("completed", 1 + others, 1, 132)
    assert "ps-0: completed" in ps[0]
    assert re.search(r"port \d+, open to any program that can reach it", ps[1])
    assert (tmp_path / "chief" / "model.keras").exists()
    assert replay(tmp_path / "chief", SCHEMES).agrees


@pytest.mark.rotating
def test_a_script_needs_no_more_than_flags_or_tf_config(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    last = [str(script), str(tmp_path), "SyncSGD(learning_rate=0.1)", "AsyncSGD(learning_rate=0.5)"]
    result, _ = by_flags_and_tf_config(tmp_path, "launch", last=last)
    assert (result["outcome"], result["workers"], result["steps"]) == ("completed", 2, 40)
    with np.load(tmp_path / "chief" / "center.npz") as saved:
        np.testing.assert_allclose(saved["center"], np.full(3, 0.5 + 0.5 * 0.9**20), rtol=1e-5)


def by_flags_and_tf_config(folder, *words, last=(), others=1):
    """Start the ps by flags, the chief and the other workers by TF_CONFIG: they cannot tell the difference.

    Returns the result that the chief prints, and both outputs of the ps.
    """
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 + others)]
        ps, chief, *workers = (f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes)
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    cluster = {"chief": [chief], "ps": [ps], "worker": workers}

    def start(*flags, task=None):
        extra = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}})} if task else {}
        command = [sys.executable, "-m", "distsgd.common.cli.main", *words, *flags, *last]
        options = {"cwd": folder, "env": environment | extra, "text": True}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    flags = [f"--ps_hosts={ps}", f"--worker-hosts={','.join([chief, *workers])}", "--job_name=ps", "--task-index=0"]
    programs = [
        *(start(task="worker") for _ in workers), start("--json", "--run-dir=chief", task="chief"), start(*flags),
    ]  # fmt: skip
    outputs = [program.communicate(timeout=400) for program in programs]
    assert not any(program.returncode for program in programs), outputs
    return json.loads(outputs[-2][0].splitlines()[-1]), outputs[-1]


# Coming back.


def survived(chief, workers=2):
    """Return the result of a run that must have survived its faults, replay included."""
    assert chief.recorded().error() < TOLERANCE
    assert chief.result["steps"] == workers * chief.options["steps"]
    return chief.result["recovery"]


@pytest.mark.parametrize(
    ("scheme", "victim"),
    [
        rotating(AsyncSGD(), ("worker", 1)),
        rotating(AsyncSGD(), ("ps", 0)),
        rotating(AsyncSGD(), ("ps", 1)),
        gate(AsyncSGD(), ("worker", 0)),
        rotating(SyncSGD(), ("ps", 0)),
        rotating(SyncSGD(), ("worker", 1)),
    ],
    ids=lambda value: getattr(value, "name", None) or "-".join(map(str, value)),
)
@pytest.mark.rotating
def test_a_killed_task_is_started_again_by_its_program_and_takes_its_place(scheme, victim, machines, tmp_path):
    """ps 0 is where the tasks meet: it comes back with empty tables."""
    cluster = Run(machines, tmp_path, ps=2)
    tasks = cluster.start_all(scheme, steps=300, recovery=AGAIN, wait_seconds=patience(20))
    wait_until(cluster.trains)
    name = "-".join(map(str, victim))
    os.kill(task_process(tmp_path, name), signal.SIGKILL)
    assert [task.end() for task in tasks.values()] == [None] * 4
    recovery = survived(tasks["worker", 0])
    assert recovery["restarts"] == {name: 1}
    if victim[0] == "ps":
        assert len(recovery["restored"]) == 1
    else:  # killed in the middle of its own update, it leaves half of one behind: the state is restored then, too
        assert len(recovery["restored"]) <= 1


@pytest.mark.parametrize(
    ("how", "victim"),
    [
        rotating("crashed", ("worker", 1)),
        gate("crashed", ("ps", 0)),
        rotating("crashed", ("worker", 0)),
        rotating("stopped", ("worker", 1)),
        rotating("stopped", ("ps", 0)),
        rotating("stopped", ("worker", 0)),
    ],
    ids=str,
)
@pytest.mark.rotating
def test_a_machine_that_was_lost_is_back_in_the_run_with_the_same_command(how, victim, machines, tmp_path):
    cluster = Run(machines, tmp_path)
    options = {"steps": 400, "recovery": AGAIN, "wait_seconds": patience(30)}
    tasks = cluster.start_all(AsyncSGD(), **options)
    wait_until(cluster.trains)
    machine = cluster.on[victim]
    if how == "crashed":
        machine.crash()
        assert isinstance(tasks[victim].end(), TaskLost)
        machine.server.close()
        machine.boot()
    else:
        machine.server.send(op="stop")  # SIGTERM, as from Kubernetes: the others wait for it
        assert isinstance(tasks[victim].end(), TaskFailed)
    tasks[victim] = cluster.start(AsyncSGD(), *victim, **options)
    assert [task.end() for task in tasks.values()] == [None] * 3
    recovery = survived(tasks["worker", 0])
    if victim != ("worker", 0):  # the writer of the record has not seen its own end
        assert recovery["restarts"] == {"-".join(map(str, victim)): 1}


@pytest.mark.parametrize("scheme", [gate(Resting()), rotating(RestingTogether())], ids=lambda scheme: scheme.name)
@pytest.mark.rotating
def test_a_run_continues_without_a_lost_machine_if_that_is_allowed(scheme, machines, tmp_path):
    cluster = Run(machines, tmp_path)
    tasks = cluster.start_all(scheme, steps=300, recovery={"min_workers": 1}, wait_seconds=patience(4))
    wait_until(lambda: cluster.trains(workers=2))  # it rests for 20 ms in each round: most of them are still to come
    os.kill(task_process(tmp_path, "worker-1"), signal.SIGKILL)
    assert isinstance(tasks["worker", 1].end(), TaskLost)
    assert [tasks[task].end() for task in (("ps", 0), ("worker", 0))] == [None] * 2
    chief = tasks["worker", 0]
    assert chief.recorded().error() < TOLERANCE
    assert chief.result["recovery"]["evicted"] == [1]


@pytest.mark.parametrize("how", [rotating("killed"), rotating("crashed"), gate("unplugged")])
@pytest.mark.rotating
def test_gossip_continues_without_a_lost_machine(how, machines, tmp_path):
    if how == "unplugged" and not machines.real:
        pytest.skip(f"this machine allows no network of its own: {machines.refusal}")
    cluster = Run(machines, tmp_path, ps=0, workers=3)
    tasks = cluster.start_all(RestingDPSGD(), steps=300, recovery={"min_workers": 2}, wait_seconds=patience(4))
    wait_until(lambda: cluster.trains(workers=3))
    lost = cluster.on["worker", 2]
    if how == "killed":
        os.kill(task_process(tmp_path, "worker-2"), signal.SIGKILL)
    elif how == "crashed":
        lost.crash()
    else:
        machines.plug(2, "down")
    try:
        assert isinstance(tasks["worker", 2].end(), TaskLost | WaitTimeout)
        assert [tasks["worker", k].end() for k in range(2)] == [None] * 2
    finally:
        if how == "crashed":
            lost.server.close()
            lost.boot()
        elif how == "unplugged":
            machines.plug(2, "up")
    chief = tasks["worker", 0]
    assert [entry["worker"] for entry in chief.result["recovery"]["lost_workers"]] == [2]
    assert chief.recorded().error() < TOLERANCE


@pytest.mark.rotating
def test_gossip_ends_at_once_when_too_few_machines_are_left(machines, tmp_path):
    """The workers that are left do not wait for the limit: then the error would be another one."""
    cluster = Run(machines, tmp_path, ps=0, workers=3)
    tasks = cluster.start_all(
        RestingDPSGD(milliseconds=120), steps=480, recovery={"min_workers": 2}, wait_seconds=patience(60)
    )
    wait_until(lambda: cluster.trains(workers=3))
    for k in (1, 2):
        os.kill(task_process(tmp_path, f"worker-{k}"), signal.SIGKILL)
    error = tasks["worker", 0].end()
    assert isinstance(error, TaskLost)
    assert "worker 1, worker 2 lost: fewer workers are left than min_workers=2" in str(error)


@pytest.mark.rotating
def test_a_worker_that_the_others_have_left_out_does_not_end_their_run(machines, tmp_path):
    cluster = Run(machines, tmp_path, ps=0, workers=3)
    tasks = cluster.start_all(CutDPSGD(), steps=120, recovery={"min_workers": 2}, wait_seconds=patience(20))
    assert isinstance(tasks["worker", 2].end(), TaskLost)
    assert [tasks["worker", k].end() for k in range(2)] == [None] * 2
    chief = tasks["worker", 0]
    (lost,) = chief.result["recovery"]["lost_workers"]
    assert (lost["worker"], lost["missed_from"][1]) == (2, 40)
    assert chief.recorded().error() < TOLERANCE


@pytest.mark.rotating
def test_a_worker_that_hangs_is_ended_and_restarted(machines, tmp_path):
    """Its process is there and answers, but sends no messages; its own program cannot know."""
    (tmp_path / "armed").touch()
    cluster = Run(machines, tmp_path / "run")
    scheme = PausingAsyncSGD(folder=str(tmp_path), moment="push")
    tasks = cluster.start_all(scheme, steps=60, recovery=AGAIN, wait_seconds=patience(8))
    wait_until(lambda: (tmp_path / "here").exists() or any(task.error for task in tasks.values()))
    assert [task.error for task in tasks.values()] == [None] * 3
    hanging = task_process(tmp_path / "run", "worker-1")

    def is_another():
        try:
            return task_process(tmp_path / "run", "worker-1") != hanging
        except LookupError:
            return False

    wait_until(is_another)
    (tmp_path / "armed").unlink()
    assert [task.end() for task in tasks.values()] == [None] * 3
    assert survived(tasks["worker", 0])["restarts"] == {"worker-1": 1}


@pytest.mark.rotating
def test_a_machine_that_does_not_come_back_ends_the_run_everywhere(machines, tmp_path):
    """The chief's machine is gone, and the first ps has been started again: its tables name no missing task."""
    cluster = Run(machines, tmp_path)
    tasks = cluster.start_all(AsyncSGD(), **LASTING, recovery=AGAIN, wait_seconds=patience(3))
    wait_until(cluster.trains)
    chief = cluster.on["worker", 0]
    chief.crash()
    os.kill(task_process(tmp_path, "ps-0"), signal.SIGKILL)
    assert isinstance(tasks["worker", 0].end(), TaskLost)
    chief.server.close()
    chief.boot()
    for task in (tasks["ps", 0], tasks["worker", 1]):
        error = task.end()
        assert isinstance(error, TaskLost | WaitTimeout), error
        assert re.search("no word from worker 0|the chief, worker 0, to restore", str(error)), error


@pytest.mark.parametrize("number", [gate(0), rotating(2)], ids=["ps 0", "worker 1"])
@pytest.mark.rotating
def test_a_run_gets_over_a_network_that_was_cut(number, machines, tmp_path):
    if not machines.real:
        pytest.skip(f"this machine allows no network of its own: {machines.refusal}")
    cluster = Run(machines, tmp_path)
    tasks = cluster.start_all(Resting(), steps=480, recovery=AGAIN, wait_seconds=patience(8))
    wait_until(cluster.trains)
    machines.plug(number, "down")
    try:
        if number == 0:
            wait_until(lambda: cluster.seconds_since_news() > 3)
        else:
            seen = cluster.version()
            wait_until(lambda: cluster.version() > seen + 100)
    finally:
        machines.plug(number, "up")
    assert [task.end() for task in tasks.values()] == [None] * 3
    survived(tasks["worker", 0])


@pytest.mark.parametrize(
    ("elsewhere", "separate_evaluator"),
    [rotating(False, False), rotating(False, True), rotating(True, False), gate(True, True)],
    ids=["again, with the chief", "again, of its own", "resume, with the chief", "resume, of its own"],
)
@pytest.mark.rotating
def test_a_run_over_several_machines_resumes_from_its_checkpoint(elsewhere, separate_evaluator, machines, tmp_path):
    """With rounds of five steps, 62 steps end in a round of two, which only the chief's run directory knows."""
    where = tmp_path / "first"
    for steps in (62, 124):
        resume = tmp_path / "first" if elsewhere and steps == 124 else None
        where = tmp_path / "second" if resume else where
        cluster = Run(machines, where, separate_evaluator=separate_evaluator)
        cluster.options = {"steps": steps, "recovery": {"checkpoint_seconds": 0.2, "resume": resume}}
        tasks = cluster.start_all(Downpour())
        if separate_evaluator:
            tasks["evaluator", 0] = cluster.start(Downpour(), "evaluator", 0)
        assert [task.end() for task in tasks.values()] == [None] * len(tasks)
    last = tasks["evaluator", 0] if separate_evaluator else tasks["worker", 0]
    run = last.recorded(earlier_step_targets=[62])
    assert run.error() < TOLERANCE
    assert np.count_nonzero(run.trace["event"] != EVENTS.index("join")) == 2 * (13 + 13)
    assert last.result["recovery"]["resumed_from"] == 26


SCRIPT = """
import os, sys, numpy as np, distsgd
from distsgd.algorithms import *
from pathlib import Path
folder, first, second, ends = Path(sys.argv[1]), eval(sys.argv[2]), eval(sys.argv[3]), len(sys.argv) > 4
w, b = np.ones(3, np.float32), np.zeros((2, 2))
with distsgd.join(first, w) as worker:
    for step in range(20):
        worker.step(w - worker.index)
with distsgd.join(second, b, name="b") as worker:
    for step in range(5):
        worker.step(np.ones((2, 2)), loss=step)
        if (ends, worker.index, step) == (True, 1, 3):
            os._exit(0)
np.savez(folder / f"{worker.index}.npz", w=w, b=b)
"""


def launch_on(machines, folder, *words, ps=1):
    """Run `SCRIPT` with a ps, if any, and two workers on three machines; return the exit code of each task."""
    script, codes, threads = folder / "script.py", {}, []
    script.write_text(SCRIPT)
    at = [machine.address() for machine in machines[:3]]
    own = [f"--ps_hosts={at[2]}"] * ps + [f"--worker_hosts={at[0]},{at[1]}", "--run-dir", str(folder / "run")]
    read, reading = flags.read, threading.Lock()

    def read_alone(*given, **more):
        with reading:  # Python 3.11 parses source wrongly if several threads do so at once
            return read(*given, **more)

    def play(machine, job, index):
        HERE.machine = machine
        name = ["--job_name", job, "--task_index", str(index)]
        codes[job, index] = dispatch(["launch", *own, *name, str(script), str(folder), *words])

    with mock.patch.object(flags, "read", read_alone):
        for machine, task in zip(machines, [("worker", 0), ("worker", 1), *[("ps", 0)] * ps], strict=False):
            threads.append(threading.Thread(target=play, args=(machine, *task), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(patience(120))
    return codes


@pytest.mark.parametrize(
    ("first", "second", "ps"),
    [
        ("SyncSGD(learning_rate=0.1)", "AsyncSGD(learning_rate=0.5)", 1),
        rotating(*["AllReduce(learning_rate=0.1)"] * 2, 0),
    ],
)
@pytest.mark.rotating
def test_a_script_on_several_machines_trains_two_centers(machines, tmp_path, first, second, ps):
    codes = launch_on(machines, tmp_path, first, second, ps=ps)
    assert set(codes.values()) == {0}
    assert len(codes) == 2 + ps
    centers = []
    for k in (0, 1):
        with np.load(tmp_path / f"{k}.npz") as own:
            centers.append([own["w"], own["b"]])
    for w, b in centers:
        np.testing.assert_allclose(w, np.full(3, 0.5 + 0.5 * 0.9**20), rtol=1e-5)
        np.testing.assert_allclose(b, np.full((2, 2), -5.0 if ps else -0.5), rtol=1e-5)
    with np.load(tmp_path / "run" / "b" / "center.npz") as saved:
        np.testing.assert_array_equal(saved["center"], centers[1][1].ravel())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {row["worker"] for row in rows if "b_loss" in row} == {0, 1}  # reported over the network
    later = json.loads((tmp_path / "run" / "b" / "result.json").read_text())
    assert (later["outcome"], later["steps"]) == ("completed", 10)
    assert 0 < later["seconds_training"] < later["seconds_total"]  # on the clock of this machine


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        rotating(["AsyncSGD(learning_rate=0.1 + distsgd.common.launch.launched.Launched.current.index)", "None"], 2,
                 "worker-1: all workers must join with the same algorithm"),
        (["AsyncSGD()", "AsyncSGD()", "ends"], 4, "worker 1 at "),
        rotating(["AllReduce()", "None"], 2, "all_reduce has no ps: leave --ps_hosts out"),
    ],
)  # fmt: skip
@pytest.mark.rotating
def test_a_fault_of_a_script_ends_its_run_on_all_machines(machines, tmp_path, words, code, said):
    codes = launch_on(machines, tmp_path, *words)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (codes["worker", 0], codes["ps", 0]) == (code, code), result
    assert said in result["message"]
    assert codes["worker", 1] > 0


def test_launch_prints_the_command_of_each_machine(tmp_path, capsys):
    script = tmp_path / "x.py"
    script.touch()
    hosts = ["--ps_hosts=a:1", "--worker_hosts=b:1,c:1"]
    assert dispatch(["launch", "--codec", "bf16", *hosts, "--print-commands", str(script), "--rate", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = f"bash run.sh launch --codec bf16 {' '.join(hosts)} --job_name=worker --task_index=1 {script} --rate 3"
    assert (len(lines), lines[5]) == (6, expected)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--separate-evaluator"], "launch has the evaluator beside worker 0"),
        (["--min-workers", "1"], "launch on several machines needs all workers: leave --min-workers out"),
        (["--record", "gradients"], "--record gradients records all steps of a run, on one machine"),
        (["--workers", "5"], "--workers is for runs on this machine; this cluster has 2. Received: 5"),
    ],
)
def test_launch_refuses_flags_on_several_machines(tmp_path, flags, said):
    script = tmp_path / "x.py"
    script.touch()
    hosts = ["--ps_hosts=a:1", "--worker_hosts=b:1,c:1", "--job_name=worker"]
    with pytest.raises(UserError, match=said):
        dispatch(["launch", *hosts, *flags, str(script)])
