"""GASLoC: DiLoCo on a graph. Many local steps, then an average with the neighbours that the outer momentum accelerates.

    worker i, each step     x ← AdamW(x, g_i(x)), or another inner optimizer; its moments never leave the worker
    every period            ψ ← θ + ε (x − θ),  send u = ψ + μ (ψ − ψ'),  wait for u_j of the neighbours
                            θ ← Σ_j W_ij u_j,  ψ' ← ψ,  x ← θ
    center                  (1/W) Σ θ_i, the mean of the workers, collected for evaluations and for the result

where θ is the start of the period, ψ' the ψ of the one before, and W = 1 − α Λ for the Laplacian Λ of the graph. The
momentum μ is that of Nesterov, and at the same time that of accelerated gossip: an average needs a number of rounds
that grows with the root of 1/gap, in place of 1/gap.

Use: as `diloco`, for more workers than a reduction or a parameter server can serve; not for few workers.
Reference: Cagnasso, Belilovsky and Oyallon, *Unifying Local Communications and Local Updates for LLM Pretraining*,
2026, arXiv:2606.11081.
Departures: the equations follow a summary of the paper, in which the momentum is added after the average; here it is
averaged, too, so that the complete graph is DiLoCo exactly. The paper's one- and two-peer matchings are
`random-matching` and the fixed graphs.
Limits: on the complete graph it is `diloco`. With SGD inside, a period of one, ε = 1 and μ = 0 it is `sgp` on the same
graph.
"""

from dataclasses import dataclass

from ..common.contract import Fraction, InnerOptimizer, OnGraph, Period, Rate, inner


@dataclass(frozen=True, kw_only=True)
class GASLoC(OnGraph):
    """Many local AdamW steps, then an accelerated average with the neighbours."""

    paper = "Cagnasso et al. 2026"

    communication_period: Period = 20
    """Local steps between two averages."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer Nesterov momentum μ."""

    def local_variables(self, params):
        return {"began": params, "ahead": params, **inner(self.inner_optimizer).local_variables(params)}

    def local_step(self, worker, gradient):
        inner(self.inner_optimizer).step(worker, gradient, self.learning_rate)

    def message(self, worker):
        ahead = worker.began + self.outer_learning_rate * (worker.params - worker.began)
        message = ahead + self.momentum * (ahead - worker.ahead)
        worker.ahead.assign(ahead)
        return message

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.began.assign(reply)
