"""Messages that are rounded off, with error feedback; replies that are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .alone import Gradient

Rounding = Callable[[np.ndarray], np.ndarray]


def bf16(vector: np.ndarray) -> np.ndarray:
    """The nearest numbers whose float32 ends in sixteen zeros; of two that are as near, the one before them is zero."""
    bits = vector.astype(np.float32).view(np.uint32)
    up = 0x7FFF + (bits >> 16 & 1)
    near = ((bits + up) & 0xFFFF0000).view(np.float32)
    return np.where(np.isnan(vector), vector, near).astype(vector.dtype)


def int8(vector: np.ndarray, block: int = 256) -> np.ndarray:
    """In each block the nearest multiples of s = max |v| / 127, halves to even multiples."""
    near = np.empty_like(vector)
    for first in range(0, len(vector), block):
        part = vector[first : first + block]
        s = np.max(np.abs(part)) / vector.dtype.type(127)
        near[first : first + block] = s * np.round(part / s) if s else 0
    return near


def whole(vector: np.ndarray) -> np.ndarray:
    """Nothing is rounded off."""
    return vector


def pushed(gradient: Gradient, rounding: Rounding, sizes: Sequence[int], workers: int, reply: Rounding) -> Gradient:
    """What worker k pushes instead of its gradients, if each reply to it is rounded, too.

        g = g_k(reply(x)), or g_k(x) at the first time;  q = Q(g + e_k);  e_k ← g + e_k − q;  push q

    Q rounds off each slice of the center by itself; they have these `sizes`. For one run: it remembers.
    """
    memory: list[np.ndarray | float] = [0.0] * workers
    ends = np.cumsum(sizes)[:-1]

    def message(x: np.ndarray, k: int, t: int) -> np.ndarray:
        wanted = gradient(reply(x) if t else x, k, t) + memory[k]
        sent = np.concatenate([rounding(part) for part in np.split(wanted, ends)])
        memory[k] = wanted - sent
        return sent

    return message
