"""How a tensor comes from the process that made it to the one that needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..contract.cut import parts_of, place_of
from .segments import GONE, SHARED_BYTES, Segments

SEGMENTS = Segments()  # of this process


def _token(function: Any, argument: Any, result: Any) -> str:
    """What TensorFlow calls a function of Python.

    The names are numbers, in order. Processes that import this module as the first that has such functions give them
    the same names, so any of them can build a graph in which another one's functions are called.
    """
    with tf.Graph().as_default():
        return tf.numpy_function(function, [argument], result).op.get_attr("token").decode()


def _put(bounds: Any, *data: Any) -> Any:
    return SEGMENTS.put(*(part[begin:end] for part, (begin, end) in zip(data, bounds, strict=True)))


def _take(ticket: Any) -> Any:
    return SEGMENTS.take(ticket)


PUT = _token(_put, b"", tf.int64)
TAKE = _token(_take, b"", tf.uint8)


@dataclass(frozen=True)
class Parcel:
    """A tensor that lies in shared memory. Where TensorFlow goes through a structure, it finds the ticket."""

    ticket: Any  # int64, [4]; a tensor, or its value
    dtype: Any
    shape: Any

    def __tf_flatten__(self) -> tuple[Any, Any]:
        return (self.dtype, self.shape), (self.ticket,)

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: Any) -> Parcel:
        return cls(*components, *metadata)


def fed(place: Any, array: np.ndarray) -> np.ndarray:
    """What a session is to be fed at a `Client.feed`, once, for this array to arrive there."""
    if not isinstance(place, Parcel):
        return array
    return SEGMENTS.put(np.ascontiguousarray(array, place.dtype.as_numpy_dtype).reshape(-1).view(np.uint8))


def fetched(found: Any) -> np.ndarray:
    """What a session has found where the graph has a tensor, or a parcel: open that once, and write nothing there.

    Raises:
        tf.errors.UnavailableError: whoever has laid it down is gone.
    """
    if not isinstance(found, Parcel):
        return found
    try:
        content = SEGMENTS.take(found.ticket)
    except RuntimeError as error:
        if GONE not in str(error):
            raise
        raise tf.errors.UnavailableError(None, None, str(error)) from None
    array = content.view(found.dtype.as_numpy_dtype).reshape(found.shape)
    array.flags.writeable = False
    return array


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
        # TensorFlow copies a slice that is not aligned, and what is put together: in the segment it is done anyway.
        places = [place_of(part) for part in parts_of(tensor) or [tensor]]
        data = [tf.constant([place[1:] for place in places]), *(tf.bitcast(place[0], tf.uint8) for place in places)]
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


class Client:
    """Who feeds some tensors, and fetches some. A session copies them on their way, unless they lie in memory.

    Args:
        transport: to the tasks, and from them.
        device: of this client, or of a task near it.
    """

    def __init__(self, transport: Transport, device: str):
        self.transport, self.device = transport, device

    def feed(self, dtype: Any, shape: Sequence[int]) -> Any:
        """Where a tensor is fed, see `fed`; the same for `Transport.arrive`."""
        dtype, shape = tf.as_dtype(dtype), tf.TensorShape(shape)
        with tf.device(self.device):
            if self.transport.shares(dtype, shape):
                return Parcel(tf.compat.v1.placeholder(tf.int64, [4]), dtype, shape)
            return tf.compat.v1.placeholder(dtype, shape)

    def fetch(self, departed: Any) -> Any:
        """What a session is to fetch of what has departed to this client, see `fetched`."""
        if isinstance(departed, Parcel):
            return departed
        with tf.device(self.device):
            return tf.identity(departed)
