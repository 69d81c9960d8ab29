"""Tables of integers as `np.savez` writes arrays, an array for each column; nothing is held whole."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from ..files import replacing


def save_columns(path: Path, names: Sequence[str], length: int, rows: Callable[[], Iterable[np.ndarray]]) -> None:
    """Write a table of that `length`, whole or not at all.

    Args:
        path: of the file, `.npz`.
        names: of the columns.
        length: how many rows there are.
        rows: gives them from the first on, as arrays [n, columns]; called once for each column.

    Raises:
        CannotWrite: what was there before is there still.
    """
    with replacing(path) as target, zipfile.ZipFile(target, "w") as archive:
        for column, name in enumerate(names):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": "<i8", "fortran_order": False, "shape": (length,)}
                np.lib.format.write_array_header_1_0(file, header)
                for some in rows():
                    file.write(some[:, column].tobytes())
