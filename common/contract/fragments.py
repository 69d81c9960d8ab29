"""Fragments: consecutive parts of the vector [P] of nearly equal size, of which a message may hold one alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..lazy import tf

Fragments = Callable[[int], Any]  # see `Worker.fragments`


def fragments_of(sizes: Sequence[int]) -> list[Fragments]:
    """Return the function `fragments` of the views for each slice of the vector; `sizes` are those of the slices."""
    return [
        partial(_fragments, end - n, n, sum(sizes)) for end, n in zip(itertools.accumulate(sizes), sizes, strict=True)
    ]


def _fragments(first: int, number: int, size: int, count: int) -> Any:
    """Return the fragment ⌊j F / P⌋ of each coordinate j of a slice [n] that begins at `first`, int32."""
    return tf.cast(tf.range(first, first + number, dtype=tf.int64) * count // size, tf.int32)
