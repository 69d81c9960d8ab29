"""D-PSGD: gossip. Each worker averages its parameters with those of its neighbours in a graph, and makes its own step.

    worker k    g_k = g_k(x_k),  send x_k to the neighbours,  wait for their x_i
                x_k ← Σ W_ki x_i − η g_k    W is the mixing matrix of the graph, doubly stochastic
    center      θ ← the mean of all x_k, collected for evaluations and for the result

Use: for many workers whose links are slow: a worker of a ring sends and receives two vectors in a step, whatever the
number of workers; not for few workers, where `all_reduce` takes the same step with no distance between the workers.
Reference: Lian, Zhang, Zhang, Hsieh, Zhang and Liu, *Can Decentralized Algorithms Outperform Centralized Algorithms? A
Case Study for Decentralized Parallel Stochastic Gradient Descent*, NIPS 2017, arXiv:1705.09056, Algorithm 1.
Departures: the paper's gradient and messages overlap; here the messages follow the gradient. Graphs that change from
round to round (`one-peer`, `random-matching`) are later than the paper.
Limits: on the complete graph it is `all_reduce` on the mean of the workers' gradients, each at its own x_k, and these
differ by one step; with one worker it is serial SGD.
"""

from dataclasses import dataclass

from ..common.contract import OnGraph, Rate


@dataclass(frozen=True, kw_only=True)
class DPSGD(OnGraph):
    """Gossip: each worker averages its parameters with its neighbours, then makes its own step."""

    paper = "Lian et al. 2017"
    elementwise = True

    learning_rate: Rate = 0.2
    """Step size η of each worker."""

    def local_variables(self, params):
        return {"kept": 0 * params}

    def message(self, worker):
        worker.kept.assign(worker.gradient)
        return worker.params.read_value()

    def on_reply(self, worker, reply):
        worker.params.assign(reply - self.learning_rate * worker.kept)
