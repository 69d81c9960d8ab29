"""D-PSGD: gossip. Each worker averages its parameters with those of its neighbours in a graph, and makes its own step.

    worker k    m_k ← β m_k + g_k(x_k),  send x_k to the neighbours,  wait for their x_i    β = 0 by default
                x_k ← Σ W_ki x_i − η m_k    W is the mixing matrix of the graph, doubly stochastic
    center      θ ← the mean of all x_k, collected for evaluations and for the result

Use: for many workers whose links are slow: a worker of a ring sends and receives two vectors in a step, whatever the
number of workers; not for few workers, where `all_reduce` takes the same step with no distance between the workers.
Reference: Lian, Zhang, Zhang, Hsieh, Zhang and Liu, *Can Decentralized Algorithms Outperform Centralized Algorithms? A
Case Study for Decentralized Parallel Stochastic Gradient Descent*, NIPS 2017, arXiv:1705.09056, Algorithm 1.
Departures: the paper has no momentum; with β it is DmSGD (Yu, Jin and Yang, ICML 2019, arXiv:1905.03817), the average
first. The paper's gradient and messages overlap; here the messages follow the gradient. Graphs that change from round
to round (`one-peer`, `random-matching`) are later than the paper.
Limits: on the complete graph it is `all_reduce` on the mean of the workers' gradients, each at its own x_k, and these
differ by one step; with one worker it is serial SGD. On the same loss ½Lx² of all workers it is stable for η < (1 +
λ_min)/L, where λ_min is the smallest eigenvalue of W, if the graph is fixed and symmetric: λ_min is −1/3 on a ring of
an even number, −3/5 on a torus with even sides of at least four, (1 − d)/(1 + d) on a hypercube of 2^d workers, 0 on
the complete graph. With momentum that is η < (1 + β)(1 + λ_min)/L, and it rests where it does with η/(1 − β) and β = 0,
which is further from the minimum where shards differ, see `qg_dsgdm`. `sgp` and `all_reduce` have 2/L on each graph.
The limits of η L:

    workers             4     8     16    32
    ring                0.67  0.67  0.67  0.67
    torus               0.67  0.50  0.40  0.40
    hypercube           0.67  0.50  0.40  0.33
    exponential         0.94  0.82  0.75  0.72
    one-peer            1.18  1.15  1.16  1.15
    random-matching     1.45  1.36  1.35  1.36
    complete            1.00  1.00  1.00  1.00
"""

from dataclasses import dataclass

from ..common.contract import Decay, OnGraph, Rate


@dataclass(frozen=True, kw_only=True)
class DPSGD(OnGraph):
    """Gossip: each worker averages its parameters with its neighbours, then makes its own step."""

    paper = "Lian et al. 2017"
    elementwise = True
    linear_vectors = 2  # parameters, and η times the momentum

    learning_rate: Rate = 0.2
    """Step size η of each worker."""
    momentum: Decay = 0.0
    """Momentum β of each worker's steps (DmSGD)."""

    def linear_round(self, mix, vectors, curvature):
        params, velocity = vectors
        velocity = self.momentum * velocity + curvature * params
        return mix(params) - velocity, velocity

    def local_variables(self, params):
        return {"kept": 0 * params}

    def message(self, worker):
        worker.kept.assign(self.momentum * worker.kept + worker.gradient)
        return worker.params.read_value()

    def on_reply(self, worker, reply):
        worker.params.assign(reply - self.learning_rate * worker.kept)
