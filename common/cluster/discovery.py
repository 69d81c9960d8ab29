"""Discovery of the task that this program is, in a cluster of several machines: from flags, TF_CONFIG or Slurm.

Each source gives a `TaskSpec`; the task does not depend on the source. All values are checked before TensorFlow reads
them, since TensorFlow ends the process without a helpful message if an index is wrong.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..arguments import nearest
from ..errors import UserError
from .task_spec import Addresses, JobName, TaskSpec

JOBS: tuple[JobName, ...] = ("ps", "worker", "evaluator")

PORTS = range(1, 65536)

OWN_PORTS = range(2**14, 2**15)  # below the ports that systems give out by themselves

# From one Slurm job or step to the next, the ports move by these strides, modulo the range, so that neighbours stay far
# apart: on one node, 120 consecutive jobs of 4 steps with 16 tasks share no port, nor do 75 jobs of 2 steps with 64.
JOB_STRIDE, STEP_STRIDE = 10127, 12939


def task_spec(
    ps_hosts: Sequence[str],
    worker_hosts: Sequence[str],
    job_name: str,
    task_index: int,
    separate_evaluator: bool = False,
) -> TaskSpec:
    """Return the checked `TaskSpec` of one task of a cluster.

    Raises:
        UserError: a value is wrong; the message describes it in one line.
    """
    if job_name not in JOBS:
        raise UserError(f"unknown job {job_name!r}. {nearest(job_name, list(JOBS))}")
    if not worker_hosts:
        raise UserError("a cluster needs at least one worker: --worker_hosts=host:port,...")
    addresses = Addresses(ps=tuple(ps_hosts), worker=tuple(worker_hosts))
    task_at: dict[str, str] = {}
    for job, hosts in addresses.as_dict().items():
        for index, address in enumerate(hosts):
            check_address(address)
            if address in task_at:
                raise UserError(f"two tasks cannot listen at {address}: {task_at[address]} and {job} {index}")
            task_at[address] = f"{job} {index}"
    count = {"ps": len(ps_hosts), "worker": len(worker_hosts), "evaluator": 1}[job_name]
    if not 0 <= task_index < count:
        raise UserError(
            f"the index of a {job_name} must lie between 0 and {count - 1}. Received: {task_index}"
            if count
            else f"this cluster has no {job_name} tasks"
        )
    return TaskSpec(job_name, task_index, addresses, separate_evaluator or job_name == "evaluator")


def check_address(address: Any) -> None:
    """Raise `UserError` unless `address` is `host:port`."""
    host, _, port = str(address).rpartition(":")
    if not host or "/" in host or any(c.isspace() for c in host) or _whole(port) not in PORTS:
        raise UserError(f"an address is host:port, with a port from 1 to 65535. Received: {_short(repr(address))}")


def _whole(text: str) -> int | None:
    """Return the number written in 1 to 9 plain digits; None for any other text, such as a sign or `²`."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _short(text: str) -> str:
    """Return as much of a text as fits into a message."""
    return text if len(text) <= 300 else f"{text[:300]}..."


def split_hosts(text: str) -> list[str]:
    """Return the list of addresses in a text such as `h0:2222,h1:2222`."""
    return [address.strip() for address in text.split(",") if address.strip()]


# TF_CONFIG, as TensorFlow, Kubeflow and others write it. Such systems leave it behind in environments of one machine.

REMEDY = "for a run on this machine: unset TF_CONFIG"


