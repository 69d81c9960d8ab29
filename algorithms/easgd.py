"""EASGD: synchronous elastic averaging SGD. Workers explore, tied to the center by springs, and exchange together.

    worker, each step             s ← x,  x ← x − η g_k(x)
    after the steps 0, H, 2H, ... push s;   server   reply θ,  then  θ ← (1 − β) θ + β (1/W) Σ s_k
                                  x ← x − α (s − θ)

with α = β / W, steps counted from 0, and the period H. So the step and the elastic force have the same point, as in the
paper. Workers are never reset to the center.

Use: for rare exchanges of equal workers that should explore; not with workers of different speed: take `aeasgd`.
Reference: Zhang, Choromanska, LeCun, *Deep learning with Elastic Averaging SGD*, NIPS 2015, arXiv:1412.6651,
its synchronous form.
Departures: none. Steps after the last exchange would not reach the center: they are left out.
Limits: an exchange leaves Σ x_k + θ unchanged. β = 0 is W independent runs and a center that never moves; β = 1 makes
the center the mean of the workers. With period one on ½x² it is stable for α ≤ (4 − 2η)/(2 + W(2 − η)). Above
β = 2W/(W + 1) each exchange alone drives workers and center apart.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, FixedPeriod, NotNegative, Rate, Rounds, Scheme, sgd, unstable_above


@dataclass(frozen=True, kw_only=True)
class EASGD(Scheme):
    """Workers explore, tied to the center by springs, and exchange together."""

    paper = "Zhang et al. 2015"
    sync = Barrier()
    elementwise = True
    sends = "params"

    communication_period: FixedPeriod = 10
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    beta: NotNegative = 0.9
    """Elasticity β: the moving rate α times the number of workers."""

    def check(self, workers):
        return unstable_above(2 * workers / (workers + 1), workers, beta=self.beta)

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
        before = server.center.read_value()
        server.center.assign_add(self.beta * (message - before))
        return before

    def on_reply(self, worker, reply):
        worker.params.assign_sub(self.beta / worker.num_workers * (worker.sent - reply))
