"""Dion: steps of orthonormal matrices of low rank, whose thin factors alone are sent, with the rest in the momentum.

    worker k, for each   B_k = M_k + g_k(x),  P = mean B_k Q,  P ← orthonormal columns of P,  R = mean B_kᵀ P
    matrix [n, m]        M_k ← B_k − (1 − μ) P Rᵀ,  Q ← R with columns of length one
                         x ← (1 − η λ) x − η √(m/n) P Qᵀ    Q, [m, r], and x are the same on all workers
    other variables      x ← AdamW(x, mean g_k(x)), with the same η and λ

Both means are all-reduces, of r n elements for each matrix, then of r m and of the other variables. What a step leaves
out stays in M_k, which differs between workers; their mean is the momentum of one worker on the mean gradient.

Use: as Muon on several machines whose links are slow, for models of large matrices; not for a model of small ones.
Reference: Ahn, Xu, Abreu and Langford, *Dion: Distributed Orthonormalized Updates*, 2025, arXiv:2504.05295, with the
equations of the authors' code.
Departures: a matrix whose factors would have as many elements is one of the other variables. Embeddings and the last
layer are matrices as others; the authors give them to AdamW, and the last layer a smaller rate. The kernel of a
convolution is a matrix as in `powersgd`; the authors have none. Here inputs are rows: n and m are exchanged. The first
Q is uniform, not normal. The second mean travels as the message of the round.
Limits: W workers are one worker on the mean gradient. With a rank of one a step has the norm η √(m/n). P Qᵀ has equal
singular values only if the columns of R are orthogonal, so that a large rank is not Muon. Where the momentum has a
lower rank than its factors, rounding decides the last columns, each of which moves as far as the others. A lost worker
stops the run.
Defaults: the authors' μ = 0.95, λ = 0.01, η = 0.02, β₁ = 0.9, β₂ = 0.95. They advise a quarter of the full rank, and
now their later `Dion2` (arXiv:2512.16928).
"""

import math
from dataclasses import dataclass

from ..common.contract import Count, Decay, Rate, WeightDecay, sgd, tf
from ..common.contract.optimizers import adam
from .powersgd import PowerSGD, _cut, _joined


@dataclass(frozen=True, kw_only=True)
class Dion(PowerSGD):
    """Orthonormal steps of low rank: thin factors of each momentum matrix are sent, the rest stays in it."""

    paper = "Ahn et al. 2025"
    means_gradients = False

    learning_rate: Rate = 0.02
    """Step size η."""
    momentum: Decay = 0.95
    """Weight μ of the past in the part of the momentum that was sent."""
    rank: Count = 4
    """Rank r of a step of a matrix: columns of each of its two factors."""
    weight_decay: WeightDecay = 0.01
    """Weight decay λ, decoupled."""
    beta_1: Decay = 0.9
    """Decay of the first moment of AdamW."""
    beta_2: Decay = 0.95
    """Decay of the second moment of AdamW."""

    def local_variables(self, params):
        adam_s = {"first_moment": 0 * params, "second_moment": 0 * params, "adam_steps": 0 * params[0]}
        return super().local_variables(params) | adam_s

    def on_reply(self, worker, reply):
        sides = self._sides(worker.shapes)
        totals = _cut(worker.total.read_value(), [(n or 1, m) for n, m in sides])
        lefts = iter(_cut(worker.left.read_value(), [(n, self.rank) for n, _ in sides if n]))
        rests, rights, moves, others = [], [], [], []
        for (n, m), total, right in zip(sides, totals, _cut(reply, self._factors(worker.shapes)), strict=True):
            if n:
                left, unit = next(lefts), tf.math.divide_no_nan(right, tf.norm(right, axis=0, keepdims=True))
                part = total - (1 - self.momentum) * (left @ tf.transpose(right))
                of_each = part, unit, math.sqrt(m / n) * (left @ tf.transpose(unit)), 0 * total
            else:
                of_each = 0 * total, right, 0 * total, right
            for found, one in zip((rests, rights, moves, others), of_each, strict=True):
                found.append(one)
        worker.error.assign(_joined(rests))
        worker.right.assign(_joined(rights, worker.right.shape[0]))
        t = worker.adam_steps.assign_add(1.0)
        m, v, moved = adam(
            worker.first_moment, worker.second_moment, _joined(others), t, self.beta_1, self.beta_2, 1e-8
        )
        worker.first_moment.assign(m)
        worker.second_moment.assign(v)
        decay = self.weight_decay * worker.decayed(worker.params)
        sgd(worker.params, _joined(moves) + moved + decay, self.learning_rate)
