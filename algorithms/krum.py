"""Krum: synchronous SGD by the gradient that is nearest to those around it, against hostile workers.

    worker k    push g_k(θ),  wait,  x ← θ
    server      s_k = Σ ‖g_k − g_j‖² over the W − f − 2 workers j ≠ k that are nearest to k, with f = ⌊β W⌋;
                θ ← θ − η g_k of the worker with the least s_k,  then release all workers

Multi-Krum takes the mean of the `chosen` gradients with the least s_k.

Use: if some workers may send anything; its choice is of whole gradients, that of `trimmed_mean` of each coordinate.
Reference: Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent*, NeurIPS 2017, arXiv:1703.02757.
Departures: with few workers, at least one neighbour counts; the paper has 2f + 2 < W. After the loss of a worker W is
the number of those left.
Limits: if all gradients are chosen it is `sync_sgd`. With one chosen, a step has the noise of one worker's gradient, so
that more workers do not make it better. It needs the whole vectors, so one ps, which keeps W of them. On unequal data
honest workers are far apart, and Krum always prefers the same ones.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Fraction, Natural, Rate, Scheme, sgd, tf


@dataclass(frozen=True, kw_only=True)
class Krum(Scheme):
    """The gradient that is nearest to those around it, or the mean of several such."""

    paper = "Blanchard et al. 2017"
    sync = Barrier()
    whole_center = True
    aliases = ("multi_krum --chosen 2",)

    learning_rate: Rate = 0.2
    """Step size η."""
    hostile_share: Fraction = 0.25
    """Fraction β of the workers that may be hostile."""
    chosen: Natural = 1
    """Gradients of which a step takes the mean, the nearest ones."""

    def worker_rows(self, center):
        return {"gradients": 0 * center}

    def worker_numbers(self):
        return {"present": 0.0}  # a worker that was lost keeps its row

    def weighted(self, server, message, staleness):
        server.gradients.assign(message)
        server.present.assign(1.0)
        return message

    def server_update(self, server, message, staleness):
        rows, present = server.gradients.read_value(), server.present.read_value() > 0
        number = tf.reduce_sum(tf.cast(present, tf.int32))
        far = [tf.reduce_sum(tf.square(rows - rows[k]), 1) for k in range(server.num_workers)]
        others = present[None] & ~tf.eye(server.num_workers, dtype=tf.bool)
        nearest = tf.sort(tf.where(others, far, float("inf")), axis=1)
        scores = tf.reduce_sum(nearest[:, : tf.gather(self._neighbours(server.num_workers), number)], axis=1)
        scores = tf.where(present, tf.minimum(scores, tf.float32.max), float("inf"))  # one alone has no neighbour
        best = tf.argsort(scores, stable=True)[: tf.minimum(number, self.chosen)]
        sgd(server.center, tf.reduce_mean(tf.gather(rows, best), axis=0), self.learning_rate)
        server.present.assign(tf.zeros([server.num_workers]))
        return server.center

    def _neighbours(self, workers):
        """Return how many neighbours count, for each number of workers."""
        return [max(1, n - int(self.hostile_share * n + 1e-9) - 2) for n in range(workers + 1)]
