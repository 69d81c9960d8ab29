"""RFA: synchronous SGD along the geometric median of the workers' gradients, against hostile workers.

    worker k    push g_k(θ),  wait,  x ← θ
    server      z ← 0, then `iterations` times:  w_k = 1/max(ν, ‖g_k − z‖),  z ← Σ w_k g_k / Σ w_k
                θ ← θ − η z,  then release all workers

The geometric median is the point with the least sum of distances; the iteration is Weiszfeld's, with ν against a
division by zero. `momentum` and `bucket` are those of `centered_clipping`.

Use: if some workers may send anything; it withstands fewer than half of them, and takes none of the workers for more
hostile than another. Not if their messages hide in the noise of the others: see `centered_clipping`.
Reference: Pillutla, Kakade and Harchaoui, *Robust Aggregation for Federated Learning*, IEEE TSP 2022, arXiv:1912.13445,
Algorithm 2.
Departures: gradients of one batch; the paper has models after local steps, with weights by the size of their data. A
gradient that is not finite has no part in z.
Limits: with one worker it is serial SGD. A large ν makes it the mean, `sync_sgd`. It needs the whole vectors, so one
ps, which keeps W of them. One message moves the median by a bounded distance, however large it is.
Defaults: eight iterations, as in arXiv:2006.09365; the paper has three or four, and ν of a millionth.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Fraction, Natural, Positive, Robust, tf, whole


@dataclass(frozen=True, kw_only=True)
class RFA(Robust):
    """The geometric median of one gradient of each worker."""

    paper = "Pillutla et al. 2022"
    whole_center = True
    aliases = ("geometric_median",)

    smoothing: Positive = 1e-6
    """Least distance ν of a gradient from the median."""
    iterations: Natural = 8
    """Iterations of Weiszfeld."""
    hostile_share: Fraction = 0.25
    """Fraction of the workers that may send what is not finite."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Barrier(outliers=self.hostile_share)

    def aggregate(self, server, rows, present, hostile):
        counts = whole(rows, present)
        rows, median = tf.where(counts[:, None], rows, 0.0), tf.zeros_like(rows[0])
        for _ in range(self.iterations):
            weights = 1 / tf.maximum(tf.norm(rows - median, axis=1, keepdims=True), self.smoothing)
            weights = tf.where(counts[:, None], weights, 0.0)
            median = tf.reduce_sum(weights * rows, 0) / tf.maximum(tf.reduce_sum(weights), 1e-30)
        return median
