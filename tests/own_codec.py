"""A file of a user, for `--import`: a codec of one's own that rounds off, and keeps the rest for the next message."""

from dataclasses import dataclass

import tensorflow as tf

from distsgd.common.contract import Async, Codec, Rate, Scheme, sgd

NOT_FINITE = -128


@dataclass(frozen=True)
class Rounded(Codec):
    """Each element as a whole number of steps from -127 to 127, in a byte."""

    step: float = 0.5

    def local_variables(self, vector):
        return {"rest": 0 * vector}

    def encode(self, vector, variables):
        wanted = vector + variables.rest
        number = tf.clip_by_value(tf.round(wanted / self.step), -127, 127)
        variables.rest.assign(wanted - self.step * number)
        return [tf.cast(tf.where(tf.math.is_finite(number), number, NOT_FINITE), tf.int8)]

    def decode(self, wire, size):
        return tf.where(tf.equal(wire[0], NOT_FINITE), float("nan"), self.step * tf.cast(wire[0], tf.float32))

    def bytes(self, sizes):
        return sum(sizes)


@dataclass(frozen=True, kw_only=True)
class RoundedSGD(Scheme):
    """Gradients in a byte for each element."""

    name = "rounded_sgd"
    sync = Async()
    codec = Rounded()

    learning_rate: Rate = 0.1
    """Step size."""

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
