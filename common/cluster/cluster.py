"""The description of a cluster: the number of tasks of each job, their processes, addresses and devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from ..arguments import CheckedCall, at_least, at_most, check_known, checked_call, positive
from ..errors import UserError
from ..lazy import tf
from .platform import Platform
from .task_spec import JobName, TaskSpec

Isolation = Literal["auto", "require", "off"]

MOST_TASKS = 1000  # of a job

OF_WORKER = "DISTSGD_GPUS_OF_WORKER"  # an environment variable of the evaluator: the number of GPUs of each worker

MOST_SIMULATED = 100_000  # workers

BackendName = Literal["processes", "threads", "simulation"]


@dataclass(frozen=True)
class Placement:
    """The placement of the tasks of a run: a process for each, here or on several machines, or one process for all.

    Attributes:
        all_in: the only task, if one process has all tasks, by its name in `launch/tasks.py:TASKS`.
        module: the module of a back end outside of common/, by its name in the package `distsgd`: its machines are
            described, and their time is virtual.
    """

    all_in: str = ""
    module: str = ""

    @property
    def simulated(self) -> bool:
        """True if the machines are described, and their time is virtual."""
        return bool(self.module)

    @property
    def back_end(self) -> Any:
        """The module of a back end outside of common/, imported at its first use."""
        return import_module(f"...{self.module}", __package__)

    @property
    def in_process(self) -> bool:
        """True if one process has all tasks, on one session: no message travels, and no task is lost alone."""
        return bool(self.all_in)

    def tasks(self, ps: int, workers: int) -> list[tuple[str, int]]:
        """Return the tasks that the launcher starts for these numbers of ps tasks (0: no ps) and workers."""
        if self.all_in:
            return [(self.all_in, 0)]
        return [*(("ps", i) for i in range(ps)), *(("worker", k) for k in range(workers)), ("evaluator", 0)]

    def ps_devices(self, ps: int) -> list[str]:
        """Return the device of each ps task; without a ps, the device of worker 0 for the bookkeeping variables."""
        if self.all_in:
            return ["/device:CPU:0"] * max(1, ps)
        return [f"/job:ps/task:{i}/device:CPU:0" for i in range(ps)] or ["/job:worker/task:0/device:CPU:0"]

    def worker_device(self, index: int) -> str:
        """Return the device of a worker's variables and arithmetic; TensorFlow chooses CPU or GPU on it."""
        return "" if self.all_in else f"/job:worker/task:{index}"


PLACEMENTS: dict[str, Placement] = {
    "processes": Placement(),
    "threads": Placement("threads"),
    "simulation": Placement("simulation", module="simulator.back_end"),
}


def compute_devices(worker: str, number: int, first: int = 0) -> list[str]:
    """Return the devices that share the batches of a worker: GPUs in turn, or as many logical CPU devices.

    A worker that is alone in its task uses the GPUs of the task; for a single device, TensorFlow chooses it.

    Args:
        worker: device of the worker's task; empty in a process that has all workers.
        number: number of the worker's devices.
        first: number of GPUs that the workers before it in the same process use.
    """
    if number == 1 and worker:
        return [worker]
    given_count = os.environ.get(OF_WORKER)
    gpus = int(given_count) if given_count else len(tf.config.list_physical_devices("GPU"))
    if gpus:
        return [f"{worker}/device:GPU:{(first + i) % gpus}" for i in range(number)]
    return [f"{worker}/device:CPU:{i}" for i in range(number)] if number > 1 else [worker]


