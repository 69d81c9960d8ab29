"""Vectors of a run in slices, as they lie on several ps tasks, and in one, as they are in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..contract.cut import COPIES


class Slices(list[np.ndarray]):
    """A vector in slices, as it lies on several ps tasks. NumPy takes it for the whole vector."""

    @property
    def nbytes(self) -> int:
        """Of all."""
        return sum(part.nbytes for part in self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self).astype(dtype or self[0].dtype, copy=False)


def whole(slices: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Vectors from the slices of the ps tasks, `name/0`, `name/1`, ...; what is no vector is the same on all.

    A vector [n] in several slices is left in `Slices`: together it would be in memory twice.
    """
    names = dict.fromkeys(name.rsplit("/", 1)[0] for name in slices)
    parts = {name: [slices[f"{name}/{i}"] for i in range(len(slices)) if f"{name}/{i}" in slices] for name in names}
    single = {name: len(p) == 1 or name.startswith(COPIES) for name, p in parts.items()}
    return {name: p[0] if single[name] else _together(p) for name, p in parts.items()}


def _together(parts: Sequence[np.ndarray]) -> Any:
    dimensions = np.ndim(parts[0])
    return Slices(parts) if dimensions == 1 else np.concatenate(parts, -1) if dimensions else parts[0]


def sliced(array: Any, sizes: Sequence[int]) -> list[np.ndarray]:
    """A vector, or what `whole` has made of it, as slices of those sizes, along its last axis."""
    array = np.asarray(array)
    if array.ndim == 0:
        return [array] * len(sizes)
    return np.split(array, np.cumsum(sizes)[:-1], -1)


def write_array(file: Any, array: Any) -> None:
    """As `np.save` does, but a vector that is in slices is not put together first."""
    if not isinstance(array, Slices):
        return np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    kind = np.lib.format.dtype_to_descr(array[0].dtype)
    about = {"descr": kind, "fortran_order": False, "shape": (sum(map(len, array)),)}
    np.lib.format.write_array_header_1_0(file, about)
    for part in array:
        file.write(np.ascontiguousarray(part).data)
