"""AEAMSGD: asynchronous elastic averaging with Nesterov's momentum on the workers.

    worker, each step             s ← x,  v ← δ v − η g_k(x + δ v),  x ← x + v
    after the steps 0, H, 2H, ... push s;   server   e = α (s − θ),  θ ← θ + e,  reply e
                                  x ← x − e

with α = β / W, steps counted from 0, and the period H. So the step and the elastic force have the same point, as in the
paper. Workers are never reset to the center, and neither are their velocities.

Use: like `aeasgd`, faster where momentum helps; not with a rate chosen without it.
Reference: Zhang, Choromanska, LeCun, *Deep learning with Elastic Averaging SGD*, NIPS 2015, arXiv:1412.6651,
algorithm 2 (EAMSGD).
Departures: δ is 0.9 by default, 0.99 in the paper's experiments. The exchange is one atomic event on the
server. Steps after the last exchange would not reach the center: they are left out. (The look-ahead of dist-keras is
against the motion; here the look-ahead x + δv is in its direction.)
Limits: with δ = 0 it is `aeasgd`. An exchange leaves Σ x_k + θ unchanged. In the long run a gradient moves x by
η/(1 − δ) times itself, so η must be lower than that of `aeasgd`.
"""

from dataclasses import dataclass

from ..common.contract import FixedPeriod, Fraction, NotNegative, Rate, Rounds, Scheme, unstable_above


@dataclass(frozen=True, kw_only=True)
class AEAMSGD(Scheme):
    """Elastic averaging with Nesterov's momentum on the workers."""

    paper = "Zhang et al. 2015"
    elementwise = True
    sends = "params"

    communication_period: FixedPeriod = 10
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.04
    """The worker's step size η."""
    momentum: Fraction = 0.9
    """Momentum δ."""
    beta: NotNegative = 0.9
    """Elasticity β: the moving rate α times the number of workers."""

    def check(self, workers):
        return unstable_above(workers, workers, beta=self.beta)

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.ending_at(self.communication_period, steps, done)

    def local_variables(self, params):
        return {"sent": params, "velocity": 0 * params}

    def gradient_point(self, worker):
        return worker.params + self.momentum * worker.velocity

    def local_step(self, worker, gradient):
        worker.sent.assign(worker.params)
        worker.velocity.assign(self.momentum * worker.velocity - self.learning_rate * gradient)
        worker.params.assign_add(worker.velocity)

    def message(self, worker):
        return worker.sent

    def server_update(self, server, message, staleness):
        force = self.beta / server.num_workers * (message - server.center)
        server.center.assign_add(force)
        return force

    def on_reply(self, worker, reply):
        worker.params.assign_sub(reply)