@dataclass(frozen=True, kw_only=True)
class Cluster(CheckedCall):
    """A description of the machines and processes of a run.

    `Cluster.local(...)` runs all tasks on this machine. `Cluster.at(...)`, `Cluster.from_tf_config()`,
    `Cluster.from_slurm()` and `Cluster.from_torchrun()` describe one task of several machines, on each of which the
    same program is started.

    Attributes:
        workers: number of worker tasks.
        ps: number of parameter server tasks.
        backend: "processes" (a process for each task), "threads" (one process, a thread for each worker) or
            "simulation" (one process, virtual time).
        isolation: private network for local processes: "auto" (where the kernel allows), "require" or "off".
        wait_seconds: seconds that a task waits for others before it gives up and names them.
        devices_per_worker: number of devices that share the batches of a worker; default: the algorithm's own number.
        task: the task of several machines that this program is; None if all tasks are started here.
        platform: the machines of a simulation; default: `Platform()`.
    """

    workers: int = 2
    ps: int = 1
    backend: BackendName = "processes"
    isolation: Isolation = "auto"
    wait_seconds: float = 60.0
    devices_per_worker: int | None = None
    task: TaskSpec | None = None
    platform: Platform | None = None

    def __post_init__(self):
        at_least(1, workers=self.workers, ps=self.ps)
        if self.devices_per_worker is not None:
            at_least(1, devices_per_worker=self.devices_per_worker)
        positive(wait_seconds=self.wait_seconds)
        check_known("backend", self.backend, known=PLACEMENTS)
        check_known("isolation", self.isolation, known=["auto", "require", "off"])
        simulated = self.placement.simulated
        at_most(MOST_SIMULATED if simulated else MOST_TASKS, workers=self.workers)
        at_most(MOST_TASKS, ps=self.ps)
        if self.platform is not None and not simulated:
            raise UserError(
                "machines are described for a simulation alone: give backend='simulation' too, or leave them out. "
                f"Received: backend={self.backend!r}, {self.platform}"
            )

    @classmethod
    @checked_call
    def local(
        cls,
        workers: int = 2,
        *,
        ps: int = 1,
        backend: BackendName = "processes",
        isolation: Isolation = "auto",
        wait_seconds: float = 60.0,
        devices_per_worker: int | None = None,
        platform: Platform | None = None,
    ) -> Cluster:
        """Return a cluster on this machine, or one that is simulated here.

        Example:
            >>> Cluster.local(workers=4, ps=2, backend="threads").workers
            4
            >>> Cluster.local(workers=1000, backend="simulation", platform=Platform(step_ms=20)).workers
            1000
        """
        return cls(
            workers=workers,
            ps=ps,
            backend=backend,
            isolation=isolation,
            wait_seconds=wait_seconds,
            devices_per_worker=devices_per_worker,
            platform=platform,
        )

    @classmethod
    @checked_call
    def at(
        cls,
        *,
        worker_hosts: Sequence[str],
        job_name: JobName,
        ps_hosts: Sequence[str] = (),
        task_index: int = 0,
        separate_evaluator: bool = False,
        wait_seconds: float = 60.0,
        devices_per_worker: int | None = None,
    ) -> Cluster:
        """Return one task of several machines, given the addresses (`host:port`) of all, its job and its index.

        Example:
            >>> hosts = {"ps_hosts": ["a:2222"], "worker_hosts": ["b:2222", "c:2222"]}
            >>> Cluster.at(**hosts, job_name="worker", task_index=1).is_chief  # on machine c
            False
        """
        from .discovery import task_spec

        task = task_spec(ps_hosts, worker_hosts, job_name, task_index, separate_evaluator)
        return cls._placed(task, wait_seconds, devices_per_worker)

    @classmethod
    @checked_call
    def from_tf_config(
        cls, *, separate_evaluator: bool = False, wait_seconds: float = 60.0, devices_per_worker: int | None = None
    ) -> Cluster:
        """Return the task of several machines that the environment variable TF_CONFIG describes.

        Set `separate_evaluator` only for an evaluator task that TF_CONFIG leaves out of the cluster.

        Example:
            >>> import json, os
            >>> hosts = {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222"]}
            >>> os.environ["TF_CONFIG"] = json.dumps({"cluster": hosts, "task": {"type": "chief", "index": 0}})
            >>> Cluster.from_tf_config().workers  # the chief is one of them
            2
        """
        from .discovery import from_tf_config

        return cls._placed(from_tf_config(separate_evaluator), wait_seconds, devices_per_worker)

    @classmethod
    @checked_call
    def from_slurm(cls, *, ps: int = 1, wait_seconds: float = 60.0, devices_per_worker: int | None = None) -> Cluster:
        """Return one task of a Slurm job step: the first `ps` tasks are parameter servers, the others workers.

        Example:
            >>> cluster = Cluster.from_slurm(ps=1)  # in a script that `srun` starts
            >>> cluster.workers  # of 5 tasks
            4
        """
        from .discovery import from_slurm

        return cls._placed(from_slurm(ps), wait_seconds, devices_per_worker)

    @classmethod
    @checked_call
    def from_torchrun(
        cls, *, ps: int = 1, wait_seconds: float = 60.0, devices_per_worker: int | None = None
    ) -> Cluster:
        """Return one task of those of `torchrun`: the first `ps` tasks are parameter servers, the others workers.

        Example:
            >>> cluster = Cluster.from_torchrun(ps=1)  # in a script that `torchrun --nproc-per-node 5` starts
            >>> cluster.workers
            4
        """
        from .torchrun import from_torchrun

        return cls._placed(from_torchrun(ps, wait_seconds), wait_seconds, devices_per_worker)

    @classmethod
    def _placed(cls, task: TaskSpec, wait_seconds: float, devices_per_worker: int | None) -> Cluster:
        return cls(
            workers=len(task.addresses.worker),
            ps=max(1, len(task.addresses.ps)),
            isolation="off",  # the tasks on other machines must reach this one
            wait_seconds=wait_seconds,
            devices_per_worker=devices_per_worker,
            task=task,
        )

    @property
    def placement(self) -> Placement:
        """The placement of the tasks in processes and on devices."""
        return PLACEMENTS[self.backend]

    @property
    def simulated(self) -> Platform | None:
        """The machines of a simulation; None for a real run."""
        return (self.platform or Platform()) if self.placement.simulated else None

    @property
    def evaluates(self) -> bool:
        """True if results are written here: in a local run, on the chief's machine, or in the evaluator task."""
        return self.task is None or self.task.evaluates

    @property
    def is_chief(self) -> bool:
        """True if worker 0 runs here."""
        return self.task is None or self.task.is_chief

    @property
    def workers_here(self) -> int:
        """Number of workers that share the cores of this machine."""
        return self.workers if self.task is None else 1
