"""Transport of tensors between processes, through sockets or shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from .cut import parts_of, place_of
from .ops import call, token
from .segments import GONE, SHARED_BYTES, Segments

SEGMENTS = Segments()  # of this process


def _put(bounds: Any, *data: Any) -> Any:
    """Write the parts of the arrays within these bounds, [parts, 2] bytes, as one tensor; returns its handle."""
    return SEGMENTS.put(*(part[begin:end] for part, (begin, end) in zip(data, bounds, strict=True)))


def _take(handle: Any) -> Any:
    """Return the bytes of a handle."""
    return SEGMENTS.take(handle)


PUT = token(_put)
TAKE = token(_take)


@dataclass(frozen=True)
class SharedTensor:
    """A tensor in shared memory, of which only the handle travels.

    TensorFlow treats it as a structure with the handle as its one component.
    """

    handle: Any  # int64, [4]; a tensor, or its value
    dtype: Any
    shape: Any

    def __tf_flatten__(self) -> tuple[Any, Any]:
        return (self.dtype, self.shape), (self.handle,)

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: Any) -> SharedTensor:
        return cls(*components, *metadata)


def fed(place: Any, array: np.ndarray) -> np.ndarray:
    """Return the value to feed to a placeholder of `Client.feed` for this array; it may be fed once."""
    if not isinstance(place, SharedTensor):
        return array
    return SEGMENTS.put(np.ascontiguousarray(array, place.dtype.as_numpy_dtype).reshape(-1).view(np.uint8))


def fetched(found: Any) -> np.ndarray:
    """Return the array of a fetched tensor; a shared tensor may be opened once, and its array is read-only.

    Raises:
        tf.errors.UnavailableError: the process that wrote the shared tensor has ended.
    """
    if not isinstance(found, SharedTensor):
        return found
    try:
        content = SEGMENTS.take(found.handle)
    except RuntimeError as error:
        if GONE not in str(error):
            raise
        raise tf.errors.UnavailableError(None, None, str(error)) from None
    array = content.view(found.dtype.as_numpy_dtype).reshape(found.shape)
    array.flags.writeable = False
    return array


class Transport:
    """Transport of tensors between tasks through TensorFlow's sockets."""

    def shares(self, dtype: Any, shape: Any) -> bool:
        """Return True if tensors of that type and shape go through shared memory."""
        return False

    def send(self, tensor: Any) -> Any:
        """Build the sender's side on the tensor's device; returns the argument of one `receive` on the receiver's."""
        return tensor

    def share(self, reply: Any) -> Any:
        """Prepare a reply for several `send`s, on its device; returns it."""
        return reply

    def receive(self, sent: Any) -> Any:
        """Build the receiver's side on the current device; returns the tensor."""
        return tf.identity(sent)


class SharedMemory(Transport):
    """Transport through shared memory, between tasks that one process of this machine has forked.

    Small tensors go through sockets.
    """

    def shares(self, dtype: Any, shape: Any) -> bool:
        """Return True if tensors of that type and shape go through shared memory."""
        return shape.is_fully_defined() and dtype.size * shape.num_elements() >= SHARED_BYTES

    def send(self, tensor: Any) -> Any:
        """Write a tensor to shared memory; returns its handle, for one `receive`."""
        if not self.shares(tensor.dtype, tensor.shape):
            return tensor
        # Give `put` the vectors that the tensor is a concatenation or a slice of: it copies from them into the segment.
        # TensorFlow would copy a concatenation or an unaligned slice once more before that.
        places = [place_of(part) for part in parts_of(tensor) or [tensor]]
        data = [tf.constant([place[1:] for place in places]), *(tf.bitcast(place[0], tf.uint8) for place in places)]
        return SharedTensor(call(PUT, data, tf.int64), tensor.dtype, tensor.shape)

    def share(self, reply: Any) -> Any:
        """Write a reply to shared memory once; returns it there, so that its `send`s copy nothing."""
        return self.receive(self.send(reply)) if self.shares(reply.dtype, reply.shape) else reply

    def receive(self, sent: Any) -> Any:
        """Return a tensor without a copy from shared memory."""
        if not isinstance(sent, SharedTensor):
            return tf.identity(sent)
        data = call(TAKE, [tf.identity(sent.handle)], tf.uint8)
        element = [sent.dtype.size] if sent.dtype.size > 1 else []
        shape = [-1 if n is None else n for n in sent.shape]  # one dimension may be unknown
        return tf.bitcast(tf.reshape(data, [*shape, *element]), sent.dtype)


TRANSPORTS = {"sockets": Transport, "memory": SharedMemory}


class Client:
    """A session's client that feeds and fetches tensors, which the session copies unless they are in shared memory.

    Args:
        transport: transport to and from the tasks.
        device: device of this client, or of a task near it.
    """

    def __init__(self, transport: Transport, device: str):
        self.transport, self.device = transport, device

    def feed(self, dtype: Any, shape: Sequence[int]) -> Any:
        """Make a placeholder for the value of `fed`, and an argument of `Transport.receive`."""
        dtype, shape = tf.as_dtype(dtype), tf.TensorShape(shape)
        with tf.device(self.device):
            if self.transport.shares(dtype, shape):
                return SharedTensor(tf.compat.v1.placeholder(tf.int64, [4]), dtype, shape)
            return tf.compat.v1.placeholder(dtype, shape)

    def fetch(self, sent: Any) -> Any:
        """Return the fetch for a tensor that was sent to this client; its value is an argument of `fetched`."""
        if isinstance(sent, SharedTensor):
            return sent
        with tf.device(self.device):
            return tf.identity(sent)
