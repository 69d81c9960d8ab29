"""Examples of arrays that may be bad: labels out of range, numbers that are not finite.

A model may handle what looks bad, so no example is refused by its numbers alone: the suspects are in the batch on which
the model is tried before a run. If it fails on that batch, a suspect that fails alone, where another example does not,
is named.

Whole arrays are looked through in memory. Of an array in a mapped file, which may be larger than the memory, `BLOCKS`
parts of `BLOCK_BYTES` are read, the first and the last among them: half a gigabyte, about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..lazy import keras
from .dataset import leaves, num_examples
from .mapped import size_of

BLOCKS, BLOCK_BYTES = 64, 1 << 23


def finite(array: np.ndarray) -> bool:
    """Return True if all numbers of an array are finite, without a temporary array of its size."""
    if array.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.sum(array, dtype=np.float64)))


def suspects(arrays: Sequence[Any]) -> list[int]:
    """Return the rows that may be bad: the first with a number that is not finite, of labels also the extreme ones.

    Args:
        arrays: x, y and sample_weight, as many as there are, nested arrays [examples, ...].
    """
    rows: list[int] = []
    for part, nested in enumerate(arrays):
        for array in leaves(nested):
            of_class = array.dtype.kind in "iu" or part == 1
            blocks = _looked_through(array)
            found = [row for first, block in blocks for row in _of_block(first, block, of_class)]
            rows += _extremes(array, found) if of_class else found[:1]
    return list(dict.fromkeys(rows))


def _looked_through(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first row of each block of rows that is read, and the block."""
    row_bytes = max(1, array.nbytes // max(1, len(array)))
    rows = max(1, BLOCK_BYTES // row_bytes)
    if rows * BLOCKS >= len(array) or size_of(array):
        yield 0, array
        return
    for first in np.linspace(0, len(array) - rows, BLOCKS).astype(np.int64).tolist():
        yield first, array[first : first + rows]


def _of_block(first: int, block: np.ndarray, of_class: bool) -> list[int]:
    """Return the suspects of a block: if its numbers are finite, those with the largest and the smallest label."""
    if not block.size or block.dtype.kind not in "iuf":
        return []
    width = block.size // len(block)
    if not finite(block):
        return [first + int(np.argmin(np.isfinite(block))) // width]
    return [first + int(place) // width for place in (block.argmax(), block.argmin())] if of_class else []


def _extremes(array: np.ndarray, rows: Sequence[int]) -> list[int]:
    """Return of these rows of labels the first that is not finite, else those with the largest and the smallest."""
    if bad := [row for row in rows if not finite(array[row])][:1]:
        return bad
    return [max(rows, key=lambda row: array[row].max()), min(rows, key=lambda row: array[row].min())] if rows else []


def diagnostic_batch(arrays: Sequence[Any], size: int) -> tuple[Any, ...]:
    """Choose a batch that exposes faults: the suspects, then the first rows.

    Args:
        arrays: nested arrays [examples, ...].
        size: size of the batch.
    """
    rows = list(dict.fromkeys([*suspects(arrays), *range(size)]))[: min(size, num_examples(arrays))]
    return _examples(arrays, rows)


def bad_example(arrays: Sequence[Any], fails: Callable[[tuple[Any, ...]], bool]) -> int | None:
    """Return the row of an example on which the model fails, where it does not fail on another; None if there is none.

    Args:
        arrays: nested arrays [examples, ...].
        fails: tells whether the model fails on a batch.
    """
    rows = suspects(arrays)
    good = next((row for row in range(num_examples(arrays)) if row not in rows), None)
    if good is None or fails(_examples(arrays, [good])):
        return None
    return next((row for row in rows if fails(_examples(arrays, [row]))), None)


def _examples(arrays: Sequence[Any], rows: Sequence[int]) -> tuple[Any, ...]:
    return keras.tree.map_structure(lambda array: array[rows], tuple(arrays))


def between_classes(loss: Any, labels: Any) -> tuple[int, float] | None:
    """Return the first row with a label between two classes, and that label, where a sparse loss would cut it off.

    Args:
        loss: `model.loss`: a loss, or nested ones, one for each array of labels.
        labels: nested arrays [examples, ...].
    """
    losses, arrays = keras.tree.flatten(loss), leaves(labels)
    losses = losses * len(arrays) if len(losses) == 1 else losses
    for part, array in zip(losses, arrays, strict=False) if len(losses) == len(arrays) else ():
        if array.dtype.kind == "f" and _takes_classes(part):
            bad = array != np.trunc(array)
            if bad.any():
                place = np.unravel_index(int(bad.argmax()), array.shape)
                return int(place[0]), float(array[place])
    return None


def _takes_classes(loss: Any) -> bool:
    if isinstance(loss, str):
        return loss.replace("_", "").lower() == "sparsecategoricalcrossentropy"
    kind = keras.losses.SparseCategoricalCrossentropy
    return isinstance(loss, kind) or loss is keras.losses.sparse_categorical_crossentropy


def of_worker(row: int, shards: np.ndarray, owner: str) -> str:
    """Return ' (worker 2)' for a row of one of the shards, [owners, examples]; nothing for a row of none."""
    found = np.argwhere(shards == row)
    return f" ({owner} {found[0][0]})" if len(found) else ""
