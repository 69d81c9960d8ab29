"""The arrays in a run directory, checked as they are read: they may be foreign or damaged."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, first_line
from ..files import open_to_read
from ..server.trace import EVENTS, RECORD
from .content import Content

NUMBERS = "iuf"  # kinds of NumPy types

FORMATS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_arrays(run_dir: Path, name: str) -> dict[str, np.ndarray]:
    """Read the arrays in a file of a run that has ended.

    Raises:
        UserError: the file is missing or damaged.
    """
    if not (run_dir / name).is_file():  # reading a device would not end
        raise UserError(f"the run in {run_dir} has no {name}: it ended without a result")
    try:
        with open_to_read(run_dir / name) as file:
            return Content(run_dir / name, stored_arrays(file))
    except Exception as error:  # NumPy and zipfile raise many kinds of errors on damaged files
        raise UserError(
            f"cannot read {run_dir / name}, which is damaged: {first_line(error) or type(error).__name__}"
        ) from None


def stored_arrays(file: Any, kinds: str = NUMBERS, names: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Read arrays from an open file, without allocating more memory than the file has bytes, whatever its headers say.

    Args:
        file: file of NumPy's format npz, not compressed.
        kinds: permitted kinds of types.
        names: names of the arrays to read; all by default.

    Raises:
        ValueError: the file holds something else. A damaged file may raise other errors, too.
    """
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        return {name: _array(archive, entries[name], kinds) for name in names or entries}


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, kinds: str) -> np.ndarray:
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{entry.filename} is compressed: it may be of any size")
    with archive.open(entry) as file:
        shape, fortran_order, dtype = _header(file)
        if dtype.kind not in kinds or dtype.hasobject or fortran_order:
            raise ValueError(f"{entry.filename} holds {first_line(dtype)[:40]}, no numbers")
        content = file.read()
    if min(shape, default=1) < 0 or _product(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{entry.filename} is of shape {first_line(shape)[:40]}, which its size is not")
    return np.frombuffer(content, dtype).reshape(shape)


def _header(file: Any) -> tuple[Sequence[int], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version not in FORMATS:
        raise ValueError(f"no array of format {version} is read here")
    return FORMATS[version](file)


def _product(shape: Sequence[int]) -> int:
    size = 1  # a Python integer, which cannot overflow
    for length in shape:
        size *= int(length)
    return size


def whole_columns(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> bool:
    """Return True if these arrays are exactly the columns of one table of integers, [n] each."""
    shapes = {column.shape for column in columns.values()}
    kinds = {column.dtype.kind for column in columns.values()}
    return set(columns) == set(names) and len(shapes) == 1 and len(*shapes) == 1 and kinds == {"i"}


def read_trace(run_dir: Path, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read the events of a run that has ended: a column for each name of `RECORD`.

    Args:
        run_dir: run directory.
        config: content of its config.json.

    Raises:
        UserError: the trace is missing or damaged.
    """
    if config["record"] == "off":
        raise UserError(f"the run in {run_dir} was recorded with record=off: there is no trace.npz")
    trace = read_arrays(run_dir, "trace.npz")
    if not whole_columns(trace, RECORD):
        raise UserError(f"trace.npz is damaged: it needs the columns {', '.join(RECORD)}, of one length")
    for name, end in (("worker", config["workers"]), ("event", len(EVENTS)), ("accepted", 2)):
        if not ((trace[name] >= 0) & (trace[name] < end)).all():
            raise UserError(f"trace.npz is damaged: {name} must be at least 0 and less than {end}")
    return trace
