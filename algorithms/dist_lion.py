"""Distributed Lion: workers send the signs of their Lion steps, and each weight moves by their vote or by their mean.

    worker k    δ_k = sign(β₁ m_k + (1 − β₁) g_k(x)),  m_k ← β₂ m_k + (1 − β₂) g_k
                push δ_k,  wait,  x ← x − η (Δ + λ x)
    server      Δ = sign(Σ δ_k) (`form vote`), or (1/W) Σ δ_k (`form average`);  θ ← θ − η (Δ + λ θ),  reply,
                then release all workers

with sign(0) = 0. A sign is sent as two bits. The reply is Δ, or the whole numbers W Δ, in 2 bits for one worker, 4 up
to 7 workers and 8 up to 127; x stays equal to θ.

Use: as Lion on several machines whose links are slow; not with very noisy gradients of few workers.
Reference: Liu, Wu, Chen, Liang, Zhu, Liang, Krishnamoorthi and Liu, *Communication Efficient Distributed Training with
Distributed Lion*, NeurIPS 2024, arXiv:2404.00438.
Departures: in the authors' code sign(0) is −1, and so is a tie, so that with an even number of workers weights drift;
with two-valued signs a message would have one bit for each element. A lost worker votes zero.
Limits: with β₁ = β₂ it is `signsgd_mv`, with one worker Lion, the inner optimizer `lion`. With equal gradients both
forms are one. The step of a weight is η even if its gradient is small, so only a falling rate converges.
Defaults: those of the authors' code, β₁ = 0.9, β₂ = 0.99; its η is 10⁻⁴.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Barrier, Decay, Rate, Scheme, Signs, WeightDecay, WholeNumbers, sgd, take, tf


@dataclass(frozen=True, kw_only=True)
class DistLion(Scheme):
    """Workers send the signs of their Lion steps, and their vote or mean decides."""

    paper = "Liu et al. 2024"
    sync = Barrier()
    elementwise = True

    learning_rate: Rate = 0.003
    """Step size η of each weight."""
    beta_1: Decay = 0.9
    """Weight β₁ of the momentum in a step."""
    beta_2: Decay = 0.99
    """Weight β₂ of the past in the momentum."""
    form: Literal["vote", "average"] = "vote"
    """What decides: the sign of the sum of all signs, or their mean."""
    weight_decay: WeightDecay = 0.0
    """Weight decay λ, decoupled."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Signs(), Signs() if self.form == "vote" else WholeNumbers()

    def local_variables(self, params):
        return {"velocity": 0 * params}

    def global_variables(self, center):
        return {"messages": 0 * center[0]}

    def message(self, worker):
        before = worker.velocity.read_value()
        worker.velocity.assign(self.beta_2 * before + (1 - self.beta_2) * worker.gradient)
        return tf.sign(self.beta_1 * before + (1 - self.beta_1) * worker.gradient)

    def weighted(self, server, message, staleness):
        server.messages.assign_add(1.0)
        return message

    def server_update(self, server, message, staleness):
        total = tf.round(take(server.messages) * message)
        reply = tf.sign(total) if self.form == "vote" else total
        self._step(server, server.center, reply)
        return reply

    def on_reply(self, worker, reply):
        self._step(worker, worker.params, reply)

    def _step(self, view, params, reply):
        step = reply if self.form == "vote" else reply / view.num_workers
        sgd(params, step + self.weight_decay * view.decayed(params) if self.weight_decay else step, self.learning_rate)
