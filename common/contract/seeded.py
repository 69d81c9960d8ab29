"""Counter-based random numbers, a function of a seed and a key: equal on all back ends, and in NumPy for a replay.

The generator is SplitMix64 (Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, 2014): the i-th
number is a hash of a counter. It uses integer operations only, so TensorFlow and NumPy agree to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..lazy import tf

GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

WORD = 1 << 64

OF_ROUNDS = 0x726F756E6473  # first part of the key of the coins of a run
OF_BUCKETS = 0x6275636B6574  # first part of the key of the order in which `Robust` makes buckets
OF_CODEC = 0x636F646563  # first part of the key of a codec's random numbers, which differ from those of the scheme


def uniform_numbers(seed: int, size: int, *key: int) -> np.ndarray:
    """Return the numbers of `worker.uniform(*key)` in NumPy: [size], float32, at least 0 and below 1.

    Args:
        seed: seed of the run.
        size: number of values, P.
        key: whole numbers, such as a worker's index and its round.
    """
    state = np.zeros(1, np.uint64)
    for part in (seed, *key):
        state = mixed_bits(state + np.uint64(GAMMA) + np.array([part], np.int64).view(np.uint64))
    counter = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(GAMMA)
    return ((mixed_bits(state + counter) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)).astype(np.float32)


def mixed_bits(z: np.ndarray) -> np.ndarray:
    """Return the output function of SplitMix64 of each element."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(SECOND)
    return z ^ (z >> np.uint64(31))


def uniform(seed: int, size: int, *key: Any, count: int | None = None) -> Any:
    """Return `uniform_numbers` as a tensor in the current graph, or the first `count` of them.

    The key may have scalars of any integer type.
    """
    if not key:
        raise TypeError("worker.uniform needs a key, such as worker.index, worker.round: else all draws are the same")

    def shifted(z: Any, places: int) -> Any:  # a shift of a signed integer copies the sign bit: mask these copies
        return tf.bitwise.bitwise_and(tf.bitwise.right_shift(z, _word(places)), _word((1 << 64 - places) - 1))

    def mixed(z: Any) -> Any:
        z = tf.bitwise.bitwise_xor(z, shifted(z, 30)) * _word(FIRST)
        z = tf.bitwise.bitwise_xor(z, shifted(z, 27)) * _word(SECOND)
        return tf.bitwise.bitwise_xor(z, shifted(z, 31))

    state = _word(0)
    for part in map(tf.convert_to_tensor, (seed, *key)):
        if not part.dtype.is_integer:
            raise TypeError(
                f"a key of worker.uniform is made of whole numbers. Received: a number of type {part.dtype.name}"
            )
        state = mixed(state + _word(GAMMA) + tf.cast(part, tf.int64))
    counter = tf.range(1, (count or size) + 1, dtype=tf.int64) * _word(GAMMA)
    return tf.cast(shifted(mixed(state + counter), 40), tf.float32) / float(1 << 24)


def _word(value: int) -> Any:
    """Return 64 bits as a signed integer: TensorFlow's kernels for unsigned ones are not on every device."""
    return tf.constant(value if value < WORD // 2 else value - WORD, tf.int64)
