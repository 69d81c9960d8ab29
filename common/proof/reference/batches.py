"""Batches: a function of the seed of the run, the worker and its step."""

from __future__ import annotations

import functools

import numpy as np


def rows(seed: int, k: int, examples: int, workers: int) -> np.ndarray:
    """The shard of worker k: the k-th of W equal parts of a permutation of all examples; the rest is unused."""
    size = examples // workers
    return np.random.default_rng([seed, 0]).permutation(examples)[k * size : (k + 1) * size]


@functools.cache
def epoch(seed: int, k: int, number: int, shard: int) -> np.ndarray:
    """The order in which worker k goes through its shard in that epoch."""
    return np.random.default_rng([seed, 1 + k, number]).permutation(shard)


def batch(seed: int, k: int, t: int, shard: int, size: int) -> np.ndarray:
    """Worker k's t-th batch, as positions in its shard; what does not fill a batch at the end of an epoch is unused."""
    number, place = divmod(t, shard // size)
    return epoch(seed, k, number, shard)[place * size : (place + 1) * size]
