"""signSGD with majority vote: each worker votes up or down for each weight, and the server does what most say.

    worker k    m_k ← β m_k + (1 − β) g_k(x),  push sign(m_k),  wait,  x ← x − η (v + λ x)
    server      v = sign(Σ sign(m_k)),  θ ← θ − η (v + λ θ),  reply v,  then release everybody

with sign(0) = 0: where as many say up as down, a weight does not move. Signs travel in two bits, up and down; x stays
equal to θ. That is the paper's Algorithm 1, SIGNUM with majority vote, with its momentum β = 0.9.

Reference: Bernstein, Wang, Azizzadenesheli, Anandkumar, *signSGD: Compressed Optimisation for Non-Convex Problems*,
ICML 2018, arXiv:1802.04434; the vote: Bernstein, Zhao, Azizzadenesheli, Anandkumar, *signSGD with Majority Vote is
Communication Efficient and Fault Tolerant*, ICLR 2019, arXiv:1810.05291.
Departures: λ is 0 unless it is given (decoupled, as in the paper; `--l2` is part of the gradient). What sign(0) is, and
what is done with a tie, the paper leaves open; with two-valued signs a message would be one bit an element.
Limits: β = 0 and λ = 0 is signSGD with the vote, and of one worker signSGD. The step of a weight is η however small its
gradient: only a falling rate comes to rest. Its direction is not that of the mean gradient: where gradients are noisy,
it may be another one even in the mean.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Fraction, NotNegative, Rate, Scheme, Signs, sgd, tf


@dataclass(frozen=True, kw_only=True)
class SignSGDMV(Scheme):
    """Workers vote on the sign of each step, and the majority decides."""

    paper = "Bernstein et al. 2019"
    gate = Barrier()
    codec = Signs()
    reply_codec = Signs()
    elementwise = True

    learning_rate: Rate = 0.003
    """Step size η of each weight."""
    momentum: Fraction = 0.9
    """β of the worker's mean gradient; 0 is none."""
    weight_decay: NotNegative = 0.0
    """λ, decoupled."""

    def local_variables(self, params):
        return {"velocity": 0 * params} if self.momentum else {}

    def message(self, worker):
        if not self.momentum:
            return tf.sign(worker.gradient)
        worker.velocity.assign(self.momentum * worker.velocity + (1 - self.momentum) * worker.gradient)
        return tf.sign(worker.velocity)

    def server_update(self, server, message, staleness):
        vote = tf.sign(message)
        self._step(server.center, vote)
        return vote

    def adopt(self, worker, reply):
        self._step(worker.params, reply)

    def _step(self, params, vote):
        sgd(params, vote + self.weight_decay * params if self.weight_decay else vote, self.learning_rate)
