"""Several machines in one: network namespaces joined by a bridge, a fork server in each; else loopback."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from conftest import children
from distsgd.common import Cluster
from distsgd.common.cluster.task_spec import Addresses, TaskSpec
from distsgd.common.contract.scheme import Scheme
from distsgd.common.data.models import ModelRecipe
from distsgd.common.kernels import choose
from distsgd.common.launch import client, launcher
from distsgd.common.launch.run import run
from distsgd.common.replay.recorded import RecordedRun
from distsgd.common.tasks.job import describe, make_job
from distsgd.common.tasks.options import Recovery, RunOptions
from runs import DIGITS, patience, recorded_run

# In a new user namespace, where any user may do this: a bridge, and machines joined to it by veth pairs.
NETWORK = """
set -e
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
for i in $(seq "$0"); do
    unshare --net sleep infinity & pid=$!
    until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
    ip link add "veth$i" type veth peer name eth0 netns $pid
    ip link set "veth$i" master bridge up
    nsenter --target $pid --net sh -c "ip link set lo up; ip addr add 10.77.0.$i/24 dev eth0; ip link set eth0 up"
    echo $pid
done
echo $$
read -r _ || true
kill $(jobs -p)
"""
LOSSY_LINK = Path(__file__).with_name("lossy_link.py")
HERE = threading.local()  # the machine that a thread of the tests plays


class Machine:
    """A host with an address, on which programs can be started; it has a warm fork server from its first use."""

    def __init__(self, ip: str, enter: Sequence[str]):
        self.ip, self.enter = ip, list(enter)
        self.ports = itertools.count(2222)
        self.tasks: list[Task] = []
        self.starting = threading.Lock()
        self.boot()

    def boot(self) -> None:
        self.started: client.ForkServer | None = None

    @property
    def server(self) -> client.ForkServer:
        """The fork server; it imports TensorFlow when it starts."""
        with self.starting:
            self.started = self.started or client.ForkServer("off", choose(), [*self.enter, sys.executable])
            return self.started

    def crash(self) -> None:
        """Kill all processes on this machine at once; `boot` makes it usable again."""
        os.kill(self.server.process.pid, signal.SIGKILL)
        self.server.process.wait()

    def tidy(self) -> None:
        """Remove the remains of a failed run."""
        if any(task.thread.is_alive() for task in self.tasks):
            self.crash()
            self.server.close()
            self.boot()
        self.tasks.clear()

    def address(self) -> str:
        """Return an unused address of this machine."""
        if self.enter:
            return f"{self.ip}:{next(self.ports)}"
        with socket.socket() as probe:
            probe.bind((self.ip, 0))
            return f"{self.ip}:{probe.getsockname()[1]}"

    def python(self, code: str, *arguments: str) -> str:
        """Return the output of a Python program that runs on this machine."""
        command = [*self.enter, sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


class Network:
    """Network namespaces joined by a bridge, at 10.77.0.1, 10.77.0.2, ...; `refusal` says why there are none.

    They live in a user namespace of their own, or, where root wants to stay root there, in this one.
    """

    def __init__(self, count: int, *, own_user: bool = True):
        self.entrance = ["--user", "--preserve-credentials"] if own_user else []
        user = ["--user", "--map-root-user"] if own_user else []
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = ["unshare", *user, "--net", "bash", "-c", NETWORK, str(count)]
        self.process = subprocess.Popen(command, text=True, **pipes)
        assert self.process.stdout
        self.pids = list(itertools.islice((line.strip() for line in self.process.stdout), count + 1))
        self.real = len(self.pids) == count + 1
        self.refusal = "" if self.real else self.process.communicate()[1].strip()

    def enter(self, number: int) -> list[str]:
        """Return the prefix of a command that is to run on a machine, or (-1) on the bridge."""
        return ["nsenter", "--target", self.pids[number], "--net", *self.entrance]

    def plug(self, number: int, state: str) -> None:
        """Plug the link of a machine in ("up") or out ("down")."""
        subprocess.run([*self.enter(-1), "ip", "link", "set", f"veth{number + 1}", state], check=True)

    def close(self) -> None:
        if self.real:
            self.process.communicate("\n", timeout=60)


class Machines(list[Machine]):
    """Some machines, and the network between them."""

    def __init__(self, count: int):
        self.network = Network(count)
        self.real, self.refusal, self.plug = self.network.real, self.network.refusal, self.network.plug
        self.extend(map(self._machine, range(count)))

    def _machine(self, number: int) -> Machine:
        if self.real:
            return Machine(f"10.77.0.{number + 1}", self.network.enter(number))
        return Machine("127.0.0.1", [])

    @contextmanager
    def slow_link(self, number: int, *, delay: float, jitter: float, loss: float) -> Iterator[LossyLink]:
        """Give a machine a link on which frames are late or lost: seconds, seconds, and a share."""
        near, far = f"near{number + 1}", f"far{number + 1}"
        outside, inside = (self.network.enter(i) for i in (-1, number))
        address = f"{self[number].ip}/24"
        link = LossyLink([*outside, sys.executable, str(LOSSY_LINK), near, far, *map(str, (delay, jitter, loss))])

        def ip(where: Sequence[str], *commands: str) -> str:
            script = "; ".join(f"ip {command}" for command in commands)
            return subprocess.run([*where, "sh", "-ec", script], check=True, capture_output=True, text=True).stdout

        try:
            if not link.refusal:
                known = json.loads(ip(inside, "-j link show eth0"))[0]["address"]  # to its neighbours
                ip(outside, f"link set {near} master bridge up", f"link set {far} netns {self.network.pids[number]}")
                ip(inside, f"link set {far} address {known}", "addr flush dev eth0", "link set eth0 down")
                ip(inside, f"addr add {address} dev {far}", f"link set {far} up")
            yield link
        finally:
            link.end()
            if not link.refusal:
                ip(inside, f"addr add {address} dev eth0", "link set eth0 up")

    def close(self) -> None:
        for machine in self:
            if machine.started:
                machine.started.close()
        self.network.close()


class LossyLink:
    """A process that carries frames; `refusal` says why it cannot. In the end: how many it has `carried` and `lost`."""

    def __init__(self, command: Sequence[str]):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, **pipes)
        assert self.process.stdout
        made = self.process.stdout.readline()
        self.carried = self.lost = 0
        self.refusal = "" if made else self.process.communicate()[1].strip().splitlines()[-1]

    def end(self) -> None:
        """Carry no more."""
        if not self.refusal:
            self.carried, self.lost = map(int, self.process.communicate("\n", timeout=60)[0].split())


@contextmanager
def machines_with_servers(count: int) -> Iterator[Machines]:
    """Yield so many machines; a run started in a thread that plays one of them takes place on it."""
    everywhere = launcher.fork_server

    @contextmanager
    def on_this_machine(isolation: Any, *rest: Any) -> Iterator[client.ForkServer]:
        machine = getattr(HERE, "machine", None)
        if machine is not None:
            yield machine.server
            return
        with everywhere(isolation, *rest) as server:
            yield server

    with mock.patch.object(launcher, "fork_server", on_this_machine):
        machines = Machines(count)
        try:
            yield machines
        finally:
            machines.close()


class Task:
    """The program of one task, running on its machine in a thread that stands for it."""

    def __init__(self, machine: Machine, scheme: Scheme, spec: TaskSpec, run_dir: Path, **options: Any):
        self.spec, self.run_dir = spec, run_dir
        self.error: BaseException | None = None
        self.result: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.options = {
            "steps": 120,
            "batch_size": 16,
            "seed": 0,
            "hidden": (16,),
            "wait_seconds": patience(60),
            "data": DIGITS.train,
        } | options
        self.thread = threading.Thread(target=self._run, args=(machine, scheme), daemon=True)
        self.thread.start()
        machine.tasks.append(self)

    def _run(self, machine: Machine, scheme: Scheme) -> None:
        HERE.machine = machine
        options = self.options
        self.model = "mlp:hidden=" + "-".join(map(str, options["hidden"]))
        self.recipe = ModelRecipe.named(self.model, (64,), 10, options["seed"])
        hosts = self.spec.addresses
        try:
            cluster = Cluster.at(
                ps_hosts=hosts.ps, worker_hosts=hosts.worker, job_name=self.spec.job, task_index=self.spec.index,
                separate_evaluator=self.spec.separate_evaluator, wait_seconds=options["wait_seconds"],
            )  # fmt: skip
            how = {name: options[name] for name in ("steps", "batch_size", "seed")}
            how |= {"run_dir": self.run_dir, "recovery": Recovery(**options.get("recovery", {}))}
            self.job = make_job(scheme, self.recipe, options["data"], DIGITS.test, cluster, RunOptions(**how))
            log, self.error = run(self.job, describe(self.job, "digits", self.model), verbose=False)
            self.result = log.finish(self.error, picture=False)
        except BaseException as error:  # looked at by the test
            self.error = error

    def end(self, seconds: float = 300) -> BaseException | None:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"{self.spec} has not ended"
        return self.error

    def recorded(self, earlier_step_targets: Sequence[int] = ()) -> RecordedRun:
        """Return the run for a replay, of the task that has evaluated."""
        self.job.earlier_step_targets = earlier_step_targets
        run = recorded_run(self.job, self.run_dir, self.options["hidden"], self.result)
        run.earlier_step_targets = earlier_step_targets
        return run


class Run:
    """A cluster of fresh addresses, a task to a machine."""

    def __init__(self, machines, run_dir, *, ps=1, workers=2, separate_evaluator=False):
        self.machines, self.run_dir, self.evaluator = machines, run_dir, separate_evaluator
        self.options = {}
        self.started = []
        tasks = [("ps", i) for i in range(ps)] + [("worker", k) for k in range(workers)]
        self.on = {task: machines[i % len(machines)] for i, task in enumerate(tasks)}
        at = {task: machine.address() for task, machine in self.on.items()}
        with ThreadPoolExecutor() as pool:  # a task should not wait for a machine that starts
            list(pool.map(lambda machine: machine.server, {id(one): one for one in self.on.values()}.values()))
        self.addresses = Addresses([at["ps", i] for i in range(ps)], [at["worker", k] for k in range(workers)])

    def start(self, scheme, job, index, *, machine=None, addresses=None, run_dir=None, **options):
        spec = TaskSpec(job, index, addresses or self.addresses, self.evaluator)
        machine = machine or self.on.get((job, index)) or self.machines[-1]
        self.started.append(Task(machine, scheme, spec, run_dir or self.run_dir, **{**self.options, **options}))
        return self.started[-1]

    def start_all(self, scheme, **options):
        return {task: self.start(scheme, *task, **options) for task in self.on}

    def version(self):
        """Return the version of the center that was reported last."""
        rows = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        return max(row.get("version", 0) for row in rows)

    def seconds_since_news(self):
        return time.time() - (self.run_dir / "metrics.jsonl").stat().st_mtime

    def trains(self, workers=1):
        """Return True once so many workers have reported; fail if the run has failed."""
        for task in self.started:
            assert task.error is None, task.error
        metrics = self.run_dir / "metrics.jsonl"
        rows = metrics.read_text() if metrics.exists() else ""
        return len(set(re.findall(r'"kind": "worker".*"worker": (\d+)', rows))) >= workers


def task_process(run_dir: Path, name: str) -> int:
    """Return the pid of the task that writes the log of that name below a run directory."""
    for pid in children():
        try:
            log = Path(os.readlink(f"/proc/{pid}/fd/1"))
        except OSError:
            continue
        if log.name == f"{name}.log" and run_dir in log.parents:
            return pid
    raise LookupError(name)
