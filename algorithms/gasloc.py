"""GASLoC: DiLoCo on a graph. Many local steps, then a gossip step to the neighbours, and an outer momentum beside it.

    worker i, each step     x ← AdamW(x, g_i(x)), or another inner optimizer; its moments never leave the worker
    every period            ψ ← θ + ε (x − θ),  send ψ,  wait for ψ_j of the neighbours
                            θ ← ψ + α (Σ_j W_ij ψ_j − ψ) + γ (ψ − ψ'),  ψ' ← ψ,  x ← θ
    center                  (1/W) Σ θ_i, the mean of the workers, collected for evaluations and for the result

where θ is the start of the period, ψ' the ψ of the one before, at first the common start, and Σ W_ij ψ_j − ψ is −Λψ for
the Laplacian Λ of the graph. The momentum γ is that of Nesterov, and at the same time that of accelerated gossip: a
vector of the eigenvalue λ falls by z in a round, z² = (1 − α (1 − λ) + γ) z − γ.

Use: as `diloco`, for more workers than a reduction or a parameter server can serve; not for few workers.
Reference: Cagnasso, Belilovsky and Oyallon, *Unifying Local Communications and Local Updates for LLM Pretraining*,
2026, arXiv:2606.11081.
Departures: the equations follow a summary of the paper. Its one- and two-peer matchings are `random-matching` and
`one-peer`; the fixed graphs are those of the catalogue.
Limits: the mean of the workers is `diloco` with μ = γ on the mean of their moves, on each graph; on the complete graph
the workers approach each other by √γ in a round. With SGD inside, a period of one, ε = α = 1 and γ = 0 it is `sgp` on
the same graph. Without gradients the distances between the workers fall for each γ < 1 on ring, torus, hypercube and
complete, by √γ in a round unless the graph is slower. On the other graphs they grow above a γ, which is refused:

    workers             4     8     16    32   with α = ½: 4     8     16    32
    one-peer            0.76  0.70  0.55  0.51             0.81  0.76  0.75  0.73
    exponential         0.63  0.51  0.49  0.51             0.76  0.67  0.65  0.65
    random-matching     0.87  0.76  0.73  0.72             0.95  0.89  0.87  0.87
"""

from dataclasses import dataclass

from ..common.contract import Decay, InnerOptimizer, OnGraph, Period, Positive, Rate, after_local_steps


@dataclass(frozen=True, kw_only=True)
class GASLoC(OnGraph):
    """Many local AdamW steps, then a gossip step to the neighbours beside an outer momentum."""

    paper = "Cagnasso et al. 2026"
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
    consensus_rate: Positive = 1.0
    """Gossip step size α: the part of the way to the weighted mean of the neighbours."""
    momentum: Decay = 0.9
    """Outer Nesterov momentum γ; which of them a graph allows is under Limits."""

    def linear_round(self, mix, vectors, curvature):
        began, ahead = vectors
        now = began + self.outer_learning_rate * (after_local_steps(self, curvature) - 1) * began
        return now + self.consensus_rate * (mix(now) - now) + self.momentum * (now - ahead), now

    def local_variables(self, params):
        return {"began": params, "ahead": params}

    def message(self, worker):
        return worker.began + self.outer_learning_rate * (worker.params - worker.began)

    def on_reply(self, worker, reply):
        now = self.message(worker)
        after = now + self.consensus_rate * (reply - now) + self.momentum * (now - worker.ahead)
        worker.ahead.assign(now)
        worker.began.assign(after)
        worker.params.assign(after)
