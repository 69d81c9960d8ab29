"""SlowMo: local SGD with slow momentum. The center takes a heavy-ball step along the workers' mean move, divided by η.

    worker, each step       x ← x − η g_k(x), or another inner optimizer; its variables never leave the worker
    every period            push x,  wait,  x ← θ
    server                  u ← β u + (θ − (1/W) Σ x_k)/η,  θ ← θ − α η u,  then release all workers

Use: like `local_sgd`, if rounds are few; not with many rounds, where the gain vanishes.
Reference: Wang, Tantia, Ballas, Rabbat, *SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum*,
ICLR 2020, arXiv:1910.00643.
Departures: the inner optimizer is plain SGD by default; the paper mostly uses momentum. Its variables are kept over
rounds (the paper: "maintain"). Under a schedule of η each local step has the rate of that step, and the server divides
and multiplies by the rate at the beginning of the round; in the paper η is constant within a round.
Limits: with β = 0 and α = 1 it is `local_sgd`. With a constant η it is `bmuf` in its classical form, with block
momentum β and rate α. The division by η matters if η is a schedule: after η has fallen, momentum from the time of a
high rate is applied at the new rate.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Fraction, InnerOptimizer, Period, Rate, Scheme


@dataclass(frozen=True, kw_only=True)
class SlowMo(Scheme):
    """Local steps, then slow momentum on the server."""

    paper = "Wang et al. 2020"
    equals = "bmuf --form classical, at a constant rate"
    sync = Barrier()
    elementwise = True
    sends = "params"

    communication_period: Period = 10
    """Local steps between two averages."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    inner_optimizer: InnerOptimizer = "sgd"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    slow_learning_rate: Rate = 1.0
    """Slow step size α, in units of η."""
    slow_momentum: Fraction = 0.5
    """Slow momentum β."""

    def global_variables(self, center):
        return {"velocity": 0 * center}

    def server_update(self, server, message, staleness):
        moved = (server.center - message) / self.learning_rate
        server.velocity.assign(self.slow_momentum * server.velocity + moved)
        server.center.assign_sub(self.slow_learning_rate * (self.learning_rate * server.velocity))
        return server.center
