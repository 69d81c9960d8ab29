"""How a tensor comes from the process that made it to the one that needs it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from .ops import parts_of
from .segments import Segments

SHARED_BYTES = 1 << 20  # a smaller tensor is through a socket before two functions of Python have been called

SEGMENTS = Segments()  # of this process


def _token(function: Any, argument: Any, result: Any) -> str:
    """What TensorFlow calls a function of Python.

    The names are numbers, in order. Processes that import this module as the first that has such functions give them
    the same names, so any of them can build a graph in which another one's functions are called.
    """
    with tf.Graph().as_default():
        return tf.numpy_function(function, [argument], result).op.get_attr("token").decode()


def _put(*data: Any) -> Any:
    return SEGMENTS.put(*data)


def _take(ticket: Any) -> Any:
    return SEGMENTS.take(ticket)


PUT = _token(_put, b"", tf.int64)
TAKE = _token(_take, b"", tf.uint8)


class Parcel(NamedTuple):
    """A tensor that lies in shared memory."""

    ticket: Any  # int64, [4]
    dtype: Any
    shape: Any


class Transport:
    """Between two tasks: through sockets, or through memory that they share if they are on one machine.

    Args:
        shared: True if all tasks were forked by one process on this machine.
    """

    def __init__(self, shared: bool = False):
        self.shared = shared

    def shares(self, dtype: Any, shape: Any) -> bool:
        """True if tensors of that kind go through memory."""
        return self.shared and shape.is_fully_defined() and dtype.size * shape.num_elements() >= SHARED_BYTES

    def depart(self, tensor: Any) -> Any:
        """Built where the tensor is: what `arrive` shall be given, once, on the device of whoever needs it."""
        if not self.shares(tensor.dtype, tensor.shape):
            return tensor
        data = [tf.bitcast(part, tf.uint8) for part in parts_of(tensor) or [tensor]]
        return Parcel(tf.raw_ops.PyFunc(input=data, token=PUT, Tout=[tf.int64])[0], tensor.dtype, tensor.shape)

    def share(self, reply: Any) -> Any:
        """Built where a reply is: the same, laid down once for all to whom it departs as long as it is kept."""
        return self.arrive(self.depart(reply)) if self.shares(reply.dtype, reply.shape) else reply

    def arrive(self, parcel: Any) -> Any:
        """The tensor on the present device, there when all of it is. What came through memory is not copied."""
        if not isinstance(parcel, Parcel):
            return tf.identity(parcel)
        data = tf.raw_ops.PyFunc(input=[tf.identity(parcel.ticket)], token=TAKE, Tout=[tf.uint8])[0]
        element = [parcel.dtype.size] if parcel.dtype.size > 1 else []
        return tf.bitcast(tf.reshape(data, [*parcel.shape, *element]), parcel.dtype)
