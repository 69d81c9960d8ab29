"""AEASGD: asynchronous elastic averaging SGD. Workers explore, tied to the center by springs.

    worker, each step             s ← x,  x ← x − η g_k(x)
    after the steps 0, H, 2H, ... push s;   server   e = α (s − θ),  θ ← θ + e,  reply e
                                  x ← x − e

with α = β / W, steps counted from 0, and the period H. So the step and the elastic force have the same point, as in the
paper. Workers are never reset to the center.

Use: for rare exchanges of workers that should explore; not where the center must be good after few exchanges.
Reference: Zhang, Choromanska, LeCun, *Deep learning with Elastic Averaging SGD*, NIPS 2015, arXiv:1412.6651,
algorithm 1.
Departures: the exchange is one atomic event on the server. Steps after the last exchange would not reach the center:
they are left out.
Limits: an exchange leaves Σ x_k + θ unchanged. β = 0 is W independent runs and a center that never moves. With workers
in turn and period one on ½x² it is stable for 0 ≤ η ≤ 2 and 0 ≤ α ≤ (4 − 2η)/(4 − η). Above α = 1 each exchange alone
drives worker and center apart, in any order.
"""

from dataclasses import dataclass

from ..common.contract import FixedPeriod, NotNegative, Rate, Rounds, Scheme, sgd, unstable_above


@dataclass(frozen=True, kw_only=True)
class AEASGD(Scheme):
    """Workers explore, tied to the center by springs."""

    paper = "Zhang et al. 2015"
    equals = "aeamsgd --momentum 0"
    elementwise = True
    sends = "params"

    communication_period: FixedPeriod = 10
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    beta: NotNegative = 0.9
    """Elasticity β: the moving rate α times the number of workers."""

    def check(self, workers):
        return unstable_above(workers, workers, beta=self.beta)

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.ending_at(self.communication_period, steps, done)

    def local_variables(self, params):
        return {"sent": params}

    def local_step(self, worker, gradient):
        worker.sent.assign(worker.params)
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return worker.sent

    def server_update(self, server, message, staleness):
        force = self.beta / server.num_workers * (message - server.center)
        server.center.assign_add(force)
        return force

    def on_reply(self, worker, reply):
        worker.params.assign_sub(reply)