def has_tf_config(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if TF_CONFIG describes a cluster; without one the run is on this machine, as in TensorFlow."""
    return bool(_tf_config(environment).get("cluster"))


def _tf_config(environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        config = json.loads(environment.get("TF_CONFIG") or "{}")
        if not isinstance(config, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        received = _short(repr(environment["TF_CONFIG"]))
        raise UserError(f"TF_CONFIG is not a JSON object ({error}); {REMEDY}. Received: {received}") from None
    return config


def from_tf_config(separate_evaluator: bool = False, environment: Mapping[str, str] = os.environ) -> TaskSpec:
    """Return the task that TF_CONFIG names: the chief is worker 0; the evaluator is not part of TensorFlow's cluster.

    Some systems leave the evaluator out of the cluster that they describe: then set `separate_evaluator`.

    Raises:
        UserError: TF_CONFIG describes no cluster, or a wrong one.
    """
    config = _tf_config(environment)
    try:
        task = _task_of(config, separate_evaluator)
    except UserError as error:
        raise UserError(f"TF_CONFIG: {error}; {REMEDY}") from None
    return replace(task, origin=f"TF_CONFIG makes this program {task} of a cluster; {REMEDY}.")


def _task_of(config: Mapping[str, Any], separate_evaluator: bool) -> TaskSpec:
    """Return the task in the content of TF_CONFIG; raises `UserError`."""
    cluster, task = config.get("cluster"), config.get("task")
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise UserError(
            'it must look like {"cluster": {"chief": ["h:p"], "ps": [...], "worker": [...]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {_short(json.dumps(config))}'
        )
    hosts: dict[str, list[str]] = {}
    for job, addresses in cluster.items():
        if job not in ("chief", "master", *JOBS):
            raise UserError(f"unknown job {job!r} in the cluster. Known: chief, ps, worker, evaluator.")
        if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
            received = _short(repr(addresses))
            raise UserError(f"the addresses of {job} must be a list of host:port. Received: {received}")
        hosts[job] = addresses
    chief = hosts.get("chief", []) + hosts.get("master", [])
    if len(chief) > 1:
        raise UserError(f"a cluster has one chief. Received: {_short(str(chief))}")
    job, index = task.get("type"), _whole(str(task.get("index", 0)))
    if not isinstance(job, str) or index is None:
        raise UserError(f"the task needs a type and an index. Received: {_short(json.dumps(task))}")
    if job in ("chief", "master"):
        if not chief:
            raise UserError(f"this task is the {job}, but the cluster has none")
        if index != 0:
            raise UserError(f"the index of the {job} must be 0. Received: {index}")
        job = "worker"
    elif job == "worker":
        if index >= len(hosts.get("worker", [])):  # before the chief is counted in
            raise UserError(
                f"the index of the worker must lie between 0 and {len(hosts.get('worker', [])) - 1}. Received: {index}"
            )
        index += len(chief)
    workers = chief + hosts.get("worker", [])
    return task_spec(hosts.get("ps", []), workers, job, index, separate_evaluator or bool(hosts.get("evaluator")))


# Starters of other packages.


def other_starter(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return the program that has started several copies of this one, and their number; an empty name for none.

    `torchrun` and `accelerate launch` set RANK and WORLD_SIZE, `mpirun` variables of its own, and `srun` those of a
    step, which the batch script of a job does not have.
    """
    starters = {"torchrun": ("RANK", "WORLD_SIZE"), "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")}
    starters["mpirun"] = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    for starter, (rank, size) in starters.items():
        copies = _whole(environment.get(size, "")) if rank in environment else None
        if copies is not None and copies > 1:
            return starter, copies
    return "", 1


# Slurm.


