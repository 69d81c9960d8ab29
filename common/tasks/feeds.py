"""Vectors as they are fed to a session and fetched from it, in the slices of the ps tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..record.array_files import sliced


def feed_of(places: Sequence[Any], vector: Any) -> list[np.ndarray]:
    """Return the values to feed at the placeholders of slices: the parts of the vector."""
    from ..messages.transport import fed

    parts = sliced(vector, [int(place.shape[-1]) if place.shape.rank else 0 for place in places])
    return [fed(place, part) for place, part in zip(places, parts, strict=True)]


def whole_of(parts: Sequence[Any]) -> np.ndarray:
    """Return one array, joined from the fetched slices."""
    from ..messages.transport import fetched

    arrays = [fetched(part) for part in parts]
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
