"""Arrays in files of the format npz: vectors in slices, as on several ps tasks, and tables in chunks."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..messages.cut import COPIES


class Slices(list[np.ndarray]):
    """A vector in slices, one of each ps task. NumPy converts it to the whole vector."""

    @property
    def nbytes(self) -> int:
        """Bytes of all slices."""
        return sum(part.nbytes for part in self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self).astype(dtype or self[0].dtype, copy=False)


def whole(slices: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Join the slices of the ps tasks, `name/0`, `name/1`, ...; values that are no vectors are equal on all tasks.

    A vector [n] in several slices is returned as `Slices`, since concatenating it would need its memory twice.
    """
    names = dict.fromkeys(name.rsplit("/", 1)[0] for name in slices)
    parts = {name: [slices[f"{name}/{i}"] for i in range(len(slices)) if f"{name}/{i}" in slices] for name in names}
    single = {name: len(p) == 1 or name.startswith(COPIES) for name, p in parts.items()}
    return {name: p[0] if single[name] else _together(p) for name, p in parts.items()}


def _together(parts: Sequence[np.ndarray]) -> Any:
    dimensions = np.ndim(parts[0])
    return Slices(parts) if dimensions == 1 else np.concatenate(parts, -1) if dimensions else parts[0]


def sliced(array: Any, sizes: Sequence[int]) -> list[np.ndarray]:
    """Split a vector or a result of `whole` into slices of those sizes, along its last axis."""
    array = np.asarray(array)
    if array.ndim == 0:
        return [array] * len(sizes)
    return np.split(array, np.cumsum(sizes)[:-1], -1)


def write_array(file: Any, array: Any) -> None:
    """Write an array as `np.save` does; `Slices` are written one by one, without joining them in memory."""
    if not isinstance(array, Slices):
        return np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    kind = np.lib.format.dtype_to_descr(array[0].dtype)
    about = {"descr": kind, "fortran_order": False, "shape": (sum(map(len, array)),)}
    np.lib.format.write_array_header_1_0(file, about)
    for part in array:
        file.write(np.ascontiguousarray(part).data)


def save_columns(path: Path, names: Sequence[str], length: int, rows: Callable[[], Iterable[np.ndarray]]) -> None:
    """Write a table of that `length`, atomically.

    Args:
        path: path of the file, `.npz`.
        names: names of the columns.
        length: number of rows.
        rows: function that yields the rows from the first on, as arrays [n, columns]; called once for each column.

    Raises:
        CannotWrite: the file is as it was before.
    """
    with replacing(path) as target, zipfile.ZipFile(target, "w") as archive:
        for column, name in enumerate(names):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": "<i8", "fortran_order": False, "shape": (length,)}
                np.lib.format.write_array_header_1_0(file, header)
                for some in rows():
                    file.write(some[:, column].tobytes())
