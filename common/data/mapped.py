"""Arrays in memory-mapped files: another process maps the same file, in place of a copy of the numbers."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE = 64  # elements that are compared


class Pickler(pickle.Pickler):
    """A pickler that writes the name and the place in the file of each array that a file holds.

    The file may be deleted or replaced while a process has it mapped, and a mapping may have changes of its own
    (`mmap_mode="c"`): then the numbers are written.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return the function and arguments that restore a mapped array; `NotImplemented` for other objects."""
        return (_place(obj) or NotImplemented) if isinstance(obj, np.ndarray) else NotImplemented


def size_of(*arrays: np.ndarray) -> int:
    """Return the bytes that a `Pickler` writes for these arrays."""
    return sum(0 if _place(array) else array.nbytes for array in arrays)


def loaded(file: Path) -> np.ndarray:
    """Return the array in a .npy file, mapped if its file system permits that."""
    try:
        return np.load(file, mmap_mode="r")
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return np.load(file)


def _place(array: np.ndarray) -> tuple[Callable[..., np.ndarray], tuple[Any, ...]] | None:
    """Return `mapped` and its arguments for an array that a file holds, or a part of one; None for another."""
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if not isinstance(whole, np.memmap) or not whole.filename or whole.mode == "c" or not array.size:
        return None
    start = array.ctypes.data - whole.ctypes.data
    low, high = (bound - whole.ctypes.data for bound in np.lib.array_utils.byte_bounds(array))
    place = os.path.abspath(whole.filename), whole.offset + low, high - low, start - low
    described = (*place, array.dtype, array.shape, array.strides)
    try:
        same = _sample(mapped(*described)) == _sample(array)
    except (OSError, ValueError):  # the file is gone, or shorter
        return None
    return (mapped, described) if same else None


def _sample(array: np.ndarray) -> bytes:
    """Return the bytes of some elements of an array, its first and last among them."""
    steps = np.linspace(0, array.size - 1, min(array.size, SAMPLE)).astype(np.int64)
    return array[np.unravel_index(steps, array.shape)].tobytes()


def mapped(
    file: str, offset: int, size: int, start: int, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> np.ndarray:
    """Return an array in a file, which is mapped to read; raises `OSError` or `ValueError` if the file is too short.

    Args:
        file: path of the file.
        offset: first byte of the file that belongs to the array.
        size: bytes from there on.
        start: place of the first element among these bytes: after others, if a stride is negative.
        dtype: type of the elements.
        shape: shape of the array.
        strides: bytes from an element to the next, along each axis.
    """
    if offset + size > os.path.getsize(file):
        raise ValueError(f"{file} has less than {offset + size} bytes")
    memory = np.memmap(file, np.uint8, "r", offset, (size,))
    return np.ndarray(shape, dtype, memory, start, strides)
