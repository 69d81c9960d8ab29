"""What a run does about losses that are divided by other numbers on each worker, such as those of valid positions."""

from __future__ import annotations

from dataclasses import replace

from ..contract.weighed import weighed
from .job import Job


def weigh(job: Job) -> None:
    """Let the mean gradient of a job be that of one batch of all workers, or add a warning that it is not.

    Schemes of mean gradients weigh them by what divides the loss, and add up losses that are sums. There is no common
    batch where workers take steps of their own, or messages count one by one: there each loss is that of its worker.
    """
    scheme, recipe, devices = job.scheme, job.recipe, job.devices_per_worker
    workers = (scheme.sync.set_size(job.cluster.workers) if scheme.sync.exchanges else 1) or scheme.messages_per_update
    means = scheme.means_gradients and workers > 1
    by_count = recipe.divided == "by count"
    weighs = means and by_count and (scheme.sync.uses_ps or not (scheme.overlap or job.options.schedule))
    if weighs:
        job.scheme = weighed(scheme)
    counts = by_count and (weighs or devices > 1)
    job.recipe = replace(recipe, counts=counts, batches=devices * (workers if means else 1))
    together = workers > 1 and scheme.period == 1 and not scheme.sync.gossips
    if recipe.divided == "apart" and (together or devices > 1):
        job.warnings.append(
            "terms of the loss are divided by different numbers of each batch (a mask or sample_weight, and others), "
            "so that no weight fits all: an update takes the mean of its workers' means, not that of one batch of all"
        )
    elif together and by_count and not weighs:
        job.warnings.append(
            f"{_named(job)} takes the mean of its workers' means, each over the valid positions or weights of its own "
            "batch, not the mean over all: sync_sgd weighs them"
        )
    if recipe.summed and together and not means:
        job.warnings.append(
            f"{scheme.name} takes the mean of its workers' losses, which are sums over their batches, not the sum over "
            "all: sync_sgd adds them up"
        )


def _named(job: Job) -> str:
    """Return the name of the job's scheme, with what keeps it from weighing gradients."""
    how = [" with a delay"] * bool(job.scheme.overlap) + [" with a schedule"] * bool(job.options.schedule)
    return job.scheme.name + "".join(how[:1] if job.scheme.means_gradients else [])
