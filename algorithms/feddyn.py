"""FedDyn: local steps on a loss that changes from round to round, so that all workers' minima meet in that of the mean.

    worker k, each step     x ← x − η (g_k(x) − λ_k + α (x − θ)),  θ the center that it pulled
    every period            λ_k ← λ_k − α (x − θ),  push x,  wait,  x ← θ    λ_k = 0 at first
    server                  s ← s − (α/W) Σ (x_k − θ),  θ ← mean x_k − s/α,  then release all workers

At rest λ_k is the gradient of the worker's own loss, and s, the mean of all λ_k, is zero: the center is at the minimum
of the mean loss, also if the workers' data differ, and at a constant rate.

Use: for many local steps on unequal data; not with a small α, which makes the server's steps long.
Reference: Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, *Federated Learning Based on Dynamic Regularization*,
ICLR 2021, arXiv:2111.04263, Algorithm 1. Its workers minimize f_k(x) − ⟨λ_k, x⟩ + α/2 ‖x − θ‖² exactly; here they make
steps of SGD, as in the authors' code.
Departures: all workers take part in every round; the paper samples clients. A worker that is lost for good leaves its
λ_k in s, as a client that no longer takes part; one that is started again begins with λ_k = 0, and s is then no longer
the mean.
Limits: with λ_k = 0 and s = 0 it is `fedprox`. With a period of one and α = 1/(2η) it is `sync_sgd` of rate 2η. With
exact minimization of equal losses a round is a proximal step of length 1/α, so that the center moves far if α is small:
local steps that do not come near their minimum then overshoot.
Defaults: the authors' example for CIFAR-10 has α = 0.01 for five epochs in a round; ten steps need a larger one.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, OfShard, Period, Positive, Rate, Scheme, sgd, take


@dataclass(frozen=True, kw_only=True)
class FedDyn(Scheme):
    """Local steps with a spring and a slope that add up to the minimum of the mean loss."""

    paper = "Acar et al. 2021"
    sync = Barrier()
    sends = "params"
    elementwise = True

    communication_period: Period = 10
    """Local steps between two rounds."""
    learning_rate: Rate = 0.2
    """Step size η."""
    regularization: Positive = 0.1
    """Strength α of the spring to the last center."""

    def local_variables(self, params):
        return {"began": params, "slope": OfShard(0 * params)}

    def global_variables(self, center):
        return {"slope": 0 * center, "messages": 0 * center[0]}

    def local_step(self, worker, gradient):
        spring = self.regularization * (worker.params - worker.began)
        sgd(worker.params, gradient - worker.slope + spring, self.learning_rate)

    def message(self, worker):
        worker.slope.assign_sub(self.regularization * (worker.params - worker.began))
        return worker.params

    def weighted(self, server, message, staleness):
        server.messages.assign_add(1.0)
        return message

    def server_update(self, server, message, staleness):
        share = take(server.messages) / server.num_workers
        slope = server.slope.assign_sub(self.regularization * share * (message - server.center))
        server.center.assign(message - slope / self.regularization)
        return server.center

    def on_reply(self, worker, reply):
        worker.began.assign(reply)
        worker.params.assign(reply)
