"""Back ends: how the tasks of a run come to life.

A third one needs an entry here and one in `cluster/placement.py`, which says where its tasks live; no gate and no
algorithm knows of it. Loops and evaluator are given their session, and how to `connect` anew, by the task that makes
them; gates let a worker sleep on its token and wake it through the `Store` that they are given (`gates/store.py`).
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
            job: what they do.
            on_event: sees every event.
            model: the Keras model of this process, if it is to train here.

        Raises:
            DistsgdError: the first thing that went wrong.
        """
        ...


class Processes:
    """A process for each task, forked from one that has imported TensorFlow, and watched."""

    def run(self, job: Job, on_event: OnEvent, model: Any = None) -> None:
        """See `Backend`."""
        del model  # the tasks build their own
        launch(job, on_event)


class InOneProcess:
    """All of a run in one process: in this one if it has the model, else in one that is watched.

    Args:
        here: runs a job here, given the job, how to report, and the model as a function of vectors.
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
    """The back end of that name."""
    return BACKENDS[name]
