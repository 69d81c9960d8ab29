"""Clusters: how many tasks of which job there are, where they listen, and what their devices are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from .errors import UserError, at_least, at_most, positive
from .spec import nearest

Backend = Literal["processes", "threads"]
Isolation = Literal["auto", "require", "off"]
JobName = Literal["ps", "worker", "evaluator"]
CHIEF_TASK = ("worker", 0)
MOST_TASKS = 1000  # of a job


@dataclass(frozen=True)
class Addresses:
    """Where every task listens: `host:port` by job and index."""

    ps: Sequence[str]
    worker: Sequence[str]

    def as_dict(self) -> dict[str, list[str]]:
        """As `tf.train.ClusterSpec` takes it; a job without tasks is left out."""
        return {job: list(hosts) for job, hosts in (("ps", self.ps), ("worker", self.worker)) if hosts}

    def of(self, job: str, index: int) -> str:
        """The address of a task; the evaluator has none, it does not listen."""
        return self.as_dict()[job][index] if job in ("ps", "worker") else ""


@dataclass(frozen=True)
class Place:
    """Which task of a cluster of several machines this program is.

    Attributes:
        job: "ps", "worker" or "evaluator".
        index: which one of them; worker 0 is the chief.
        addresses: of all tasks.
        separate_evaluator: the evaluator is a task of its own; otherwise the chief's program runs it too.
        origin: for people: who has given the tasks their places, and which to whom; empty if they were given by hand.
    """

    job: JobName
    index: int
    addresses: Addresses
    separate_evaluator: bool = False
    origin: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.job}-{self.index}"

    @property
    def evaluates(self) -> bool:
        """True if the evaluator runs here, and so the results are written here."""
        return self.job == "evaluator" if self.separate_evaluator else self.is_chief

    @property
    def is_chief(self) -> bool:
        """True if this is worker 0, which makes and saves the global state."""
        return (self.job, self.index) == CHIEF_TASK

    def tasks(self) -> list[tuple[str, int]]:
        """The tasks that this program runs."""
        beside = [("evaluator", 0)] if self.evaluates and self.job != "evaluator" else []
        return [(self.job, self.index), *beside]

    def all_tasks(self) -> list[tuple[str, int]]:
        """The tasks of the whole cluster; the others meet at the first."""
        listening = [(job, i) for job, hosts in self.addresses.as_dict().items() for i in range(len(hosts))]
        return [*listening, ("evaluator", 0)]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A description of where a run takes place.

    `Cluster.local(...)` is all on this machine. `Cluster.at(...)`, `Cluster.from_tf_config()` and
    `Cluster.from_slurm()` are one task of several machines, on each of which the same program is started.

    Attributes:
        workers: worker tasks.
        ps: parameter server tasks.
        backend: "processes" (a process for each task) or "threads" (one process, a thread for each worker).
        isolation: private network for local processes: "auto" (where the kernel allows), "require" or "off".
        wait_seconds: how long a task waits for others before it gives up and names them.
        towers: devices of each worker that share its batches; as many as the algorithm likes if not given.
        place: which task of several machines this program is; None if all tasks are started here.
    """

    workers: int = 2
    ps: int = 1
    backend: Backend = "processes"
    isolation: Isolation = "auto"
    wait_seconds: float = 60.0
    towers: int | None = None
    place: Place | None = None

    def __post_init__(self):
        at_least(1, workers=self.workers, ps=self.ps, **({} if self.towers is None else {"towers": self.towers}))
        at_most(MOST_TASKS, workers=self.workers, ps=self.ps)
        positive(wait_seconds=self.wait_seconds)
        for name, value, known in (
            ("backend", self.backend, ["processes", "threads"]),
            ("isolation", self.isolation, ["auto", "require", "off"]),
        ):
            if value not in known:
                raise UserError(f"unknown {name} {value!r}. {nearest(value, known)}")

    @classmethod
    def local(
        cls,
        workers: int = 2,
        *,
        ps: int = 1,
        backend: Backend = "processes",
        isolation: Isolation = "auto",
        wait_seconds: float = 60.0,
        towers: int | None = None,
    ) -> Cluster:
        """A cluster on this machine."""
        return cls(
            workers=workers, ps=ps, backend=backend, isolation=isolation, wait_seconds=wait_seconds, towers=towers
        )

    @classmethod
    def at(
        cls,
        *,
        worker_hosts: Sequence[str],
        job_name: JobName,
        ps_hosts: Sequence[str] = (),
        task_index: int = 0,
        separate_evaluator: bool = False,
        wait_seconds: float = 60.0,
        towers: int | None = None,
    ) -> Cluster:
        """One task of several machines, given the addresses (`host:port`) of all and which one this is."""
        from .roles import place

        here = place(ps_hosts, worker_hosts, job_name, task_index, separate_evaluator)
        return cls._placed(here, wait_seconds, towers)

    @classmethod
    def from_tf_config(
        cls, *, separate_evaluator: bool = False, wait_seconds: float = 60.0, towers: int | None = None
    ) -> Cluster:
        """One task of several machines, as the environment variable TF_CONFIG says.

        `separate_evaluator` is needed only if there is an evaluator task that TF_CONFIG leaves out of the cluster.
        """
        from .roles import from_tf_config

        return cls._placed(from_tf_config(separate_evaluator), wait_seconds, towers)

    @classmethod
    def from_slurm(cls, *, ps: int = 1, wait_seconds: float = 60.0, towers: int | None = None) -> Cluster:
        """One task of a Slurm job step: the first `ps` tasks are parameter servers, the others workers."""
        from .roles import from_slurm

        return cls._placed(from_slurm(ps), wait_seconds, towers)

    @classmethod
    def _placed(cls, here: Place, wait_seconds: float, towers: int | None) -> Cluster:
        return cls(
            workers=len(here.addresses.worker),
            ps=max(1, len(here.addresses.ps)),
            isolation="off",  # others must reach it
            wait_seconds=wait_seconds,
            towers=towers,
            place=here,
        )

    @property
    def evaluates(self) -> bool:
        """True if results are written here: in a local run, on the chief's machine, or in the evaluator task."""
        return self.place is None or self.place.evaluates

    @property
    def is_chief(self) -> bool:
        """True if worker 0 runs here."""
        return self.place is None or self.place.is_chief

    @property
    def workers_here(self) -> int:
        """Workers that share the cores of this machine."""
        return self.workers if self.place is None else 1


def ps_devices(cluster: Cluster, uses_ps: bool) -> list[str]:
    """The device of each slice of the center; without a ps worker 0 has it whole."""
    if cluster.backend == "threads":
        return ["/device:CPU:0"] * (cluster.ps if uses_ps else 1)
    if not uses_ps:
        return ["/job:worker/task:0"]
    return [f"/job:ps/task:{i}/device:CPU:0" for i in range(cluster.ps)]


def worker_device(cluster: Cluster, index: int) -> str:
    """The device of a worker's variables and arithmetic; TensorFlow chooses CPU or GPU on it."""
    return "" if cluster.backend == "threads" else f"/job:worker/task:{index}"


def tower_devices(worker: str, towers: int) -> list[str]:
    """The devices that share the batches of a worker: its GPUs in turn, or as many logical CPU devices."""
    if towers == 1:
        return [worker]
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    return [f"{worker}/device:GPU:{i % gpus}" if gpus else f"{worker}/device:CPU:{i}" for i in range(towers)]
