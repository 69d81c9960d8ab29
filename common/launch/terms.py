"""The terms of a join: the algorithm and the parameters, on which all workers and the evaluator agree.

They are known when worker 0 joins: it writes them to a file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import at_most
from ..cluster.fingerprint import class_digest, in_words
from ..contract.checks import check_kind, check_update
from ..contract.scheme import Scheme
from ..errors import UserError
from ..reports import OF_LATER_JOIN, Report
from ..settings import compared, of_program
from ..tasks.job import Job, Script, checked, describe
from ..worker.parameters import Parameters

# Events of faults of workers, which all joins of a script have in common: each has its versions and restorations.
OF_WORKERS = ("warning", "evicted", "silent", "refused", "rejoined", "lost")

TERMS = "terms-"  # begin of the names of files with terms

USAGE = "with distsgd.join(DiLoCo(), variables) as worker"


@dataclass(frozen=True)
class Terms:
    """The algorithm and the parameters of a run: those of worker 0, with which the others must agree."""

    scheme: Scheme
    shapes: list[tuple[int, ...]]
    initial: np.ndarray
    without_decay: tuple[int, ...] = ()  # positions of the variables that weight decay leaves as they are
    keeps_state: bool = False  # checkpoints have the state of an object of the script

    def job(self, job: Job, name: str = "", **further_fields: Any) -> Job:
        """Return the job of a script with this algorithm and these parameters; `UserError` if it cannot be run."""
        check_kind(self.scheme, USAGE)
        at_most(len(self.initial), ps=job.cluster.ps)
        # All ps tasks have been started by now. An algorithm without a parameter server leaves them idle.
        cluster = job.cluster if self.scheme.sync.uses_ps else replace(job.cluster, ps=1)
        scheme = checked(self.scheme, job.train, cluster, job.options)
        if job.options.recovery.max_restarts and scheme.sync.is_collective:
            raise UserError(
                f"{scheme.name} cannot restart a worker, as it has no parameter server: leave --max-restarts out"
            )
        if scheme.overlap:
            raise UserError(
                f"{scheme.name} cannot be joined with a delay: the loop of a script may end within a round. Give "
                f"delay=0, or use train. Received: delay={scheme.overlap}"
            )
        if scheme.sync.gossips and job.options.recovery.min_workers is not None:
            raise UserError(f"{scheme.name} needs all its workers to run a script: leave --min-workers out")
        check_update(scheme, in_process=False)
        options = {"without_decay": self.without_decay, "keeps_state": self.keeps_state}
        parameters = Parameters(self.shapes, self.initial, **options, **further_fields)
        job = replace(job, scheme=scheme, recipe=parameters, cluster=cluster, prefix=name, run_dir=job.run_dir / name)
        job.plan.check()
        return job

    def in_common(self) -> dict[str, str]:
        """Return the properties that must agree, in words."""
        hyperparameters = ", ".join(
            f"{field.name}={in_words(getattr(self.scheme, field.name))}" for field in fields(self.scheme)
        )
        algorithm = f"{type(self.scheme).__name__}({hyperparameters}) {class_digest(type(self.scheme))}".rstrip()
        settings = ", ".join(f"{name}={value}" for name, value in compared(of_program()).items())
        properties = {"shapes of variables": str(self.shapes), "variables without decay": str(self.without_decay)}
        properties["state in checkpoints"] = "given" if self.keeps_state else "not given"
        return {"algorithm": algorithm, **properties, "settings of Keras": settings}


def place_of_terms(script: Script, name: str) -> Path:
    """Return the path of the file in which worker 0 leaves the terms of a join."""
    return script.folder / f"{TERMS}{name}.pkl"


def names_of_joins(script: Script) -> list[str]:
    """Return the names of the joins for which worker 0 has left terms."""
    return [path.stem.removeprefix(TERMS) for path in script.folder.glob(f"{TERMS}*.pkl")]


def describe_script(job: Job, script: Script) -> dict[str, Any]:
    """Return the configuration of a run of a script."""
    size = len(job.recipe.flat().pack())
    config = describe(job, dataset=script.path.name, model=f"{size:,} parameters" if size else "own loop")
    config["shapes"] = [list(shape) for shape in job.recipe.shapes]
    config["record"] = "gradients" if script.records_gradients else config["record"]
    return {name: value for name, value in config.items() if name not in ("batch_size", "steps_per_worker")}


def of_later_join(report: Report, name: str) -> Report:
    """Return a function that reports the events of a later join of a script, for a record of its own.

    Faults of workers are those of the run, too, and so are the figures, which have the name of the join before theirs.
    """

    def report_both(event: str, **values: Any) -> None:
        report(event=OF_LATER_JOIN, join=name, its=event, **values)
        if event in OF_WORKERS:
            report(event=event, **values)
        elif event == "worker":
            figures = {
                f"{name}_{figure}": value for figure, value in values.items() if figure not in ("worker", "steps")
            }
            report(event="figures", worker=values["worker"], **figures)

    return report_both
