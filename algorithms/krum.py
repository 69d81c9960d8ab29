"""Krum: synchronous SGD by the gradient that is nearest to those around it, against hostile workers.

    worker k    push g_k(θ),  wait,  x ← θ
    server      s_k = Σ ‖g_k − g_j‖² over the W − f − 2 workers j ≠ k that are nearest to k, with f = ⌊β W⌋;
                θ ← θ − η g_k of the worker with the least s_k,  then release all workers

Multi-Krum takes the mean of the `chosen` gradients with the least s_k. A gradient that is not finite has s_k = ∞, and
is never taken: up to f workers may send one. Of equal s_k that of the lower k counts as less: with one neighbour, as of
3 and of 4 workers, the s_k of the two nearest gradients are always equal. `momentum` and `bucket` are those of
`centered_clipping`; W is then the number of buckets.

Use: if some workers may send anything; its choice is of whole gradients, that of `trimmed_mean` of each coordinate.
Reference: Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent*, NeurIPS 2017, arXiv:1703.02757.
Departures: with few workers, at least one neighbour counts; the paper has 2f + 2 < W, and a β for which that fails is
refused (the default β, a quarter, with a warning). After the loss of a worker W is the number of those left.
Limits: if all gradients are chosen it is `sync_sgd`. With one chosen, a step has the noise of one worker's gradient, so
that more workers do not make it better. It needs the whole vectors, so one ps, which keeps W of them. On unequal data
honest workers are far apart, and Krum always prefers the same ones. If more than f gradients of a step are not finite,
the run ends as with every scheme.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Fraction, Natural, Robust, UserError, tf, whole


@dataclass(frozen=True, kw_only=True)
class Krum(Robust):
    """The gradient that is nearest to those around it, or the mean of several such."""

    paper = "Blanchard et al. 2017"
    whole_center = True
    aliases = ("multi_krum --chosen 2",)

    hostile_share: Fraction | None = None
    """Fraction β of the workers that may be hostile; the default is a quarter."""
    chosen: Natural = 1
    """Gradients of which a step takes the mean, the nearest ones."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Barrier(outliers=0.25 if self.hostile_share is None else self.hostile_share)

    def check(self, workers):
        super().check(workers)
        hostile = int(self.sync.outliers * workers + 1e-9)
        if workers > 2 * hostile + 2 or not hostile:
            return []
        if self.hostile_share is None:
            return [
                f"krum takes {hostile} of {workers} workers for hostile, a quarter, and withstands that many only of "
                f"{2 * hostile + 3}: use more workers, or a smaller hostile_share"
            ]
        raise UserError(
            f"krum withstands f hostile workers of W if 2 f + 2 < W: lower hostile_share, or use more workers. "
            f"Received: hostile_share={self.hostile_share:g}, workers={workers}, so f={hostile}"
        )

    def aggregate(self, server, rows, present, hostile):
        finite = whole(rows, present)
        near = tf.maximum(_count(present) - hostile - 2, 1)
        nearest = tf.sort(_distances(rows, finite), axis=1)[:, :near]
        # Sums that overflow, and that of a gradient without a neighbour, are less than those of gradients left out.
        scores = tf.where(finite, tf.minimum(tf.reduce_sum(nearest, axis=1), tf.float32.max), float("inf"))
        best = tf.argsort(scores, stable=True)[: tf.minimum(_count(finite), self.chosen)]
        number = tf.cast(tf.maximum(tf.size(best), 1), tf.float32)
        return tf.reduce_sum(tf.gather(rows, best), axis=0) / number


def _count(flags):
    return tf.reduce_sum(tf.cast(flags, tf.int32))


def _distances(rows, finite):
    """Return ‖g_j − g_k‖² of gradients [W, P], ∞ on the diagonal and for those that are not finite.

    Each is computed once: in another order of summation, the distances of a pair would differ by their rounding.
    """
    rows = tf.where(finite[:, None], rows, 0.0)
    each = range(rows.shape[0])
    above = tf.stack([tf.pad(tf.reduce_sum(tf.square(rows[k + 1 :] - rows[k]), 1), [[k + 1, 0]]) for k in each])
    pairs = finite[:, None] & finite[None] & ~tf.eye(len(each), dtype=tf.bool)
    return tf.where(pairs, above + tf.transpose(above), float("inf"))
