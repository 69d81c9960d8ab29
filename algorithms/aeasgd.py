"""AEASGD: asynchronous elastic averaging SGD. Workers explore, tied to the center by springs.

    every period, before its first step     push x;   server   e = α (x − θ),  θ ← θ + e,  reply e
    first step                              x ← x − e − η g_k(x)            gradient at x before the exchange
    other steps                             x ← x − η g_k(x)

with α = β / W. Workers are never reset to the center.

Use: for rare exchanges of workers that should explore; not where the center must be good after few exchanges.
Reference: Zhang, Choromanska, LeCun, *Deep learning with Elastic Averaging SGD*, NIPS 2015, arXiv:1412.6651,
algorithm 1.
Departures: the exchange is one atomic event on the server. The local steps after a worker's last exchange do not reach
the center.
Limits: an exchange leaves Σ x_k + θ unchanged. β = 0 is W independent runs and a center that never moves. With workers
in turn and period one on ½x² it is stable for 0 ≤ η ≤ 2 and 0 ≤ α ≤ (4 − 2η)/(4 − η). Above α = 1 each exchange alone
drives worker and center apart, in any order.
"""

from dataclasses import dataclass

from ..common.contract import NotNegative, Period, Rate, Scheme, sgd, unstable_above


@dataclass(frozen=True, kw_only=True)
class AEASGD(Scheme):
    """Workers explore, tied to the center by springs."""

    paper = "Zhang et al. 2015"
    equals = "aeamsgd --momentum 0"
    exchange_first = True
    elementwise = True
    sends_params = True

    communication_period: Period = 10
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    beta: NotNegative = 0.9
    """Elasticity β: the moving rate α times the number of workers."""

    def warnings(self, workers):
        return unstable_above(workers, workers, beta=self.beta)

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return worker.params

    def server_update(self, server, message, staleness):
        force = self.beta / server.num_workers * (message - server.center)
        server.center.assign_add(force)
        return force

    def on_reply(self, worker, reply):
        worker.params.assign_sub(reply)
