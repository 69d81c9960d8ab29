"""The placement of tasks by each back end: the processes they live in, and the names of their devices.

`launch/backends.py` has the other half of a back end, which starts the tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..lazy import tf

BackendName = Literal["processes", "threads", "simulation"]


class Placement(Protocol):
    """The placement of the tasks of a run.

    Attributes:
        in_process: True if one process has all tasks, on one session: no message travels, and no task is lost alone.
        simulated: True if the machines are described, and their time is virtual.
    """

    @property
    def in_process(self) -> bool: ...  # noqa: D102

    @property
    def simulated(self) -> bool: ...  # noqa: D102

    def tasks(self, ps: int, workers: int) -> list[tuple[str, int]]:
        """Return the tasks that the launcher starts for these numbers of ps tasks (0: no ps) and workers."""
        ...

    def ps_devices(self, ps: int) -> Sequence[str]:
        """Return the device of each ps task; without a ps, the device of worker 0 for the bookkeeping variables."""
        ...

    def worker_device(self, index: int) -> str:
        """Return the device of a worker's variables and arithmetic; TensorFlow chooses CPU or GPU on it."""
        ...


@dataclass(frozen=True)
class Apart:
    """A process for each task, here or on several machines."""

    in_process: bool = False
    simulated: bool = False

    def tasks(self, ps: int, workers: int) -> list[tuple[str, int]]:
        """Return all ps tasks, all workers and the evaluator."""
        return [*(("ps", i) for i in range(ps)), *(("worker", k) for k in range(workers)), ("evaluator", 0)]

    def ps_devices(self, ps: int) -> list[str]:
        """Return the CPU of each ps task."""
        return [f"/job:ps/task:{i}/device:CPU:0" for i in range(ps)] or ["/job:worker/task:0/device:CPU:0"]

    def worker_device(self, index: int) -> str:
        """Return the worker's own task."""
        return f"/job:worker/task:{index}"


@dataclass(frozen=True)
class Together:
    """One process for all tasks, started as the only task `task`.

    Attributes:
        task: its name in `launch/tasks.py:TASKS`.
    """

    task: str
    in_process: bool = True
    simulated: bool = False

    def tasks(self, ps: int, workers: int) -> list[tuple[str, int]]:
        """Return the one task of the process."""
        del ps, workers
        return [(self.task, 0)]

    def ps_devices(self, ps: int) -> list[str]:
        """Return the one CPU of the process, for each ps task."""
        return ["/device:CPU:0"] * max(1, ps)

    def worker_device(self, index: int) -> str:
        """Return an empty name: TensorFlow chooses the device."""
        del index
        return ""


PLACEMENTS: dict[str, Placement] = {
    "processes": Apart(),
    "threads": Together("threads"),
    "simulation": Together("simulation", simulated=True),
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
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus:
        return [f"{worker}/device:GPU:{(first + i) % gpus}" for i in range(number)]
    return [f"{worker}/device:CPU:{i}" for i in range(number)] if number > 1 else [worker]
