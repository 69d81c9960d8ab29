"""SGP, stochastic gradient push: each worker makes its step, and sends the result to one other, in turn further away.

    worker i, each step     m_i ← β m_i + g_i(z_i)    β = 0 by default
                            x_i ← x_i − η (g_i(z_i) + β m_i),  send x_i to the worker that hears it in this round
                            x_i ← Σ_j P_ij x_j,  w_i ← Σ_j P_ij w_j,  z_i = x_i/w_i
    center                  (1/W) Σ z_i, the mean of the workers, collected for evaluations and for the result

P is the matrix of the graph in that round. Its columns sum to one, so that nothing is lost, and w, which begins at one,
corrects for rows that do not. In all graphs here the rows sum to one, too: w stays one, and is neither sent nor kept.

Use: for many workers on slow links: one vector in a step, and with 2^d workers each has heard all after d steps; not
for few workers, where `all_reduce` costs as much.
Reference: Assran, Loizou, Ballas and Rabbat, *Stochastic Gradient Push for Distributed Deep Learning*, ICML 2019,
arXiv:1811.10792, Algorithm 1.
Departures: no push-sum weight, see above; a graph whose rows do not sum to one is refused. The paper's
experiments have β = 0.9: with it a run rests where plain gossip with η/(1 − β) does, see `qg_dsgdm`.
Limits: with one worker it is serial SGD. On the complete graph all workers are equal, and it is `all_reduce`. On equal
graphs it differs from `d_psgd` in the order: there the average comes first, here the step. So it is stable for
η < 2/L on the same loss ½Lx² of all workers, on each graph; `d_psgd` for (1 + λ_min)/L, with λ_min the smallest
eigenvalue of P: 0.67/L on an even ring, whose λ_min is −1/3.
"""

from dataclasses import dataclass

from ..common.contract import Decay, Graph, OnGraph, Rate


@dataclass(frozen=True, kw_only=True)
class SGP(OnGraph):
    """Gossip: each worker makes its step, and averages with one other, in turn further away."""

    paper = "Assran et al. 2019"
    elementwise = True
    linear_vectors = 2  # parameters, and η times the momentum

    learning_rate: Rate = 0.2
    """Step size η of each worker."""
    momentum: Decay = 0.0
    """Nesterov momentum β of each worker's steps."""
    topology: Graph = "one-peer"

    def linear_round(self, mix, vectors, curvature):
        params, velocity = vectors
        velocity = self.momentum * velocity + curvature * params
        return mix(params - curvature * params - self.momentum * velocity), velocity

    def local_variables(self, params):
        return {"velocity": 0 * params} if self.momentum else {}

    def local_step(self, worker, gradient):
        step = gradient
        if self.momentum:
            worker.velocity.assign(self.momentum * worker.velocity + gradient)
            step = gradient + self.momentum * worker.velocity
        worker.params.assign_sub(self.learning_rate * step)

    def message(self, worker):
        return worker.params.read_value()
