"""The user's data as NumPy arrays: tensors, lists, frames, and all that yields batches, such as a `tf.data.Dataset`."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import UserError
from ..lazy import keras
from ..system import memory_bytes
from . import USUAL_BATCH
from .dataset import leaves, num_examples
from .mapped import size_of
from .models import plain
from .trial import described

KINDS = (
    "(x, y), (x, y, sample_weight) or x of arrays, something that yields batches of them (a tf.data.Dataset, a "
    "keras.utils.PyDataset, a generator), or a function that returns a tf.data.Dataset"
)


MOST_BATCHES = 1_000_000  # read of data whose end is not known

MEMORY_SHARE = 4  # data that are read may take a fourth of the machine's memory


def read(
    data: Any, name: str, model: Any = None, batch_size: int | None = None, steps: int | None = None
) -> tuple[Any, int | None]:
    """Return data as a tuple of nested arrays, and the size of the batches in which they came, None if in none.

    A function is returned as it is. Data that yield batches are read once, here.

    Args:
        data: the data, as `train` takes them.
        name: name of the argument, for errors.
        model: Keras model, whose inputs tell batches from single examples; without them, all are batches.
        batch_size: examples of a step; by default those of the first batch.
        steps: local steps of all workers together; so many batches are read of data whose length is not known.

    Raises:
        UserError: the data are of another kind, cannot be read, or have no end.
    """
    if callable(data):
        return data, None
    if not yields_batches(data):
        return arrays_of(data, name), None
    length = _length(data)
    if length == math.inf and steps is None:
        raise UserError(f"{name} never ends: give {ENDED.get(name, 'a finite one')}")
    rows: list[list[np.ndarray]] = []
    parts, single, size, wanted, examples, memory = (), False, 0, None, 0, 0
    for element in _elements(data, name):
        arrays = parts_of(element, f"a batch of {name}")
        if not rows:
            parts, single = arrays, _is_example(arrays[0], model)
            size = batch_size or (USUAL_BATCH if single else _count(arrays, name))
            wanted = steps * size if steps and length in (None, math.inf) else None
        # Copies, because a generator may write each batch into the same arrays.
        leaves_of_batch = [np.array(leaf[None] if single else leaf) for leaf in keras.tree.flatten(arrays)]
        rows.append(leaves_of_batch)
        examples += len(leaves_of_batch[0])
        memory += sum(leaf.nbytes for leaf in leaves_of_batch)
        if wanted is not None and examples >= wanted:
            break
        _check_amount(name, len(rows), memory, length)
    return arrays_of(_joined(rows, parts, wanted, name), name), None if single else size


def yields_batches(data: Any) -> bool:
    """Return True for a data set, generator and the like; False for arrays, also nested ones, and for functions."""
    arrays = isinstance(data, tuple | list | dict | str | bytes) or _is_array(data)
    return hasattr(data, "__iter__") and not arrays and not callable(data)


def arrays_of(data: Any, name: str) -> tuple[Any, ...]:
    """Return (x,), (x, y) or (x, y, sample_weight) of nested NumPy arrays; raise `UserError` for other data."""
    arrays = parts_of(data, name)
    wrong = sorted({str(leaf.dtype) for leaf in leaves(arrays) if leaf.dtype.kind in "OMmV"})
    if wrong:
        raise UserError(f'{name} must hold numbers, as after array.astype("float32"). Received: {", ".join(wrong)}')
    if not _count(arrays, name):
        raise UserError(f"{name} must hold examples. Received: arrays of length 0")
    return arrays


def _count(parts: tuple[Any, ...], name: str) -> int:
    """Return the number of examples; raise `UserError` for arrays without an axis of examples."""
    if not all(leaf.ndim for leaf in leaves(parts)):
        raise UserError(
            f"{name} must have the examples along the first axis, as after dataset.batch(32). Received: "
            f"{described(parts)}"
        )
    return num_examples(parts)


def parts_of(data: Any, name: str) -> tuple[Any, ...]:
    """Return x, y and sample_weight, as many as there are, as nested arrays of any shape and type."""
    parts = tuple(data) if isinstance(data, tuple | list) else (data,)
    while parts and parts[-1] is None:
        parts = parts[:-1]
    if not 1 <= len(parts) <= 3:
        received = "None" if data is None else f"a {type(data).__name__} of {len(parts)}"
        raise UserError(f"{name} must be {KINDS}. Received: {received}")
    return tuple(_arrays(part, name) for part in parts)


def _arrays(part: Any, name: str) -> Any:
    """Return one of x, y and sample_weight as nested arrays; a list of numbers is one array, and so is a frame."""
    if isinstance(part, dict):
        return {key: _arrays(value, name) for key, value in part.items()}
    numeric = all(isinstance(leaf, numbers.Real) for leaf in leaves(part))
    if isinstance(part, tuple | list) and not numeric:
        return [_arrays(value, name) for value in part]
    try:
        if isinstance(part, np.ndarray) or numeric:
            return _narrowed(np.asarray(part))
        if _is_array(part):
            return _narrowed(np.asarray(getattr(part, "to_numpy", lambda: part)()))
    except Exception as error:  # lists of unequal lengths, a symbolic tensor, a tensor on another device
        raise UserError(f"{name} cannot be read as an array: {plain(error)}") from None
    wanted = "hold dense arrays" if hasattr(part, "dtype") else f"be {KINDS}"
    raise UserError(f"{name} must {wanted}. Received: {kind_of(part)}")


def _narrowed(array: np.ndarray) -> np.ndarray:
    """Return wider floats in 32 bits, or in 64 if that is Keras' setting; an array in a mapped file stays there.

    A setting of 16 bits is for the loss of a model of one's own (`loss_of`): models of the catalogue have none.
    """
    if array.dtype.kind != "f" or array.itemsize <= 4 or not size_of(array):
        return array  # without an import of Keras, which the command line leaves to the tasks
    return array.astype("float64" if keras.config.floatx() == "float64" else "float32", copy=False)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "to_numpy")


def _length(data: Any) -> float | None:
    """Return the number of batches of a data set: infinity if it has no end, None if it is not known."""
    with contextlib.suppress(TypeError, NotImplementedError):
        if hasattr(data, "cardinality"):
            count = int(data.cardinality())
            return count if count >= 0 else {-1: math.inf}.get(count)
        count = data.num_batches if hasattr(data, "num_batches") else len(data)
        return math.inf if count is None else count
    return None


def _elements(data: Any, name: str) -> Iterator[Any]:
    """Yield what the user's data yield; an exception of theirs becomes a `UserError`."""
    try:
        yield from data
    except Exception as error:
        raise UserError(f"{name} cannot be read: {plain(error)}") from None


