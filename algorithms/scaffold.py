"""SCAFFOLD: local SGD whose steps are corrected by the difference between all workers' gradients and the worker's own.

    worker k, each step     x ← x − η (g_k(x) − c_k + c)
    every period            c_k ← (1/H) Σ g_k of its H steps,  push η Σ g_k,  wait,  c ← (θ_old − θ)/(ε η H),  x ← θ
    server                  θ ← θ − ε (1/W) Σ_k η Σ g_k,  then release all workers

Use: for local steps on unequal data, where all workers take part; not with clients that come and leave.
Reference: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, *SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning*, ICML 2020, arXiv:1910.06378, Algorithm 1 with option II: c_k ← c_k − c + (θ − x_k)/(η H). By the steps of the
worker this is its mean gradient.
Departures: all workers take part in every round; the paper samples clients. Then c is the mean of all c_k, so that the
corrections cancel in the mean of x_k − θ, and a worker finds c in the move of the center. So messages and replies have
one vector each, and the paper's two: half of its bytes. A restarted worker makes one round of plain local steps.
Under a schedule of η, a message has the rate at the beginning of its round.
Limits: with a period of one and ε = 1 it is `sync_sgd`; with one worker serial SGD for any period. On unequal shards
`local_sgd` comes to rest where its local steps cancel, away from the minimum; SCAFFOLD rests only where the mean
gradient is zero.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, OfShard, Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class Scaffold(Scheme):
    """Local steps, corrected for the difference between the shards of the workers."""

    paper = "Karimireddy et al. 2020"
    sync = Barrier()
    elementwise = True
    sends = "gradient_sum"

    communication_period: Period = 10
    """Local steps between two rounds."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    server_learning_rate: Rate = 1.0
    """The server's step size ε, in units of the workers' mean move."""

    def local_variables(self, params):
        return {"began": params, "own": OfShard(0 * params), "common": 0 * params}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient - worker.own + worker.common, self.learning_rate)

    def message(self, worker):
        worker.own.assign(worker.gradient_sum / worker.steps)
        return self.learning_rate * worker.gradient_sum

    def server_update(self, server, message, staleness):
        server.center.assign_sub(self.server_learning_rate * message)
        return server.center

    def on_reply(self, worker, reply):
        steps = worker.steps * self.server_learning_rate * self.learning_rate
        worker.common.assign((worker.began - reply) / steps)
        worker.began.assign(reply)
        worker.params.assign(reply)
