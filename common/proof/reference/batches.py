"""Batches: a function of the seed of the run, the worker and its step."""

from __future__ import annotations

import functools

import numpy as np


def rows(seed: int, k: int, examples: int, workers: int) -> np.ndarray:
    """The shard of worker k: the k-th of W equal parts of a permutation of all examples; the rest is unused."""
    size = examples // workers
    return np.random.default_rng([seed, 0]).permutation(examples)[k * size : (k + 1) * size]


def skewed_rows(seed: int, labels: np.ndarray, workers: int, alpha: float) -> list[np.ndarray]:
    """The shards of all workers, of equal size, with labels as Hsu et al. (2019) make them unequal.

    The examples of each label lie in the order of the permutation. Worker after worker draws q ~ Dirichlet(alpha p), p
    the frequency of each label, and takes as many of each label from the front as a multinomial draw says. What it
    cannot have of a label it draws again from the others, by q, or by what is left if it wants none of these.
    """
    rng = np.random.default_rng([seed, 0])
    permutation = rng.permutation(len(labels))
    queues = {label: [row for row in permutation if labels[row] == label] for label in sorted(set(labels.tolist()))}
    p = np.array([len(queue) for queue in queues.values()]) / len(labels)
    shards = []
    for _ in range(workers):
        q, shard = rng.dirichlet(alpha * p), [[] for _ in queues]
        while missing := len(labels) // workers - sum(map(len, shard)):
            weights = np.array([q_i if queue else 0.0 for q_i, queue in zip(q, queues.values(), strict=True)])
            if weights.max() == 0:
                weights = np.array([float(len(queue)) for queue in queues.values()])
            draw = rng.multinomial(missing, weights / weights.sum())
            for part, queue, count in zip(shard, queues.values(), draw, strict=True):
                part += queue[:count]
                del queue[:count]
        shards.append(np.array([row for part in shard for row in part]))
    return shards


@functools.cache
def epoch(seed: int, k: int, number: int, shard: int) -> np.ndarray:
    """The order in which worker k goes through its shard in that epoch."""
    return np.random.default_rng([seed, 1 + k, number]).permutation(shard)


def batch(seed: int, k: int, t: int, shard: int, size: int) -> np.ndarray:
    """Worker k's t-th batch, as positions in its shard; what does not fill a batch at the end of an epoch is unused."""
    number, place = divmod(t, shard // size)
    return epoch(seed, k, number, shard)[place * size : (place + 1) * size]
