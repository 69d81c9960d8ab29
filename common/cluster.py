"""Clusters: how many tasks of which job there are, where they listen, and what their devices are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import UserError, at_least, positive
from .spec import nearest

Backend = Literal["processes", "threads"]
Isolation = Literal["auto", "require", "off"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A description of where a run takes place; `Cluster.local(...)` makes one.

    Attributes:
        workers: worker tasks.
        ps: parameter server tasks.
        backend: "processes" (a process for each task) or "threads" (one process, a thread for each worker).
        isolation: private network for local processes: "auto" (where the kernel allows), "require" or "off".
        wait_seconds: how long a task waits for others before it gives up and names them.
        towers: devices of each worker that share its batches; as many as the algorithm likes if not given.
    """

    workers: int = 2
    ps: int = 1
    backend: Backend = "processes"
    isolation: Isolation = "auto"
    wait_seconds: float = 60.0
    towers: int | None = None

    def __post_init__(self):
        at_least(1, workers=self.workers, ps=self.ps, **({} if self.towers is None else {"towers": self.towers}))
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


@dataclass(frozen=True)
class Addresses:
    """Where every task listens: `host:port` by job and index."""

    ps: Sequence[str]
    worker: Sequence[str]

    def as_dict(self) -> dict[str, list[str]]:
        """As `tf.train.ClusterSpec` takes it; a job without tasks is left out."""
        return {job: list(hosts) for job, hosts in (("ps", self.ps), ("worker", self.worker)) if hosts}


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
