"""Tensors of several types as one vector of floats, for queues that carry vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

FLOAT = tf.float32.size


def as_one(wire: Sequence[Any]) -> Any:
    """Return the bits of encoded tensors as one vector [m] of float32; a single such vector as it is.

    The lengths of the tensors come first, as a codec may send another number of elements each time.
    """
    if len(wire) == 1 and wire[0].dtype == tf.float32 and wire[0].shape.rank == 1:
        return wire[0]
    lengths = tf.stack([tf.shape(tensor)[0] for tensor in wire])
    return tf.concat([tf.bitcast(lengths, tf.float32), *map(_bits, wire)], 0)


def as_tensors(vector: Any, like: Sequence[Any]) -> list[Any]:
    """Return the tensors of which `as_one` has made a vector; `like` are tensors of the same codec."""
    if len(like) == 1 and like[0].dtype == tf.float32 and like[0].shape.rank == 1:
        return [vector]
    lengths, begin, found = tf.bitcast(vector[: len(like)], tf.int32), len(like), []
    for i, tensor in enumerate(like):
        length = lengths[i] if tensor.shape[0] is None else tensor.shape[0]
        size = length * math.prod(tensor.shape[1:]) * tensor.dtype.size
        end = begin - (-size // FLOAT)
        found.append(_of_bits(vector[begin:end], size, tensor.dtype, [length, *tensor.shape[1:]]))
        begin = end
    return found


def _bits(tensor: Any) -> Any:
    """Return the bits of a tensor as float32, filled up to a whole number of them."""
    flat = tf.reshape(tensor, [-1])
    if tensor.dtype.size == FLOAT:
        return tf.bitcast(flat, tf.float32)
    octets = tf.reshape(tf.bitcast(flat, tf.uint8), [-1])
    size = octets.shape[0] if octets.shape[0] is not None else tf.size(octets)
    return tf.bitcast(tf.reshape(tf.pad(octets, [[0, -size % FLOAT]]), [-1, FLOAT]), tf.float32)


def _of_bits(floats: Any, size: Any, dtype: Any, shape: Sequence[Any]) -> Any:
    """Return the tensor of this type and shape, of `size` bytes, whose bits begin these floats."""
    if dtype.size == FLOAT:
        return tf.reshape(tf.bitcast(floats, dtype), shape)
    octets = tf.reshape(tf.bitcast(floats, tf.uint8), [-1])[:size]
    element = [dtype.size] if dtype.size > 1 else []
    return tf.bitcast(tf.reshape(octets, [*shape, *element]), dtype)
