"""A run of a benchmark: its record and its result, or the error that ended it."""

from __future__ import annotations

from typing import Any

from ..common.launch.run import run
from ..common.record.run_directory import RunRecord
from ..common.tasks.job import Job, describe


def completed(job: Job, dataset: str, model_name: str, **arguments: Any) -> tuple[RunRecord, dict[str, Any]]:
    """Run a job without a display and a picture; return its record, and its result as JSON has it.

    Args:
        job: the job.
        dataset: name of its data.
        model_name: of its model.
        arguments: further arguments of `run`.

    Raises:
        BaseException: what has ended the run.
    """
    record, error = run(job, describe(job, dataset, model_name), verbose=False, **arguments)
    result = record.finish(error, picture=False)
    if error is not None:
        raise error
    return record, result
