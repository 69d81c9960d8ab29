"""The places of examples in data: two workers that have an example in common must have it at the same place.

Examples that are not equal, as after an augmentation at random, say nothing about the order.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

MOST_READ, MOST_BYTES_READ = 1 << 9, 1 << 24  # examples, and bytes


def first_rows(batches: Iterable[Sequence[Any]]) -> list[int]:
    """Return a checksum for each of the first examples of batches, lists of arrays; the others are not read."""
    rows, size = [], 0
    for batch in batches:
        leaves = [np.asarray(leaf) for leaf in batch]
        rows += rows_of(leaves)
        size += sum(leaf.nbytes for leaf in leaves)
        if len(rows) >= MOST_READ or size >= MOST_BYTES_READ:
            break
    return rows


def rows_of(leaves: Sequence[Any]) -> list[int]:
    """Return a checksum for each example of a batch; nothing if the leaves are no arrays of as many examples."""
    try:
        arrays = [np.asarray(leaf) for leaf in leaves]
    except Exception:  # a tensor on another device, or an object that cannot be an array
        return []
    if not arrays or any(array.dtype.kind not in "biufUSO" for array in arrays):
        return []
    arrays = [np.atleast_1d(array) for array in arrays]
    if len({len(array) for array in arrays}) > 1:
        return []
    sums = [0] * len(arrays[0])
    for array in arrays:
        rows = (row.tobytes() for row in array) if array.dtype.kind in "biuf" else map(_text, array.tolist())
        sums = [zlib.crc32(row, before) for row, before in zip(rows, sums, strict=True)]
    return sums


def _text(row: Any) -> bytes:
    """Return texts, which arrays of several lengths may hold, as bytes; nothing for other objects."""
    if isinstance(row, list):
        return b" ".join(map(_text, row))
    return row if isinstance(row, bytes) else row.encode() if isinstance(row, str) else b""


def out_of_place(own_rows: Sequence[float], other_rows: Sequence[float]) -> bool:
    """Return True if an example that occurs once in both is not at the same place."""
    counts, places = (
        [Counter(rows) for rows in (own_rows, other_rows)],
        {row: place for place, row in enumerate(other_rows)},
    )
    return any(counts[0][row] == counts[1][row] == 1 and places[row] != place for place, row in enumerate(own_rows))
