"""PowerSGD: all-reduce of low rank. Each gradient matrix is sent as two thin factors, with error feedback.

    worker k, for each   M_k = g_k(x) + e_k,  P = mean M_k Q,  P ← orthonormal columns of P,  Q ← mean M_kᵀ P
    matrix [n, m]        d = P Qᵀ,  e_k ← M_k − d    Q, [m, r], is kept for the next step
    other variables      d = mean g_k(x)
    all variables        v ← μ v + d,  x ← x − η (d + v)    x, v and Q are the same on all workers

Both means are all-reduces, of r n elements for each matrix, then of r m and of the other variables. A variable of more
dimensions is a matrix with as many columns as its last one. Each step is one iteration of the power method: where the
gradient changes slowly, P Qᵀ comes near the best approximation of rank r.

Use: in place of `all_reduce` on slow links, for models of large matrices; not where the links are no limit.
Reference: Vogels, Karimireddy and Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization*, NeurIPS 2019, arXiv:1905.13727, Algorithms 1 and 2.
Departures: a matrix whose factors would have as many elements is sent as it is. The first Q is uniform, not normal. The
second mean travels as the message of the round.
Limits: with a rank of all columns it is `all_reduce` with momentum. The time of the products and of the
orthogonalization is not in virtual time. Where only the number of parameters is known, as in `advise`, the model is
taken for 24 square matrices, or those of `--layers`: more and smaller ones have more elements to send. A lost worker
stops the run.
"""

import math
from dataclasses import dataclass

from ..common.contract import Collective, Count, Fraction, Rate, Scheme, sgd, tf, uniform


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Scheme):
    """All-reduce of low rank: of each gradient matrix two thin factors now, and the rest later."""

    paper = "Vogels et al. 2019"
    means_gradients = True
    sync = Collective()

    learning_rate: Rate = 0.02
    """Step size η; a lasting gradient moves the parameters by η (1 + 1/(1 − μ)) in a step."""
    momentum: Fraction = 0.9
    """Momentum μ."""
    rank: Count = 2
    """Rank r of what is sent of a matrix: columns of each of its two factors."""

    def message_sizes(self, shapes):
        lefts = self.rank * sum(n for n, _ in self._sides(shapes))
        return [lefts] * (lefts > 0) + [sum(map(math.prod, self._factors(shapes)))]

    def local_variables(self, params):
        zeros = dict.fromkeys(("error", "total", "left", "velocity"), 0 * params)
        return zeros | {"right": uniform(0, params.shape[0], 0) - 0.5}  # the same on all workers

    def message(self, worker):
        sides = self._sides(worker.shapes)
        worker.total.assign(worker.gradient + worker.error)
        parts = _cut(worker.total.read_value(), [(n or 1, m) for n, m in sides])
        rights = _cut(worker.right.read_value(), self._factors(worker.shapes))
        lefts = [part @ right for part, right, (n, _) in zip(parts, rights, sides, strict=True) if n]
        if lefts:
            lefts = [*map(_orthonormal, _cut(worker.mean(_joined(lefts)), [left.shape for left in lefts]))]
        worker.left.assign(_joined(lefts, worker.total.shape[0]))
        left, variables = iter(lefts), zip(parts, sides, strict=True)
        return _joined([tf.transpose(part) @ next(left) if n else part for part, (n, _) in variables])

    def server_update(self, server, message, staleness):
        return message

    def on_reply(self, worker, reply):
        sides = self._sides(worker.shapes)
        parts = _cut(worker.total.read_value(), [(n or 1, m) for n, m in sides])
        left, rights = worker.left.read_value(), zip(_cut(reply, self._factors(worker.shapes)), sides, strict=True)
        lefts = iter(_cut(left, [(n, self.rank) for n, _ in sides if n]))
        moves = [next(lefts) @ tf.transpose(right) if n else right for right, (n, _) in rights]
        errors = [part - move if n else 0 * part for part, move, (n, _) in zip(parts, moves, sides, strict=True)]
        worker.error.assign(_joined(errors))
        worker.right.assign(_joined([reply], worker.right.shape[0]))
        velocity = worker.velocity.assign(self.momentum * worker.velocity + (move := _joined(moves)))
        sgd(worker.params, move + velocity, self.learning_rate)

    def _factors(self, shapes):
        """Return the shapes of the parts of a message: right factors, and the variables that are sent as they are."""
        return [(m, self.rank) if n else (1, m) for n, m in self._sides(shapes)]

    def _sides(self, shapes):
        """Return rows and columns of each variable of which factors are sent; 0 and its size of the others."""
        sides = [(math.prod(shape[:-1]), math.prod(shape[-1:])) for shape in shapes]
        return [(n, m) if self.rank * (n + m) < n * m else (0, n * m) for n, m in sides]


def _cut(vector, shapes):
    """Return the tensors of these shapes of which the concatenation is the begin of the vector."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = tf.split(vector, [*sizes, vector.shape[0] - sum(sizes)])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=False)]


def _joined(tensors, size=0):
    """Return the concatenation of tensors as a vector, with zeros up to a size."""
    vectors = [tf.reshape(one, [-1]) for one in tensors]
    return tf.concat([*vectors, tf.zeros([max(0, size - sum(int(one.shape[0]) for one in vectors))])], 0)


def _orthonormal(matrix):
    """Return orthonormal columns with the same span, by Gram and Schmidt; a column of zeros stays."""
    columns = []
    for column in tf.unstack(matrix, axis=1):
        for other in columns:
            column -= tf.tensordot(other, column, 1) * other
        columns.append(tf.math.divide_no_nan(column, tf.norm(column)))
    return tf.stack(columns, 1)
