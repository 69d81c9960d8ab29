"""ProxSkip, also Scaffnew: corrected local steps, and a coin that decides after each step whether the workers exchange.

    worker k, each step     x ← x − η (g_k(x) − h_k)    h_k = 0 at first
    with probability p      push x,  wait,  h_k ← h_k + (p/η) (θ − x),  x ← θ
    server                  θ ← (1/W) Σ_k x_k,  then release all workers

The coin of a step is the same on all workers, drawn from the run's seed. The h_k sum to zero, and go to the gradients
of the workers' own losses at the minimum: there no worker moves. On a strongly convex loss of condition κ, p = 1/√κ
needs √κ exchanges where SGD needs κ, for about as many steps.

Use: for local steps on unequal data, where links are slow and the loss is well known; not with clients that come and
leave.
Reference: Mishchenko, Malinovsky, Stich, Richtárik, *ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
Acceleration! Finally!*, ICML 2022, arXiv:2202.09357, Algorithm 2 (Scaffnew).
Departures: gradients of batches, as in the paper's section 5. A run ends with an exchange; the coins repeat after
65 536 steps. A restarted worker begins with h_k = 0, after which the h_k no longer sum to zero.
Limits: with p = 1 it is `sync_sgd`. With a fixed period of H = 1/p steps in place of the coin it is `scaffold` with
ε = 1: it divides by p, where that divides by the steps of the round.
"""

import math
from dataclasses import dataclass

from ..common.contract import Barrier, OfShard, Probability, Rate, Rounds, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class ProxSkip(Scheme):
    """Corrected local steps, after each of which a coin decides whether the workers exchange."""

    paper = "Mishchenko et al. 2022"
    aliases = ("scaffnew",)
    sync = Barrier()
    elementwise = True
    sends = "params"

    probability: Probability = 0.1
    """Probability p of an exchange after a step."""
    learning_rate: Rate = 0.2
    """Step size η."""

    @property
    def period(self):
        return math.ceil(1 / self.probability)

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.drawn(self.probability, seed, steps, done)

    def local_variables(self, params):
        return {"correction": OfShard(0 * params)}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient - worker.correction, self.learning_rate)

    def server_update(self, server, message, staleness):
        server.center.assign(message)
        return server.center

    def on_reply(self, worker, reply):
        worker.correction.assign_add(self.probability * (reply - worker.params) / self.learning_rate)
        worker.params.assign(reply)
