"""Gradient tracking: gossip in which each worker follows the mean gradient of all, not its own, to the exact minimum.

    worker i, each step     y_i ← y_i + g_i(x_i) − g'_i,  g'_i ← g_i(x_i)    g' and y begin at zero
                            send x_i − η y_i and y_i to the neighbours,  wait for theirs
                            x_i ← Σ_j W_ij (x_j − η y_j),  y_i ← Σ_j W_ij y_j
    center                  θ ← the mean of all x_i, collected for evaluations and for the result

W is the mixing matrix of the graph, doubly stochastic. Its columns sum to one, so that the mean of the y_i is always
that of the latest gradients, and the y_i approach it: at the minimum, where the mean is zero, no worker moves.

Use: as `d_psgd`, where the shards of the workers differ: at a constant rate `d_psgd` then ends beside the minimum, each
worker pulled to that of its own shard; not for equal shards, where the second vector of a message brings nothing.
Reference: Pu and Nedić, *Distributed Stochastic Gradient Tracking Methods*, Mathematical Programming 2021,
arXiv:1805.11454, section 1.2 (DSGT); Koloskova, Lin and Stich, *An Improved Analysis of Gradient Tracking for
Decentralized Machine Learning*, NeurIPS 2021, arXiv:2202.03836.
Departures: none. Graphs that change from round to round are later than the first paper.
Limits: on the complete graph all x_i are equal, and it is `all_reduce`; with one worker serial SGD. On each graph the
mean of the workers moves by the mean of their gradients, as with `d_psgd`. With the
step from which on a worker is out, or back, y and g' begin anew at zero: the mean of the y_i is that of the gradients
again. On the same loss ½Lx² of all workers it is stable for η < 2/L, and on a fixed symmetric graph with a smallest
eigenvalue λ_min below zero for η < (1/|λ_min| − |λ_min|)/L. The limits of η L:

    workers             4     8     16    32
    ring                2.00  2.00  2.00  2.00
    torus               2.00  1.50  1.07  1.07
    hypercube           2.00  1.50  1.07  0.83
    exponential         2.00  2.00  2.00  2.00
    one-peer            1.00  2.00  1.02  2.00
    random-matching     2.00  2.00  1.88  1.84
    complete            2.00  2.00  2.00  2.00
"""

from dataclasses import dataclass

from ..common.contract import ClearedOnLoss, OnGraph, Rate, tf


@dataclass(frozen=True, kw_only=True)
class DSGDTracking(OnGraph):
    """Gossip: each worker follows the mean gradient of all, which it estimates with its neighbours."""

    paper = "Pu & Nedić 2021"
    aliases = ("dsgt", "gradient_tracking")
    linear_vectors = 3  # parameters, and η times both sums

    learning_rate: Rate = 0.2
    """Step size η of each worker."""

    def linear_round(self, mix, vectors, curvature):
        params, mean_step, last_step = vectors
        followed = mean_step + curvature * params - last_step
        return mix(params - followed), mix(followed), curvature * params

    def message_sizes(self, shapes):
        return [2 * size for size in super().message_sizes(shapes)]

    def local_variables(self, params):
        return {name: ClearedOnLoss(0 * params) for name in ("mean_gradient", "last_gradient")}

    def message(self, worker):
        followed = worker.mean_gradient + worker.gradient - worker.last_gradient
        worker.last_gradient.assign(worker.gradient)
        return tf.concat([worker.params - self.learning_rate * followed, followed], 0)

    def on_reply(self, worker, reply):
        params, mean_gradient = tf.split(reply, 2)
        worker.params.assign(params)
        worker.mean_gradient.assign(mean_gradient)
