"""EDiT: DiLoCo whose server gives long moves less weight, drops unusually long ones, and clips their mean.

    worker, each step       x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over
                            periods and never leave the worker
    every period            push x,  wait,  x ← θ
    server                  Δ_k = θ − x_k,  n_k = ‖Δ_k‖,  which is an outlier if n_k > a_k + z √(v_k), after N rounds,
                            a_k ← a_k + α (n_k − a_k),  v_k ← (1 − α) v_k + α (n_k − a_k)²    a_k = v_k = 0 at first
                            w_k = exp(−n_k/T) / Σ exp(−n_j/T) over those that are no outliers, whose w_k is 0
                            Δ = Σ w_k Δ_k,  Δ ← Δ min(1, c/‖Δ‖),  m ← μ m + Δ,  θ ← θ − ε (Δ + μ m),
                            then release all workers

with α = 0.02. If all moves are outliers, θ and m stay, and the workers begin again at θ. A norm that is an outlier
counts in its worker's a_k and v_k, too.

Use: for long runs with rare spikes of the loss, or a worker with bad data; on equal, quiet workers it is `diloco`.
Reference: Cheng, Gao, Yue, Ye, Jiang, Sha, *EDiT: A Local-SGD-Based Efficient Distributed Training Method for Large
Language Models*, ICLR 2025, arXiv:2412.07210. The numbers and the detector are those of the authors' code
(dlrover/atorch); of the paper only the abstract and parts were read.
Departures: norms are of all parameters; in the authors' code, of each module. z is constant; there it is multiplied by
the standard deviation of recent scores, if that is above one. The server measures the norms, of what has arrived: a
worker that is started again keeps its a_k and v_k. No layers that are exchanged one by one during the next forward
pass, and no A-EDiT, whose rounds end by the clock. The authors' example also decides by signs which elements count.
Limits: with T = ∞, no outlier and no clip it is `diloco`, with equal norms, too. The weights depend on differences of
norms: a move that is longer than another by T ln 10 counts a tenth of it. As a_k begins at zero, moves of one length n
are outliers above 1.7 n after 20 rounds and 2.1 n after 60. One ps, which keeps the parameters of each worker.
Defaults: the authors' example has ε = 0.7, μ = 0.8, c = 10 and N = 10, after which 1.3 n are an outlier; here N = 20.
"""

from dataclasses import dataclass

from ..common.contract import EachWorker, Fraction, Natural, Positive, take, tf
from .diloco import DiLoCo

RATE = 0.02


@dataclass(frozen=True, kw_only=True)
class EDiT(DiLoCo):
    """Many local AdamW steps, then a Nesterov step along the mean of moves that are not unusually long."""

    paper = "Cheng et al. 2025"
    aliases = ()
    whole_center = True

    momentum: Fraction = 0.8
    """Outer Nesterov momentum μ."""
    temperature: Positive = 1.0
    """Difference T of two norms by which the shorter move has e times the weight of the longer one."""
    threshold: Positive = 3.0
    """Standard deviations z above a worker's mean norm beyond which its move is dropped."""
    warmup_rounds: Natural = 20
    """First rounds N of a worker, in which no move is dropped."""
    move_clip: Positive = 10.0
    """Largest norm c of the mean move."""

    def global_variables(self, center):
        numbers = dict.fromkeys(("norms", "norm_mean", "norm_variance", "present"), EachWorker(0.0))
        return super().global_variables(center) | {"pushed": EachWorker(center)} | numbers

    def weighted(self, server, message, staleness):
        server.pushed.assign(message)
        server.present.assign(1.0)
        return message

    def server_update(self, server, message, staleness):
        moves, there = server.center - server.pushed.read_value(), take(server.present) > 0
        norms = tf.norm(moves, axis=1)
        counts = there & ~self._outliers(server, norms, there)
        shortest = tf.reduce_min(tf.where(counts, norms, norms.dtype.max))
        weights = tf.where(counts, tf.exp(tf.minimum(0.0, shortest - norms) / self.temperature), 0.0)
        weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))
        moved = tf.reduce_sum(weights[:, None] * moves, axis=0)
        moved *= tf.minimum(1.0, tf.math.divide_no_nan(self.move_clip, tf.norm(moved)))
        velocity, some = self.momentum * server.velocity + moved, tf.reduce_any(counts)
        server.velocity.assign(tf.where(some, velocity, server.velocity))
        server.center.assign_sub(tf.where(some, self.outer_learning_rate * (moved + self.momentum * velocity), 0.0))
        return server.center

    def _outliers(self, server, norms, there):
        """Return flags [W] of norms that are unusual for their workers, which then learn those that are there."""
        mean, variance = server.norm_mean.read_value(), server.norm_variance.read_value()
        found = (server.norms >= float(self.warmup_rounds)) & (variance > 0)
        found &= norms > mean + self.threshold * tf.sqrt(variance)
        learned = mean + RATE * (norms - mean)
        server.norm_mean.assign(tf.where(there, learned, mean))
        server.norm_variance.assign(
            tf.where(there, (1 - RATE) * variance + RATE * tf.square(norms - learned), variance)
        )
        server.norms.assign_add(tf.cast(there, tf.float32))
        return found
