"""NoLoCo: DiLoCo without a reduction. After many local steps, workers average in random pairs, with momentum.

    worker i, each step     x ← AdamW(x, g_i(x)), or another inner optimizer; its moments never leave the worker
    every period            send u = ε (x − a) + γ a,  wait for the u of its peer in this round
                            m ← μ m + Σ_j W_ij ε (x_j − a_j) + γ (Σ_j W_ij a_j − a),  a ← a + m,  x ← a
    center                  (1/W) Σ a_i, the mean of the workers, collected for evaluations and for the result

where W is the mixing matrix of the round, ½ for the worker and for its peer. The term with γ pulls the slow weights a
of a pair together, which no reduction does here. Both sums have the same weights: the one vector u has all that a
peer needs.

Use: for many workers over slow links of high latency, where a reduction over all of them is slow; not for few workers.
Reference: Kolehmainen, Blagoev, Donaghy, Ersoy and Nies, *NoLoCo: No-all-reduce Low Communication Training Method for
Large Models*, 2025, arXiv:2506.10911.
Departures: any graph in place of random pairs. The paper routes activations of a pipeline at random, too; here a worker
has the whole model. The momentum is heavy-ball, not Nesterov's. The period is short by default (the paper: 50).
Limits: on the complete graph with γ = ε it is `slowmo`, or DiLoCo with heavy-ball momentum, and all workers are equal.
On each graph the mean of the slow weights follows that rule with the mean of the workers' moves.
"""

from dataclasses import dataclass

from ..common.contract import Fraction, Graph, InnerOptimizer, OnGraph, Period, Positive, Rate, inner


@dataclass(frozen=True, kw_only=True)
class NoLoCo(OnGraph):
    """Many local AdamW steps, then an average in random pairs, with momentum."""

    paper = "Kolehmainen et al. 2025"

    communication_period: Period = 20
    """Local steps between two averages."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Fraction = 0.5
    """Outer momentum μ."""
    consensus_rate: Positive = 0.7
    """Strength γ of the pull to the slow weights of the peer."""
    topology: Graph = "random-matching"

    def local_variables(self, params):
        return {"slow": params, "velocity": 0 * params, **inner(self.inner_optimizer).local_variables(params)}

    def local_step(self, worker, gradient):
        inner(self.inner_optimizer).step(worker, gradient, self.learning_rate)

    def message(self, worker):
        return self.outer_learning_rate * (worker.params - worker.slow) + self.consensus_rate * worker.slow

    def on_reply(self, worker, reply):
        worker.velocity.assign(self.momentum * worker.velocity + reply - self.consensus_rate * worker.slow)
        worker.slow.assign_add(worker.velocity)
        worker.params.assign(worker.slow)
