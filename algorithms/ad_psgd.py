"""AD-PSGD: asynchronous gossip. Each worker averages with one neighbour at a time, which does not wait for it.

    worker k, each step     g = g_k(x̂_k)    x̂_k is x_k after its last step; others may have changed x_k meanwhile
                            draw a neighbour j,  x_k, x_j ← ½ (x_k + x_j) at once
                            x_k ← x_k − η g,  x̂_k ← x_k
    center                  θ ← the mean of all x_k, collected for evaluations and for the result

The graph is cut into two classes. The workers of one class draw neighbours of the other; those of the other class are
drawn, answer at once, also while they compute, and make their own steps without a draw. So each pair has the same mean
at the same place in the order of events, and no circle of workers can wait for each other. A bipartite graph keeps all
links (a ring of an even number, a hypercube), every other one at least half of them, and stays connected.

Use: for workers of different speed without a parameter server, where one slow worker would hold up `d_psgd` and
`all_reduce`; not for equal workers, where `d_psgd` averages more.
Reference: Lian, Zhang, Zhang and Liu, *Asynchronous Decentralized Parallel Stochastic Gradient Descent*, ICML 2018,
arXiv:1710.06952, Algorithm 1, and its two classes of workers against deadlocks.
Departures: the paper's threads average as often as they can beside the gradients; here a worker of the drawing class
averages once a step, after the gradient. The paper asks for a bipartite graph; here others lose links.
Limits: no checkpoints in the middle of a run, so that it cannot be resumed; a lost worker stops the run. Worker 0
numbers the events of the record, a few bytes for each. With one worker it is serial SGD; a worker that is drawn keeps
two copies of the model.
"""

from dataclasses import dataclass

from ..common.contract import OnGraph, Pairs, Rate


@dataclass(frozen=True, kw_only=True)
class ADPSGD(OnGraph):
    """Gossip: each worker averages with one neighbour at a time, which does not wait for it."""

    paper = "Lian et al. 2018"
    rule = Pairs
    elementwise = True

    learning_rate: Rate = 0.2
    """Step size η of each worker."""

    def local_variables(self, params):
        return {"seen": params, "kept": 0 * params}

    def gradient_point(self, worker):
        return worker.seen.read_value()

    def message(self, worker):
        worker.kept.assign(worker.gradient)
        return worker.params.read_value()

    def on_reply(self, worker, reply):
        after = reply - self.learning_rate * worker.kept
        worker.params.assign(after)
        worker.seen.assign(after)
