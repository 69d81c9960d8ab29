"""The back ends that run all tasks of a job in one process."""

from __future__ import annotations

from ..reports import Report
from ..tasks.job import Job
from ..worker.flat_model import FlatModel
from .threads import run_threads


def run_here(job: Job, report: Report, model: FlatModel | None = None) -> None:
    """Run all tasks of a job in this process, as threads or in virtual time.

    Args:
        job: the job.
        report: receives the events.
        model: receives the evaluated weights; a new model if None.

    Raises:
        DistsgdError: the first failure.
    """
    placement = job.cluster.placement
    run = placement.back_end.simulate if placement.simulated else run_threads
    run(job, report, model)
