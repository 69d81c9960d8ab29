"""Centered clipping: synchronous SGD whose server clips how far each worker's momentum is from the last aggregate.

    worker k    push g_k(θ),  wait,  x ← θ
    server      m_k ← β m_k + (1 − β) g_k of each worker;  v is that of the step before, and then, `iterations` times,
                v ← v + (1/W) Σ_k (m_k − v) min(1, τ/‖m_k − v‖)
                θ ← θ − η v,  then release all workers    v and m begin at zero

With `bucket` s the m_k come in random order, and the rule gets the means of s each: on unequal shards honest workers
are then nearer to each other. A worker's momentum shrinks the noise in which an attack of few steps hides.

Use: if some workers may send anything, also where they know what the others send (`--hostile alie:2`); not with shards
so unequal that τ clips honest workers.
Reference: Karimireddy, He and Jaggi, *Learning from History for Byzantine Robust Optimization*, ICML 2021,
arXiv:2012.10333; the same, *Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing*, ICLR 2022,
arXiv:2006.09365.
Departures: the momentum of each worker is kept by the ps, which computes it from the gradients: the same numbers in
messages of the same size. The authors' code has m ← β m + g, 1/(1 − β) times as long, and so is its τ. A gradient that
is not finite has no part in v, and its worker's momentum begins anew. The order of buckets is the same in each run.
Limits: with τ = ∞ it is the mean, `sync_sgd` on the momentum; with many iterations `rfa` with ν = τ and as many; with
s = W the mean. One worker moves v by at most τ/W in an iteration, so it takes ‖∇f‖ W/(τ (W − f)) of these to begin. It
needs the whole vectors, so one ps, which keeps W of them. Buckets multiply the hostile share by up to s.
Defaults: those of the authors' experiments have τ from 10 to 100 in units of g/(1 − β) and one to three iterations.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Decay, Fraction, Natural, Positive, Robust, tf, whole


@dataclass(frozen=True, kw_only=True)
class CenteredClipping(Robust):
    """The mean of the workers' momenta, each of which is clipped around the aggregate of the step before."""

    paper = "Karimireddy et al. 2021"
    whole_center = True

    momentum: Decay = 0.9
    """Momentum β of each worker's gradients, which the server keeps; 0 for none."""
    radius: Positive = 1.0
    """Radius τ: the largest distance from the aggregate that counts; about that of honest momenta."""
    iterations: Natural = 3
    """Times that the momenta are clipped in a step."""
    hostile_share: Fraction = 0.25
    """Fraction of the workers that may send what is not finite."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Barrier(outliers=self.hostile_share)

    def global_variables(self, center):
        return {**super().global_variables(center), "aggregate_before": 0 * center}

    def aggregate(self, server, rows, present, hostile):
        counts = whole(rows, present)
        number = tf.maximum(tf.reduce_sum(tf.cast(counts, tf.float32)), 1.0)
        rows = tf.where(counts[:, None], rows, 0.0)
        for _ in range(self.iterations):
            moves = tf.where(counts[:, None], rows - server.aggregate_before, 0.0)
            shares = tf.minimum(1.0, self.radius / tf.maximum(tf.norm(moves, axis=1, keepdims=True), 1e-30))
            server.aggregate_before.assign_add(tf.reduce_sum(shares * moves, 0) / number)
        return server.aggregate_before.read_value()
