"""What a run does about losses that are divided by other numbers on each worker, such as those of valid positions."""

from __future__ import annotations

from dataclasses import replace

from ..contract.adapting import adapts
from ..contract.feedback import WithMemory
from ..contract.weighed import has_common_batch, set_size, takes_mean_of_means, takes_mean_of_sums, weighed
from .job import Job


def weigh(job: Job, sizes_vary: bool = False) -> None:
    """Let the mean gradient of a job be that of one batch of all workers, or add a warning that it is not.

    Schemes of mean gradients weigh them by what divides the loss, and add up losses that are sums. There is no common
    batch where workers take steps of their own, or messages count one by one: there each loss is that of its worker.
    A codec's residual has no weight that fits the next batch, so that gradients with error feedback are not weighed.

    Args:
        job: the job, whose model has been tried on a batch.
        sizes_vary: True if its batches may have several sizes.
    """
    scheme, recipe, devices = job.scheme, job.recipe, job.devices_per_worker
    workers = set_size(scheme, job.cluster.workers)
    means = scheme.means_gradients and workers > 1
    by_count = recipe.divided == "by count"
    by_size = sizes_vary and recipe.divided == "alike" and not recipe.summed
    weighs = means and (by_count or by_size) and not _hindrance(job)
    if weighs:
        job.scheme = weighed(scheme)
    counts = weighs or (by_count and devices > 1)
    job.recipe = replace(recipe, counts=counts, batches=devices * (workers if means else 1))
    together = has_common_batch(scheme, job.cluster.workers)
    if recipe.divided == "apart" and (together or devices > 1):
        job.warnings.append(
            "terms of the loss are divided by different numbers of each batch (a mask or sample_weight, and others), "
            "so that no weight fits all: an update takes the mean of its workers' means, not that of one batch of all"
        )
    elif together and by_count and not weighs:
        named = scheme.name + (_hindrance(job) if means else "")
        job.warnings.append(takes_mean_of_means(named, "sync_sgd"))
    if recipe.summed and together and not means:
        job.warnings.append(takes_mean_of_sums(scheme.name, "sync_sgd"))


def _hindrance(job: Job) -> str:
    """Return what keeps a scheme of mean gradients from weighing them; empty if nothing does."""
    if adapts(job.scheme):
        return " with adacomm"
    if isinstance(job.scheme.codecs()[0], WithMemory):
        return " with error feedback of its codec (memory=no leaves it out)"
    if job.scheme.sync.uses_ps:
        return ""
    return " with a delay" if job.scheme.overlap else " with a schedule" if job.options.schedule else ""
