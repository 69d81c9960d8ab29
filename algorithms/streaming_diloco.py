"""Streaming DiLoCo: DiLoCo in fragments, whose workers continue to compute while the parameters travel.

    worker, each step       x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over
                            rounds and never leave the worker
    τ steps before the      push x[p], and continue without a wait
    end of a round
    every round             wait for the reply θ[p],  x[p] ← α x[p] + (1 − α) θ[p]
    server                  Δ = θ[p] − (1/W) Σ x_k[p],  m[p] ← μ m[p] + Δ,  θ[p] ← θ[p] − ε (Δ + μ m[p]),
                            then release all workers

A round has H/F steps. Its fragment p, one of F consecutive parts of the vector, is 0, 1, ... F − 1 in turn, so each
part is exchanged once in a period of H steps. The τ local steps after a message hide the time that it and the reply
travel, and the mixing α keeps a part of them.

Use: where `diloco` waits for slow links; not where links are fast, for the τ steps after a message count little.
Reference: Douillard et al., *Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch*, 2025,
arXiv:2501.18512.
Departures: fragments are equal parts of the vector, in turn; the paper's are sets of transformer layers, each of which
takes layers from all depths (strided). There the first message of fragment p leaves after H + p H/F steps, so that each
move is one of H steps; here it leaves after (p + 1) H/F − τ steps, and the first moves are of fewer steps. The last τ
steps of a run are not in the center. Messages are parameters in float32, or with one fragment in a `--codec`; the paper
sends moves in 4 bits.
Limits: with τ = 0, α = 0 and one fragment it is `diloco`; F fragments send as many parameters in a period, in messages
that are F times smaller. With α = 0 and one fragment the τ steps change only the moments of the inner optimizer; with
α = 1 workers never hear of each other. With τ = H and one fragment each message holds the parameters of one period
before, the first one the initial ones; `eager_diloco` and `co2` are made for messages that travel so long.
Defaults: α = 0.5 as in the paper, whose periods are 30 and 100, with τ from 1 to 5 and fragments of three layers. Its
outer rate ε is 0.4, for DiLoCo, too, tuned at a small scale; here it is the 0.7 of `diloco`.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, InnerOptimizer, Scheme, Span, UserError, tf
from ..common.contract.hyperparameters import Delay, FixedPeriod, Fraction, Fragments, Rate


@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(Scheme):
    """Many local AdamW steps, some of them while the parameters travel, and a Nesterov step of the center."""

    paper = "Douillard et al. 2025"
    sync = Barrier()
    sends = "params"

    communication_period: FixedPeriod = 20
    """Local steps H between two outer steps of a fragment; a multiple of the fragments."""
    fragments: Fragments = 1
    """Number F of parts of the model, each of which is exchanged once in a period."""
    delay: Delay = 1
    """Local steps τ between a message and the use of its reply; at most H/F."""
    mixing: Fraction = 0.5
    """Share α of its own parameters that a worker keeps when it uses a reply."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer Nesterov momentum μ."""

    def __post_init__(self):
        super().__post_init__()
        if self.fragments > 1:
            vars(self).update(codec=(Span(1 / self.fragments), Span(1 / self.fragments)), scalars=("fragment",))

    @property
    def period(self):
        return self.communication_period // self.fragments

    def check(self, workers):
        if self.communication_period % self.fragments:
            raise UserError(
                "the period must be a multiple of the fragments. Received: "
                f"communication_period={self.communication_period}, fragments={self.fragments}"
            )

    def global_variables(self, center):
        return {"velocity": 0 * center}

    def message(self, worker):
        if self.fragments == 1:
            return worker.params
        number = worker.round % self.fragments
        return tf.where(self._is_due(worker, number), worker.params, 0.0), {"fragment": tf.cast(number, tf.float32)}

    def server_update(self, server, message, staleness):
        moved = server.center - message
        velocity = self.momentum * server.velocity + moved
        center = server.center - self.outer_learning_rate * (moved + self.momentum * velocity)
        if self.fragments == 1:
            server.velocity.assign(velocity)
            server.center.assign(center)
            return server.center
        due = self._is_due(server, server.sent.fragment)
        server.velocity.assign(tf.where(due, velocity, server.velocity))
        server.center.assign(tf.where(due, center, server.center))
        return tf.where(due, server.center, 0.0)

    def on_reply(self, worker, reply):
        if self.mixing:
            reply = self.mixing * worker.params + (1 - self.mixing) * reply
        if self.fragments > 1:
            reply = tf.where(self._is_due(worker, worker.round % self.fragments), reply, worker.params)
        worker.params.assign(reply)

    def _is_due(self, view, number):
        """Return True for each coordinate of the fragment of this number."""
        return tf.equal(view.fragments(self.fragments), tf.cast(number, tf.int32))
