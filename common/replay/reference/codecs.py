"""Rounding of messages, with error feedback, and of replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .one_worker import Gradient

Rounding = Callable[[np.ndarray], np.ndarray]


def bf16(vector: np.ndarray) -> np.ndarray:
    """Round to the nearest numbers whose float32 ends in 16 zero bits; of two as near, to that with 17 zero bits."""
    bits = vector.astype(np.float32).view(np.uint32)
    up = 0x7FFF + (bits >> 16 & 1)
    near = ((bits + up) & 0xFFFF0000).view(np.float32)
    return np.where(np.isnan(vector), vector, near).astype(vector.dtype)


def int8(vector: np.ndarray, block: int = 256) -> np.ndarray:
    """Round each block to the nearest multiples of s = max |v| / 127, halves to even multiples."""
    near = np.empty_like(vector)
    for first in range(0, len(vector), block):
        part = vector[first : first + block]
        s = np.max(np.abs(part)) / vector.dtype.type(127)
        near[first : first + block] = s * np.round(part / s) if s else 0
    return near


def whole(vector: np.ndarray) -> np.ndarray:
    """Return the vector without rounding."""
    return vector


def pushed(gradient: Gradient, rounding: Rounding, sizes: Sequence[int], workers: int, reply: Rounding) -> Gradient:
    """Return the rounded gradients that workers push, with error feedback and rounded replies.

        g = g_k(reply(x)), or g_k(x) at the first time;  q = Q(g + e_k);  e_k ← g + e_k − q;  push q

    Q rounds each slice of the center separately; `sizes` are theirs. The function keeps e_k, so it serves one run only.
    """
    memory: list[np.ndarray | float] = [0.0] * workers
    ends = np.cumsum(sizes)[:-1]

    def message(x: np.ndarray, k: int, t: int) -> np.ndarray:
        wanted = gradient(reply(x) if t else x, k, t) + memory[k]
        sent = np.concatenate([rounding(part) for part in np.split(wanted, ends)])
        memory[k] = wanted - sent
        return sent

    return message
