"""Decoupled DiLoCo: many local AdamW steps, then a Nesterov step along the moves of the first K workers.

    worker k    x ← AdamW(x, g_k(x)), or another inner optimizer, H_k times; its moments are kept over periods;
                push x and H_k,  y ← x,  with a delay τ more steps,  wait,  x ← θ + (x − y)
    server      with the K-th message, or a time of grace after it:  v_k = θ − x_k,  D = RDA(v, H) for each tensor,
                m ← μ m + D,  θ ← θ − ε (D + μ m),  then release these workers

where RDA, the radial-directional average, takes the mean of the lengths and that of the directions apart:

    RDA(v, w) = (Σ w_k ‖v_k‖ / Σ w_k) φ(Σ w_k φ(v_k)),  φ(v) = v/‖v‖,  φ(0) = 0

and the weighted mean where the directions cancel. The other workers continue at the older centers that they have, and
count in a later update, with their distance from the center of that time. H_k is a fraction of the period: `work` has
the fractions, of one worker after the other, at least one step.

Use: for workers that fail or are late now and then; on equal machines `diloco`, whose every step has news of all.
Reference: Douillard et al., *Decoupled DiLoCo for Resilient Distributed Pre-training*, 2026, arXiv:2604.21428. Its
rules are known here from descriptions and implementations by third parties, not from the authors' code, of which there
is none: that RDA is of each tensor, the cases of zero, and θ of the server as the origin of v are theirs.
Departures: the paper weighs a worker by tokens²/steps; with batches of one size that is in proportion to H_k. A worker
waits for the quorum; in the paper it computes on, two steps at most until the reply (`delay`), and the server uses what
is left of these two steps as a time of grace for more messages, which costs nothing there. Here the grace is a fixed
time, 0 by default; a third party has it as γ (τ ξ_step − ξ_quorum − ξ_sync), from the times of steps, quorum and
exchange. What becomes of the steps after a message is not described: here their move is added to θ, and H_k has the
steps between two messages; that third party mixes x ← ½ x + ½ θ, as `streaming_diloco` does. No fragments: all
parameters travel in one message. Embeddings, for which the paper takes the plain mean, are treated like other tensors.
Limits: with K = W, equal work and the plain average it is `diloco`; with one worker so, too. The mean of K moves at
right angles is √K shorter than each of them, and RDA is not: ε fits any number of workers. One ps, which keeps the
parameters of each worker. A time of grace needs a clock: `Group` and `Optimizer` refuse it.
Why these defaults: the paper's K is one, with the other workers that come in the time of grace. Without grace, K = 1 is
asynchronous, and with four workers it diverges with the outer step and momentum of `diloco`; its ε and μ are kept. The
time by which equal workers are apart is one of the machines, not of the algorithm: so the default has no grace.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import EachWorker, Quorum, Rounds, Scheme, tf
from ..common.contract.hyperparameters import Delay, FixedPeriod, Fraction, Natural, NotNegative, Rate
from ..common.contract.inner import InnerOptimizer


@dataclass(frozen=True, kw_only=True)
class DecoupledDiLoCo(Scheme):
    """Many local AdamW steps, then a Nesterov step along the mean direction of the first K workers' moves."""

    paper = "Douillard et al. 2026"
    sends = "params"
    scalars = ("steps",)
    whole_center = True

    communication_period: FixedPeriod = 20
    """Local steps of a worker with all of its work between two exchanges."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer Nesterov momentum μ."""
    quorum: Natural = 3
    """Number K of workers whose messages make one update."""
    grace: NotNegative = 0.0
    """Time (s) for which the K messages wait for those of the other workers; at most until all have come."""
    work: tuple[Fraction, ...] = (1.0,)
    """Fractions of the period's steps that workers make, of one worker after the other."""
    average: Literal["radial-directional", "plain"] = "radial-directional"
    """Average of the moves: of their lengths and directions apart, or their plain weighted mean."""
    delay: Delay = 0
    """Local steps τ between a message and the use of its reply; at most H."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Quorum(self.quorum, late="count", grace=self.grace)

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.even_share(steps, self.communication_period, self.work[worker % len(self.work)])

    def local_variables(self, params):
        return {"sent": params} if self.delay else {}

    def global_variables(self, center):
        weights = EachWorker(0.0)  # of the workers that are not in the set: 0
        return {"velocity": 0 * center, "pushed": EachWorker(center), "weight": weights}

    def message(self, worker):
        if self.delay:
            worker.sent.assign(worker.params)
        return worker.params, {"steps": worker.steps}

    def weighted(self, server, message, staleness):
        server.pushed.assign(message)
        server.weight.assign(server.sent.steps)
        return message

    def server_update(self, server, message, staleness):
        weights, moves = server.weight.read_value(), server.center - server.pushed.read_value()
        shares = weights / tf.reduce_sum(weights)
        tensors = tf.split(moves, [tf.TensorShape(shape).num_elements() for shape in server.shapes], axis=1)
        moved = tf.concat([self._mean(tensor, shares) for tensor in tensors], axis=0)
        server.velocity.assign(self.momentum * server.velocity + moved)
        server.center.assign_sub(self.outer_learning_rate * (moved + self.momentum * server.velocity))
        server.weight.assign(tf.zeros_like(weights))
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply + (worker.params - worker.sent) if self.delay else reply)

    def _mean(self, moves, shares):
        """Return the average [n] of moves [W, n], whose shares sum to one."""
        lengths = tf.norm(moves, axis=1)
        along = tf.linalg.matvec(tf.math.divide_no_nan(moves, lengths[:, None]), shares, transpose_a=True)
        length = tf.norm(along)
        radial = tf.math.divide_no_nan(tf.reduce_sum(shares * lengths), length) * along
        return tf.where((length < 1e-6) | (self.average == "plain"), tf.tensordot(shares, moves, 1), radial)
