"""Trimmed mean: synchronous SGD that drops the extreme gradients, coordinate by coordinate, against hostile workers.

    worker k    push g_k(θ),  wait,  x ← θ
    server      for each coordinate: sort the W values, drop the ⌊β W⌋ smallest and as many of the largest, a is the
                mean of the others;  θ ← θ − η a,  then release all workers

A value that is not finite counts as the largest: up to ⌊β W⌋ workers may send such. `momentum` and `bucket` are those
of `centered_clipping`. With β = 1/2 it is the median: one
value is left, or the middle two if their number is even.

Use: if some workers may send anything; not on unequal data, where honest workers differ, too.
Reference: Yin, Chen, Ramchandran, Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*,
ICML 2018, arXiv:1803.01498, Algorithm 1, options I (median) and II (trimmed mean).
Departures: gradients of batches; the paper has whole shards, and projects θ to a bounded set. After the loss
of a worker W is the number of those left.
Limits: with β = 0 it is `sync_sgd`. Up to ⌊β W⌋ workers, but fewer than half of all, may send anything; more of them
move each coordinate wherever they want, and the run ends if their messages are not finite.
The ps keeps the gradient of each worker: W times the model. Workers with unequal data are extreme, too: on skewed
shards, the dropped gradients bias the center.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Fraction, Robust, UserError, tf


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Robust):
    """The median or trimmed mean of one gradient of each worker, for each coordinate."""

    paper = "Yin et al. 2018"
    aliases = ("median --trim 0.5",)

    trim: Fraction = 0.25
    """Fraction β of the workers whose values are dropped at either end; 0.5 is the median."""

    def check(self, workers):
        if self.trim > 0.5:
            raise UserError(f"trim must be at most 0.5, the median. Received: trim={self.trim}")
        return super().check(workers)

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Barrier(outliers=self.trim)

    def aggregate(self, server, rows, present, hostile):
        number = tf.reduce_sum(tf.cast(present, tf.int32))
        rows = tf.sort(tf.where(present[:, None] & tf.math.is_finite(rows), rows, float("inf")), axis=0)
        kept = rows[hostile : number - hostile]
        finite = tf.math.is_finite(kept)  # all, unless workers are lost after others have sent what is not
        count = tf.reduce_sum(tf.cast(finite, tf.float32), axis=0)
        return tf.reduce_sum(tf.where(finite, kept, 0.0), 0) / tf.maximum(count, 1.0)
