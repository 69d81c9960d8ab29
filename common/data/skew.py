"""Label skew: shards of equal size with unequal proportions of labels, `--skew dirichlet:alpha=0.1` or `sorted`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UserError
from ..spec import parse


def dirichlet(
    labels: np.ndarray, order: np.ndarray, workers: int, rng: np.random.Generator, *, alpha: float = 0.1
) -> np.ndarray:
    """Draw each worker's proportions of labels from Dirichlet(alpha * p), p those of all the data, and fill its shard.

    Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual classification"
    (2019), arXiv:1909.06335: a small alpha gives a worker one label, a large one the proportions of all the data.
    Examples are drawn without replacement, one worker after the other. If a label is used up, its share goes to the
    worker's other labels, or to all remaining labels if these are used up, too. So shards are disjoint and of equal
    size; the last workers take the remaining examples.

    Args:
        labels: [examples], any numbers.
        order: [examples], the order in which the examples of a label are taken.
        workers: number of shards.
        rng: generator that has drawn `order`.
        alpha: concentration, more than 0.

    Returns:
        Row numbers, [workers, examples // workers].
    """
    _, label = np.unique(labels, return_inverse=True)
    left = np.bincount(label)
    share = left / len(label)
    by_label = order[np.argsort(label[order], kind="stable")]
    first = np.cumsum(left) - left  # where the unused examples of each label begin
    shards = np.empty((workers, len(label) // workers), order.dtype)
    for shard in shards:
        counts = _drawn(rng.dirichlet(alpha * share), left, len(shard), rng)
        ends = np.cumsum(counts)
        shard[:] = by_label[np.repeat(first - (ends - counts), counts) + np.arange(len(shard))]
        first, left = first + counts, left - counts
    return shards


def _drawn(wanted: np.ndarray, left: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw how many examples of each label a worker takes: `size` in all, at most those that are `left`."""
    counts = np.zeros_like(left)
    while missing := size - counts.sum():
        free = left - counts
        share = np.where(free > 0, wanted, 0.0)
        if not share.any():
            share = free.astype(float)
        counts += np.minimum(rng.multinomial(missing, share / share.sum()), free)  # ends: each time, a label is used up
    return counts


def by_label(labels: np.ndarray, order: np.ndarray, workers: int, rng: np.random.Generator) -> np.ndarray:
    """Sort the examples by label, and give each worker an equal part: the limit of `dirichlet` with alpha 0.

    Args:
        labels: [examples], any numbers.
        order: [examples], the order in which the examples of a label are taken.
        workers: number of shards.
        rng: not used.

    Returns:
        Row numbers, [workers, examples // workers].
    """
    size = len(labels) // workers
    return order[np.argsort(labels[order], kind="stable")][: workers * size].reshape(workers, size)


SKEWS: dict[str, Callable[..., np.ndarray]] = {"dirichlet": dirichlet, "sorted": by_label}


def parsed(spec: str) -> tuple[Callable[..., np.ndarray], dict[str, Any]]:
    """Return the rule of a skew, and its options including defaults, from the text of a user.

    Raises:
        UserError: the rule or an option is unknown.
    """
    name, options = parse("skew", spec, SKEWS)
    return SKEWS[name], {**(SKEWS[name].__kwdefaults__ or {}), **options}


def labels_of(data: Any) -> np.ndarray:
    """Return the class number of each example, [examples], of (x, y) or (x, y, sample_weight).

    Raises:
        UserError: y does not hold class numbers, or the data come from a function.
    """
    if callable(data):
        raise UserError("skew needs arrays: a data function does its own sharding. Received: a data function")
    y = data[1] if len(data) > 1 else None
    if isinstance(y, np.ndarray) and y.size == len(y) and y.dtype.kind in "biuf" and (y == np.round(y)).all():
        return y.reshape(-1)
    received = f"{y.dtype} of shape {y.shape}" if isinstance(y, np.ndarray) else type(y).__name__
    raise UserError(f"skew needs class numbers in y, one whole number for each example. Received: {received}")


def distance(labels: np.ndarray, shards: np.ndarray) -> float:
    """Return how far the workers' labels are from those of all the data: 0 if even, near 1 if each has one label.

    It is the mean over workers of the total variation distance between the proportions of labels.
    """
    _, label = np.unique(labels, return_inverse=True)
    overall = np.bincount(label) / len(label)
    counts = np.array([np.bincount(label[rows], minlength=len(overall)) for rows in shards])
    return float(np.abs(counts / shards.shape[1] - overall).sum(1).mean() / 2)
