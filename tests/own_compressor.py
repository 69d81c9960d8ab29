"""A file of a user, for `--import`: a codec for `--codec`, and its equations for a replay.

What `decode` returns of a vector that is not finite must not be finite: the ps refuses such messages.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from distsgd.common.contract import Compressor


@dataclass(frozen=True, kw_only=True)
class Ternary(Compressor):
    """The sign of each element of some magnitude, times the largest magnitude of its slice; a byte for each sign."""

    name = "ternary"

    least: float = 0.5
    """Magnitude of the elements that are sent, as a share of the largest."""

    def encode(self, vector, variables):
        largest = tf.reduce_max(tf.abs(vector))
        sent = tf.abs(vector) >= self.least * largest
        return [tf.cast(tf.where(sent, tf.sign(vector), 0.0), tf.int8), largest[None]]

    def decode(self, wire, size):
        return tf.cast(wire[0], tf.float32) * wire[1]

    def bytes(self, sizes):
        return sum(size + 4 for size in sizes)


def ternary(*, least=0.5, memory="yes"):
    """Return the codec of a run, given its options: what arrives of the message of worker k in its round t."""

    def of_run(run):
        def sent(message, k, t):
            parts = np.split(message, np.cumsum(run.sizes)[:-1])
            return np.concatenate([np.sign(v) * abs(v).max() * (abs(v) >= least * abs(v).max()) for v in parts])

        return sent

    return of_run


TRANSCRIPTIONS = {"ternary": ternary}
