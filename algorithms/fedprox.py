"""FedProx: local SGD with a spring to the last center, which limits how far workers with unequal data drift apart.

    worker, each step       x ← x − η (g_k(x) + μ (x − θ)),  θ the center that it pulled
    every period            push x,  wait,  x ← θ
    server                  θ ← (1/W) Σ x_k,  then release all workers

Use: for many local steps on unequal data, to limit the drift; `scaffold` removes it.
Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, *Federated Optimization in Heterogeneous Networks*, MLSys 2020,
arXiv:1812.06127, Algorithm 2. Its workers minimize f_k(x) + μ/2 ‖x − θ‖² approximately, to an accuracy γ of their own;
here that is a number of steps of SGD, as in its experiments, with μ from 0.001 to 1.
Departures: all workers take part in every round (`--participation` samples clients), with equal weights and numbers of
steps; the paper samples clients in proportion to their examples.
Limits: with μ = 0 it is `local_sgd`; with a period of one, where x = θ, it is `sync_sgd` for any μ. The spring alone is
stable for η μ < 2. As H grows on unequal shards, it comes nearer to the minimum than `local_sgd`, but not to it;
`scaffold` does.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, NotNegative, Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class FedProx(Scheme):
    """Local steps with a spring to the last center, then the mean of the parameters."""

    paper = "Li et al. 2020"
    sync = Barrier()
    sends = "params"
    elementwise = True

    communication_period: Period = 10
    """Local steps between two averages."""
    learning_rate: Rate = 0.2
    """Step size η."""
    proximity: NotNegative = 0.1
    """Strength μ of the spring to the last center."""

    def local_variables(self, params):
        return {"began": params}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient + self.proximity * (worker.params - worker.began), self.learning_rate)

    def server_update(self, server, message, staleness):
        server.center.assign(message)
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.began.assign(reply)
