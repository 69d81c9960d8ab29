"""Tables of integers in the format of `np.savez`, an array for each column, written in chunks of bounded memory."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from ..files import replacing


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
