"""Counter-based random numbers: each is a function of the seed, its purpose, the worker and an index.

So each number is the same whatever else happens: another worker, or another algorithm, does not change it. The function
is SplitMix64 (Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014), its output function
applied to seed, purpose and worker one after the other, and its counter to the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)

PURPOSES = ("step", "speed", "link", "message", "reply", "crash", "repair", "reduction")


def uniforms(seed: int, purpose: str, workers: Sequence[int] | np.ndarray, indices: Any) -> np.ndarray:
    """Return numbers in (0, 1), [workers, indices]; `purpose` is one of `PURPOSES`."""
    purposes = np.array([[1 + PURPOSES.index(purpose)]], np.uint64)
    key = _mixed(np.array([[seed]], np.uint64) + GAMMA * purposes)
    key = _mixed(key + GAMMA * (np.asarray(workers, np.uint64)[:, None] + np.uint64(1)))
    bits = _mixed(key + GAMMA * (np.asarray(indices, np.uint64)[None] + np.uint64(1)))
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
