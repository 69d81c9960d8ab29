"""Batches as a function of the seed of the run, the worker and its step."""

from __future__ import annotations

import functools

import numpy as np


def rows(seed: int, k: int, examples: int, workers: int) -> np.ndarray:
    """Return the shard of worker k: the k-th of W equal parts of a permutation of all examples; the rest is unused."""
    size = examples // workers
    return np.random.default_rng([seed, 0]).permutation(examples)[k * size : (k + 1) * size]


def skewed_rows(seed: int, labels: np.ndarray, workers: int, alpha: float) -> list[np.ndarray]:
    """Return the shards of all workers, of equal size, with unequal labels by Hsu et al. (2019).

    The examples of each label lie in the order of the permutation. One after the other, each worker draws
    q ~ Dirichlet(alpha p), p the frequency of each label, then a multinomial count of each label, and takes these from
    the front. If a label is used up, missing examples are drawn again from the others, by q, or by their remaining
    numbers if q is zero for all of them.
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
    """Return the order of the examples of worker k's shard in that epoch."""
    return np.random.default_rng([seed, 1 + k, number]).permutation(shard)


def batch(seed: int, k: int, t: int, shard: int, size: int) -> np.ndarray:
    """Return worker k's t-th batch, as positions in its shard; an incomplete batch at the end of an epoch is unused."""
    number, place = divmod(t, shard // size)
    return epoch(seed, k, number, shard)[place * size : (place + 1) * size]
