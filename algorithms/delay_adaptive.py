"""Delay-adaptive SGD: asynchronous SGD whose rate falls for a gradient that is later than usual.

    worker k    g = g_k(x),  push g,  x ← reply
    server      θ ← θ − η min(1, W/τ) g,  reply θ                          one atomic event

where W is the number of workers, and the staleness τ the number of updates since worker k's last pull.

Use: if some workers are slower, and no gradient should be lost; not on unequal data.
Reference: Koloskova, Stich, Jaggi, *Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated
Learning*, NeurIPS 2022, arXiv:2206.08307; Mishchenko, Bach, Even, Woodworth, *Asynchronous SGD Beats Minibatch SGD
Under Arbitrary Delays*, NeurIPS 2022, arXiv:2206.07638.
Departures: the papers have min{η, c/τ} with a constant c that depends on the smoothness of the loss. Here c = ηW, as in
the experiments of Ringmaster's authors, where this rule is a baseline: one number to tune.
Limits: while no gradient is more than W updates late, it is `async_sgd`: so with W equal workers, whose gradients are
W − 1 updates late. Only the gradients of stragglers are damped, whereas `dynsgd` damps those of all workers.
"""

from dataclasses import dataclass

from ..common.contract import Rate, Scheme, sgd, tf


@dataclass(frozen=True, kw_only=True)
class DelayAdaptive(Scheme):
    """Every gradient is applied when it arrives, with a smaller step if it is later than usual."""

    paper = "Koloskova et al. 2022, Mishchenko et al. 2022"

    learning_rate: Rate = 0.1
    """Step size η of a gradient that is at most W updates late."""

    def server_update(self, server, message, staleness):
        damping = server.num_workers / tf.maximum(staleness, float(server.num_workers))
        sgd(server.center, message, self.learning_rate * damping)
        return server.center
