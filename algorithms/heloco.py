"""HeLoCo: asynchronous DiLoCo whose server turns late moves to its momentum, where they point elsewhere.

    worker, each step       x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over
                            periods and never leave the worker
    every period            push x,  x ← reply
    server                  Δ = a_k − x,  and of each tensor  c = cos(Δ, m),  f = ‖Δ‖/(‖Δ‖ + κ ‖m‖):   one atomic event
        c ≥ c₀              G = Δ;  as with m = 0
        c < 0               G = Δ − β c ‖Δ‖ m/‖m‖,  β = min(−k_s c f, b)
        otherwise           G = ‖Δ‖ u/‖u‖,  u = (1 − λ) Δ/‖Δ‖ + λ m/‖m‖,  λ = min(k_d (1 − c) f, 1)
                            m ← μ m + (1 − μ) G,  θ ← θ − ε (G + μ m),  reply θ,  a_k ← θ

where a_k is the center that worker k pulled last. So a tensor whose move points against the momentum loses up to the
share b of that part, and one at about right angles keeps its length and is turned.

Use: for large models over slow links, with workers of different speed and unequal data; not for short runs.
Reference: Asif, Diem, Muñoz, Wolf, Jannesari, Mazaheri, *HeLoCo: Efficient Asynchronous Low-Communication Training
under Data and Device Heterogeneity*, 2026, arXiv:2606.00271; known here from its abstract and a third party's notes of
its equations.
Departures: a worker keeps its AdamW moments from one period to the next; all periods have the same length. The notes
have a weight of each message by worker or delay; here it is one.
Limits: without corrections, k_s = k_d = 0, each message makes a Nesterov step of its own whose momentum is a mean of
moves; if also μ = 0, with one worker, it is `diloco` without momentum. The first message is never corrected. W equal
workers move the center W times as far in a round as one does: many need a smaller ε. One ps, as a tensor has to be
whole.
Defaults: the constants of the corrections are not known here: they are chosen so that a move against the momentum loses
at most that part, and one at right angles is turned by a quarter of the way if it is as long as the momentum.
"""

import math
from dataclasses import dataclass

from ..common.contract import Fraction, InnerOptimizer, NotNegative, Period, PulledCenter, Rate, Scheme, tf


@dataclass(frozen=True, kw_only=True)
class HeLoCo(Scheme):
    """Many local AdamW steps, then a Nesterov step along a move that is turned to the momentum; no worker waits."""

    paper = "Asif et al. 2026"
    sends = "params"
    whole_center = True

    communication_period: Period = 20
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.4
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer Nesterov momentum μ."""
    keep_above: Fraction = 0.5
    """Cosine c₀ from which a move remains as it is."""
    shrinkage: NotNegative = 1.0
    """Strength k_s with which the part of a move against the momentum is taken away."""
    most_shrinkage: Fraction = 1.0
    """Largest share b of that part that is taken away."""
    turning: NotNegative = 0.5
    """Strength k_d with which a move at about right angles to the momentum is turned to it."""
    momentum_weight: NotNegative = 1.0
    """Weight κ of the momentum's length: the larger it is, the less short moves are corrected."""

    def global_variables(self, center):
        return {"velocity": 0 * center, "pulled_center": PulledCenter()}

    def server_update(self, server, message, staleness):
        sizes = [math.prod(shape) for shape in server.shapes]
        vectors = server.pulled_center - message, server.velocity.read_value()
        tensors = zip(*(tf.split(vector, sizes) for vector in vectors), strict=True)
        moved = tf.concat([self._corrected(move, velocity) for move, velocity in tensors], 0)
        velocity = server.velocity.assign(self.momentum * server.velocity + (1 - self.momentum) * moved)
        server.center.assign_sub(self.outer_learning_rate * (moved + self.momentum * velocity))
        return server.center

    def _corrected(self, move, velocity):
        """Return the move of one tensor, turned to the momentum if its cosine is small."""
        length, norm = tf.norm(move), tf.norm(velocity)
        unit, along = tf.math.divide_no_nan(move, length), tf.math.divide_no_nan(velocity, norm)
        cosine = tf.reduce_sum(unit * along)
        trust = tf.math.divide_no_nan(length, length + self.momentum_weight * norm)
        share = tf.minimum(-self.shrinkage * cosine * trust, self.most_shrinkage)
        shrunk = move - share * cosine * length * along
        share = tf.minimum(self.turning * (1 - cosine) * trust, 1.0)
        turned = (1 - share) * unit + share * along
        turned = length * tf.math.divide_no_nan(turned, tf.norm(turned))
        is_kept = (cosine >= self.keep_above) | tf.equal(norm, 0.0)
        return tf.where(is_kept, move, tf.where(cosine < 0, shrunk, turned))