def from_slurm(ps: int, environment: Mapping[str, str] = os.environ) -> TaskSpec:
    """Return the task of a job step that this is: the first `ps` tasks are parameter servers, the others workers."""
    try:
        rank = int(environment["SLURM_PROCID"])
        tasks = int(environment.get("SLURM_STEP_NUM_TASKS") or environment["SLURM_NTASKS"])
        job, step = int(environment["SLURM_JOB_ID"]), int(environment.get("SLURM_STEP_ID") or 0)
        nodes = expand_nodes(environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"])
        counts = expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE") or environment["SLURM_TASKS_PER_NODE"])
        node = int(environment.get("SLURM_NODEID") or -1)
        reserved = expand_numbers(environment.get("SLURM_STEP_RESV_PORTS") or "")
    except KeyError as error:
        raise UserError(f"{error.args[0]} is not set: start the tasks with srun, inside a Slurm job") from None
    except ValueError as error:
        received = str(error).rpartition(": ")[2]
        raise UserError(
            f"the variables of Slurm must be whole numbers: start the tasks with srun. Received: {_short(received)}"
        ) from None
    if len(counts) != len(nodes) or sum(counts) != tasks or not 0 <= rank < tasks:
        raise UserError(
            f"Slurm's environment contradicts itself: task {rank} of {tasks}, {len(nodes)} nodes with {counts} tasks"
        )
    if not 0 <= ps < tasks:
        raise UserError(f"{tasks} tasks are too few for {ps} ps and a worker: start more tasks, or give fewer --ps")
    where = [(node, i) for node, count in enumerate(counts) for i in range(count)]
    if node not in (-1, where[rank][0]):
        raise UserError("the tasks of the Slurm step are not in blocks on their nodes: add --distribution=block")
    ports = reserved or slurm_ports(job, step, max(counts))
    if len(ports) < max(counts):
        raise UserError(
            f"Slurm has reserved {len(ports)} ports for {max(counts)} tasks on a node: give --resv-ports={max(counts)}"
        )
    addresses = [f"{nodes[node]}:{ports[i]}" for node, i in where]
    job_name, index = ("ps", rank) if rank < ps else ("worker", rank - ps)
    task = task_spec(addresses[:ps], addresses[ps:], job_name, index)
    return replace(task, origin=f"Slurm job {job}, step {step}: {shares(ps, [nodes[node] for node, _ in where])}.")


def shares(ps: int, nodes: list[str]) -> str:
    """Return the jobs of the tasks in words: `task 0 on a is ps 0; tasks 1 to 2 on a to b are workers 0 to 1`."""
    shares: list[str] = []
    for job, first, end in (("ps", 0, ps), ("worker", ps, len(nodes))):
        last, where = end - 1, " to ".join(dict.fromkeys(nodes[first:end][:: max(1, end - first - 1)]))
        if last == first:
            shares.append(f"task {first} on {where} is {job} 0")
        elif last > first:
            plural = job if job == "ps" else f"{job}s"
            shares.append(f"tasks {first} to {last} on {where} are {plural} 0 to {last - first}")
    return "; ".join(shares)


def slurm_ports(job: int, step: int, count: int) -> list[int]:
    """Return the ports of a job step on each node: the same for all its tasks, others for steps of about that time."""
    first = JOB_STRIDE * job + STEP_STRIDE * step
    return [OWN_PORTS[(first + i) % len(OWN_PORTS)] for i in range(count)]


def expand_nodes(text: str) -> list[str]:
    """Return the hosts of Slurm's short form: `a[01-03,7]b,c` is a01b a02b a03b a7b c."""
    nodes: list[str] = []
    for pattern in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", pattern):
            endings = [literal] if literal else _endings(ranges)
            names = [name + ending for name in names for ending in endings]
        nodes += names
    return nodes


def expand_numbers(text: str) -> list[int]:
    """Return the numbers of a list of ranges, perhaps in brackets: `12-13,20` is 12 13 20."""
    return [int(ending) for ending in _endings(text.strip("[]"))] if text else []


def _endings(ranges: str) -> list[str]:
    """Return the numbers of a list of ranges with their leading zeros: `01-03,7` is 01 02 03 7."""
    found: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
    return found


def expand_counts(text: str) -> list[int]:
    """Return the number of tasks of each node, from Slurm's short form: `2(x3),1` is 2 2 2 1."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts


# Commands that start the tasks of a cluster by hand.


def commands(spec: TaskSpec, program: Sequence[str], last: Sequence[str] = ()) -> list[str]:
    """Return the command line of each task, with `last` at its end, after a comment that names its machine."""
    lines: list[str] = []
    flags = [f"--{job}_hosts={','.join(hosts)}" for job, hosts in spec.addresses.as_dict().items()]
    for job, index in spec.all_tasks():
        if job == "evaluator" and not spec.separate_evaluator:
            continue
        host = spec.addresses.of(job, index).rpartition(":")[0] or "any machine that reaches the others"
        evaluator = ["--separate_evaluator"] if spec.separate_evaluator else []
        words = [*program, *flags, *evaluator, f"--job_name={job}", f"--task_index={index}", *last]
        lines += [f"# {job} {index}, on {host}", shlex.join(words)]
    return lines
