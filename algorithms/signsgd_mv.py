"""signSGD with majority vote: workers send the signs of their momentum, and each weight moves by the majority's sign.

    worker k    m_k ← β m_k + (1 − β) g_k(x),  push sign(m_k),  wait,  x ← x − η (v + λ x)
    server      v = sign(Σ sign(m_k)),  θ ← θ − η (v + λ θ),  reply v,  then release all workers

with sign(0) = 0: a weight does not move if the vote is a tie. A sign is sent as two bits; x stays equal to θ. This is
the paper's Algorithm 1, SIGNUM with majority vote, with its momentum β = 0.9.

Use: where the bytes both ways must be few, with large batches; not with very noisy gradients of few workers.
Reference: Bernstein, Wang, Azizzadenesheli, Anandkumar, *signSGD: Compressed Optimisation for Non-Convex Problems*,
ICML 2018, arXiv:1802.04434; the vote: Bernstein, Zhao, Azizzadenesheli, Anandkumar, *signSGD with Majority Vote is
Communication Efficient and Fault Tolerant*, ICLR 2019, arXiv:1810.05291.
Departures: λ is 0 by default (decoupled, as in the paper; `--l2` is part of the gradient). The paper defines neither
sign(0) nor the result of a tie; with two-valued signs a message would have one bit for each element.
Limits: with β = 0 and λ = 0 it is signSGD with majority vote, and with one worker signSGD. The step of a weight is η
even if its gradient is small, so only a falling rate converges. Its direction is not that of the mean gradient: with
noisy gradients it may differ even in the mean.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Fraction, Rate, Scheme, Signs, WeightDecay, sgd, tf


@dataclass(frozen=True, kw_only=True)
class SignSGDMV(Scheme):
    """Workers vote on the sign of each step, and the majority decides."""

    paper = "Bernstein et al. 2019"
    equals = "dist_lion --beta-2 0.9, for a momentum of 0.9"
    aliases = ("signum",)
    sync = Barrier()
    codec = Signs(), Signs()
    elementwise = True

    learning_rate: Rate = 0.003
    """Step size η of each weight."""
    momentum: Fraction = 0.9
    """Momentum β of the worker's mean gradient; 0 for none."""
    weight_decay: WeightDecay = 0.0
    """Weight decay λ, decoupled."""

    def local_variables(self, params):
        return {"velocity": 0 * params} if self.momentum else {}

    def message(self, worker):
        if not self.momentum:
            return tf.sign(worker.gradient)
        worker.velocity.assign(self.momentum * worker.velocity + (1 - self.momentum) * worker.gradient)
        return tf.sign(worker.velocity)

    def server_update(self, server, message, staleness):
        vote = tf.sign(message)
        self._step(server, server.center, vote)
        return vote

    def on_reply(self, worker, reply):
        self._step(worker, worker.params, reply)

    def _step(self, view, params, vote):
        step = vote + self.weight_decay * view.decayed(params) if self.weight_decay else vote
        sgd(params, step, self.learning_rate)
