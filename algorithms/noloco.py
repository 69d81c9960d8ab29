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
has the whole model. The period is short by default (the paper: 50).
Limits: on the complete graph it is `slowmo`, or DiLoCo with heavy-ball momentum, for each γ: all workers are equal. On
each graph the mean of the slow weights follows that rule with the mean of the workers' moves. Without gradients a
vector of the eigenvalue λ of W falls by z in a round, z² = (1 − γ (1 − λ) + μ) z − μ: for each μ < 1 on ring, torus,
hypercube and complete, unless γ > 2 (1 + μ)/(1 − λ_min), with λ_min −1/3, −3/5, −2/3 and 0 at 32 workers. On the other
graphs the distances between workers grow above a μ, which is refused; with γ = 0.7:

    workers             4     8     16    32
    one-peer            0.78  0.73  0.69  0.63
    exponential         0.71  0.61  0.58  0.59
    random-matching     0.89  0.84  0.83  0.82

Defaults: those of the authors' code, μ = 0.5 and ε = γ = 0.7, one rate for both terms; the paper has a γ of its own.
The paper calls the momentum Nesterov's, and both its equation and the code have the heavy ball.
"""

from dataclasses import dataclass

from ..common.contract import Decay, Graph, InnerOptimizer, OnGraph, Period, Positive, Rate, after_local_steps


@dataclass(frozen=True, kw_only=True)
class NoLoCo(OnGraph):
    """Many local AdamW steps, then an average in random pairs, with momentum."""

    paper = "Kolehmainen et al. 2025"
    linear_vectors = 2
    linear_rates = "momentum", "consensus_rate"

    communication_period: Period = 20
    """Local steps between two averages."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Decay = 0.5
    """Outer momentum μ."""
    consensus_rate: Positive = 0.7
    """Strength γ of the pull to the slow weights of the peer."""
    topology: Graph = "random-matching"

    def linear_round(self, mix, vectors, curvature):
        slow, velocity = vectors
        moved = self.outer_learning_rate * (after_local_steps(self, curvature) - 1) * slow
        velocity = self.momentum * velocity + mix(moved + self.consensus_rate * slow) - self.consensus_rate * slow
        return slow + velocity, velocity

    def local_variables(self, params):
        return {"slow": params, "velocity": 0 * params}

    def message(self, worker):
        return self.outer_learning_rate * (worker.params - worker.slow) + self.consensus_rate * worker.slow

    def on_reply(self, worker, reply):
        worker.velocity.assign(self.momentum * worker.velocity + reply - self.consensus_rate * worker.slow)
        worker.slow.assign_add(worker.velocity)
        worker.params.assign(worker.slow)