def _is_example(x: Any, model: Any) -> bool:
    """Return True if x has the shape of an example of the model, not of a batch."""
    shapes = [tuple(tensor.shape[1:]) for tensor in keras.tree.flatten(getattr(model, "inputs", None) or [])]
    return bool(shapes) and all(any(_fits(leaf.shape, shape) for shape in shapes) for leaf in leaves(x))


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (actual, None) for actual, size in zip(shape, wanted, strict=True))


def _check_amount(name: str, batches: int, memory: int, length: float | None) -> None:
    """Raise `UserError` if data are too many to be read into memory."""
    limit = memory_bytes() / MEMORY_SHARE
    if memory > limit:
        raise UserError(
            f"{name} take more than a fourth of the memory, {limit / 1e9:.0f} GB: give a function that returns a "
            "tf.data.Dataset, which each worker reads batch by batch"
        )
    if length is None and batches > MOST_BATCHES:
        raise UserError(f"{name} had no end after {MOST_BATCHES} batches: give {ENDED.get(name, 'a finite one')}")


ENDED = {"data": "steps, the local steps of each worker"}


def _joined(rows: list[list[np.ndarray]], parts: Any, wanted: int | None, name: str) -> tuple[Any, ...]:
    """Return the batches as one, at most the first `wanted` examples."""
    if not rows:
        raise UserError(f"{name} must hold examples. Received: no batch")
    try:
        whole = [np.concatenate(column)[:wanted] for column in zip(*rows, strict=True)]
    except ValueError as error:
        raise UserError(f"{name} must yield batches of one shape, as after padding: {plain(error)}") from None
    return keras.tree.pack_sequence_as(parts, whole)


def kind_of(leaf: Any) -> str:
    """Return library and type of an object that was given as an array."""
    return f"{type(leaf).__module__.split('.')[0]}.{type(leaf).__name__}".removeprefix("builtins.")
