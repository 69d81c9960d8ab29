"""Where the tasks of a run live, and what their devices are called: what a back end means below the launcher.

`launch/backends.py` has the other half: how a back end starts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..lazy import tf

BackendName = Literal["processes", "threads", "simulation"]


class Placement(Protocol):
    """Where the tasks of a run live.

    Attributes:
        in_process: True if one process has all of them, on one session: nothing travels, and none is lost alone.
        simulated: True if the machines are described, and their time is virtual.
    """

    @property
    def in_process(self) -> bool: ...  # noqa: D102

    @property
    def simulated(self) -> bool: ...  # noqa: D102

    def tasks(self, ps: int, workers: int) -> list[tuple[str, int]]:
        """What the launcher starts for that number of ps tasks (0: there is no ps) and workers."""
        ...

    def ps_devices(self, ps: int) -> Sequence[str]:
        """The device of each ps task; without one, where worker 0 keeps the books beside the center that it has."""
        ...

    def worker_device(self, index: int) -> str:
        """The device of a worker's variables and arithmetic; TensorFlow chooses CPU or GPU on it."""
        ...


@dataclass(frozen=True)
class Apart:
    """A process for each task, here or on several machines."""

    in_process: bool = False
    simulated: bool = False

    def tasks(self, ps: int, workers: int) -> list[tuple[str, int]]:
        """All ps tasks, all workers, the evaluator."""
        return [*(("ps", i) for i in range(ps)), *(("worker", k) for k in range(workers)), ("evaluator", 0)]

    def ps_devices(self, ps: int) -> list[str]:
        """The CPU of each."""
        return [f"/job:ps/task:{i}/device:CPU:0" for i in range(ps)] or ["/job:worker/task:0/device:CPU:0"]

    def worker_device(self, index: int) -> str:
        """Its own task."""
        return f"/job:worker/task:{index}"


@dataclass(frozen=True)
class Together:
    """One process, in which `task` is all there is to be started.

    Attributes:
        task: its name among `launch/tasks.py:TASKS`.
    """

    task: str
    in_process: bool = True
    simulated: bool = False

    def tasks(self, ps: int, workers: int) -> list[tuple[str, int]]:
        """One."""
        del ps, workers
        return [(self.task, 0)]

    def ps_devices(self, ps: int) -> list[str]:
        """There is only one CPU."""
        return ["/device:CPU:0"] * max(1, ps)

    def worker_device(self, index: int) -> str:
        """TensorFlow chooses."""
        del index
        return ""


PLACEMENTS: dict[str, Placement] = {
    "processes": Apart(),
    "threads": Together("threads"),
    "simulation": Together("simulation", simulated=True),
}


def compute_devices(worker: str, number: int, first: int = 0) -> list[str]:
    """The devices that share the batches of a worker: GPUs in turn, or as many logical CPU devices.

    A worker that is the only one of its task has just its own GPUs, and if it wants one device, TensorFlow chooses it.

    Args:
        worker: where it lives; empty in a process that has all of them.
        number: of its devices.
        first: GPUs that those before it in the same process have taken.
    """
    if number == 1 and worker:
        return [worker]
    gpus = len(tf.config.list_physical_devices("GPU"))
    if gpus:
        return [f"{worker}/device:GPU:{(first + i) % gpus}" for i in range(number)]
    return [f"{worker}/device:CPU:{i}" for i in range(number)] if number > 1 else [worker]
