"""The codecs of messages: what arrives of a message [P] of worker k in its round t, as functions of (message, k, t)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from .gradients import product
from .sending import Codec, Rounding
from .synchronous_rules import Compressor, largest, scaled_sign

INTEGERS = [float(n) for n in range(-7, 8)]
E2M1 = [-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@dataclass(frozen=True)
class Run:
    """The run of a codec.

    Attributes:
        sizes: sizes of the slices of a message.
        shapes: shapes of the model's variables.
        uniform: random numbers [P] from 0 to 1, as a function of (k, t).
    """

    sizes: Sequence[int]
    shapes: Sequence[Sequence[int]]
    uniform: Callable[[int, int], np.ndarray]


OfRun = Callable[[Run], Codec]


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


def nearest_level(vector: np.ndarray, levels: Sequence[float], block: int) -> np.ndarray:
    """Round each block to the nearest s times a level, to the lower of two; s is max |v| / max level."""
    grid = np.array(levels, vector.dtype)
    near = np.empty_like(vector)
    for first in range(0, len(vector), block):
        part = vector[first : first + block]
        s = np.max(np.abs(part)) / grid[-1]
        near[first : first + block] = s * grid[np.abs(part[:, None] / (s or 1) - grid).argmin(1)]
    return near


def qsgd(vector: np.ndarray, u: np.ndarray, s: int, block: int) -> np.ndarray:
    """Return ‖v‖₂ sign(v) l/s for each block v; l = ⌊a⌋ + 1 with probability a − ⌊a⌋, else ⌊a⌋; a = s |v|/‖v‖₂.

    The random numbers u are from 0 to 1.
    """
    sent = np.empty_like(vector)
    for first in range(0, len(vector), block):
        part, drawn = vector[first : first + block], u[first : first + block]
        norm = np.sqrt(np.sum(part * part))
        a = s * np.abs(part) / (norm or 1)
        up = drawn >= 1 - (a - np.floor(a))
        sent[first : first + block] = norm * np.sign(part) * np.minimum(np.floor(a) + up, s) / s
    return sent


def variance_bound(s: int, block: int) -> float:
    """Return ω = min(n/s², √n/s): of `qsgd`, E‖C(v) − v‖² is at most ω ‖v‖²; so C/(1 + ω) is a contraction."""
    return min(block / s**2, float(np.sqrt(block)) / s)


def cosine_coefficients(vector: np.ndarray, block: int, kept: int) -> np.ndarray:
    """Return that many coefficients of c = D v of each block v, the largest, and zeros; the last may be shorter."""
    sent = np.empty_like(vector)
    for first in range(0, len(vector), block):
        part = vector[first : first + block]
        c = product(_cosines(len(part)).astype(vector.dtype), part)
        c[np.argsort(-np.abs(c), kind="stable")[kept:]] = 0
        sent[first : first + block] = c
    return sent


def of_coefficients(coefficients: np.ndarray, block: int) -> np.ndarray:
    """Return the vector whose blocks are v = Dᵀ c for each block of coefficients c."""
    vector = np.empty_like(coefficients)
    for first in range(0, len(vector), block):
        c = coefficients[first : first + block]
        vector[first : first + block] = product(_cosines(len(c)).astype(c.dtype).T, c)
    return vector


@cache
def _cosines(n: int) -> np.ndarray:
    """Return D: D_ij = √(2/n) cos(π i (2 j + 1)/(2 n)), and D_0j = √(1/n)."""
    angles = np.pi * np.outer(np.arange(n), 2 * np.arange(n) + 1) / (2 * n)
    return np.where(np.arange(n)[:, None] == 0, np.sqrt(1 / n), np.sqrt(2 / n) * np.cos(angles))


def random_elements(vector: np.ndarray, u: np.ndarray, kept: int) -> np.ndarray:
    """Keep that many elements, those of the smallest u; the others become zero."""
    sent, where = 0 * vector, np.argsort(u, kind="stable")[:kept]
    sent[where] = vector[where]
    return sent


def on_slices(rounding: Rounding, sizes: Sequence[int]) -> Codec:
    """Return the codec that rounds each slice of a message by itself."""
    ends = np.cumsum(sizes)[:-1]
    return lambda message, k, t: np.concatenate([rounding(part) for part in np.split(message, ends)])


def whole(compress: Compressor) -> Codec:
    """Return the codec that compresses the whole message."""
    return lambda message, k, t: compress(message)


# The options of each codec, with their defaults. Error feedback is an option of all, `memory`; see `pushed`.


def _levels(levels: Sequence[float]) -> Callable[..., OfRun]:
    def codec(*, block: int = 64, memory: str = "yes") -> OfRun:
        return lambda run: on_slices(lambda part: nearest_level(part, levels, block), run.sizes)

    return codec


def _bf16(*, memory: str = "yes") -> OfRun:
    return lambda run: on_slices(bf16, run.sizes)


def _int8(*, block: int = 256, memory: str = "yes") -> OfRun:
    return lambda run: on_slices(lambda part: int8(part, block), run.sizes)


def _qsgd(*, bits: int = 4, block: int = 512, memory: str = "no") -> OfRun:
    s = 2 ** (bits - 1) - 1
    factor = 1 / (1 + variance_bound(s, block)) if memory == "yes" else 1.0

    def of_run(run: Run) -> Codec:
        ends = np.cumsum(run.sizes)[:-1]

        def sent(message: np.ndarray, k: int, t: int) -> np.ndarray:
            parts = zip(np.split(message, ends), np.split(run.uniform(k, t), ends), strict=True)
            return factor * np.concatenate([qsgd(v, u, s, block) for v, u in parts])

        return sent

    return of_run


def _topk(*, fraction: float = 0.01, memory: str = "yes") -> OfRun:
    return lambda run: whole(largest(max(1, int(fraction * sum(run.sizes)))))


def _randomk(*, fraction: float = 0.01, memory: str = "yes") -> OfRun:
    def of_run(run: Run) -> Codec:
        kept = max(1, int(fraction * sum(run.sizes)))
        factor = sum(run.sizes) / kept if memory == "no" else 1.0
        return lambda message, k, t: factor * random_elements(message, run.uniform(k, t), kept)

    return of_run


def _dct(*, block: int = 64, kept: int = 4, memory: str = "yes") -> OfRun:
    return lambda run: on_slices(lambda part: of_coefficients(cosine_coefficients(part, block, kept), block), run.sizes)


def _sign(*, memory: str = "yes") -> OfRun:
    return lambda run: whole(scaled_sign(run.shapes))


CODECS: dict[str, Callable[..., OfRun]] = {
    **{"bf16": _bf16, "int8": _int8, "int4": _levels(INTEGERS), "fp4": _levels(E2M1), "qsgd": _qsgd},
    **{"topk": _topk, "randomk": _randomk, "sign": _sign, "dct": _dct},
}
