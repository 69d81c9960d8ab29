"""Back ends, which start the tasks of a run: as processes, as threads, or in virtual time.

A new back end needs an entry here and one in `cluster/placement.py`, which describes where its tasks live; gates and
algorithms do not depend on it. Loops and evaluator receive their session, and a function to `connect` anew, from the
task that creates them; gates put a worker to sleep and wake it through the `Store` (`gates/store.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..simulation.virtual_run import simulate
from ..tasks.job import Job
from .launcher import launch
from .supervisor import OnEvent
from .threads import run_threads


class Backend(Protocol):
    """Starts the tasks of a run."""

    def run(self, job: Job, on_event: OnEvent, model: Any = None) -> None:
        """Start all tasks, give each its session, and return when all of them have ended.

        Args:
            job: the work of the tasks.
            on_event: receives every event.
            model: the Keras model of this process, if the run trains here.

        Raises:
            DistsgdError: the first failure.
        """
        ...


class Processes:
    """A supervised process for each task, forked from a process that has imported TensorFlow."""

    def run(self, job: Job, on_event: OnEvent, model: Any = None) -> None:
        """See `Backend`."""
        del model  # the tasks build their own
        launch(job, on_event)


class InOneProcess:
    """All tasks of a run in one process: in this process if it has the model, else in a supervised process.

    Args:
        here: runs a job in this process, given the job, the function for reports, and the model as a `FlatModel`.
    """

    def __init__(self, here: Callable[..., object]):
        self.here = here

    def run(self, job: Job, on_event: OnEvent, model: Any = None) -> None:
        """See `Backend`."""
        if model is None:
            launch(job, on_event)
        else:
            self.here(job, lambda **event: on_event(event), job.recipe.flat(model))


BACKENDS: dict[str, Backend] = {
    "processes": Processes(),
    "threads": InOneProcess(run_threads),
    "simulation": InOneProcess(simulate),
}


def backend(name: str) -> Backend:
    """Return the back end of that name."""
    return BACKENDS[name]
