"""signSGD with majority vote: each worker votes up or down for each weight, and the server does what most say.

    worker k    push sign(g_k(x)),  wait,  x ← x − η v
    server      v = sign(Σ sign(g_k)),  θ ← θ − η v,  reply v,  then release everybody

with sign(0) = 0: where as many say up as down, a weight does not move. Signs travel in two bits, up and down; x stays
equal to θ.

Reference: Bernstein, Wang, Azizzadenesheli, Anandkumar, *signSGD: Compressed Optimisation for Non-Convex Problems*,
ICML 2018, arXiv:1802.04434; the vote: Bernstein, Zhao, Azizzadenesheli, Anandkumar, *signSGD with Majority Vote is
Communication Efficient and Fault Tolerant*, ICLR 2019, arXiv:1810.05291.
Departures: no momentum on the workers (the papers' Signum), no weight decay but that of the run (`--l2`).
Limits: one worker is signSGD. The step of a weight is η however small its gradient: only a falling rate comes to rest.
Its direction is not that of the mean gradient: where gradients are noisy, it may be another one even in the mean.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Rate, Scheme, Signs, sgd


@dataclass(frozen=True, kw_only=True)
class SignSGDMV(Scheme):
    """Workers vote on the sign of each step, and the majority decides."""

    paper = "Bernstein et al. 2019"
    gate = Barrier()
    codec = Signs()
    reply_codec = Signs()

    learning_rate: Rate = 0.003
    """Step size η of each weight."""

    def message(self, worker):
        import tensorflow as tf

        return tf.sign(worker.gradient)

    def server_update(self, server, message, staleness):
        import tensorflow as tf

        vote = tf.sign(message)
        sgd(server.center, vote, self.learning_rate)
        return vote

    def adopt(self, worker, reply):
        sgd(worker.params, reply, self.learning_rate)
