"""Exact diffusion: gossip that rests at the minimum. A worker corrects what it sends by what the average has changed.

    worker i, each step     ψ_i = x_i − η g_i(x_i),  send ψ_i + d_i to the neighbours,  wait for theirs
                            x_i ← Σ_j V_ij (ψ_j + d_j),  d_i ← x_i − ψ_i    d begins at zero
    center                  θ ← the mean of all x_i, collected for evaluations and for the result

V = (1 + W)/2 for the mixing matrix W of the graph. D² has V = W (`form d2`). The sum of all d_i is zero.

Use: as `d_psgd`, where the shards of the workers differ: it has no bias at a constant η, for one vector in a step, of
which `dsgd_tracking` sends two; not on equal shards, where `d_psgd` is as good.
Reference: Yuan, Ying, Zhao and Sayed, *Exact Diffusion for Distributed Optimization and Learning, Part I*, IEEE TSP
2019, arXiv:1702.05122; Tang, Lian, Yan, Zhang and Liu, *D²: Decentralized Training over Decentralized Data*, ICML 2018,
arXiv:1803.07068.
Departures: gradients of batches, as in the second. As in both, the graph is the same in all rounds. A lost worker
clears all d.
Limits: V = W is x⁺ = W (2 x − x' − η (g − g')), with x' and g' of the step before. It needs eigenvalues of W above
−1/3: an even ring has just that, and never settles where the loss is flat; on torus, hypercube and exponential graph of
8 workers or more, and with (1 + W)/2 on an exponential graph of 16, workers move apart, which is refused. Elsewhere it
is stable for η < 2/L on the same loss ½Lx² of all workers, `d_psgd` on an even ring for η < 0.67/L. With one worker it
is serial SGD, on the complete graph with V = W `all_reduce`.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import ClearedOnLoss, OnGraph, Rate


@dataclass(frozen=True, kw_only=True)
class ExactDiffusion(OnGraph):
    """Gossip without bias on unequal shards, for one vector in a step."""

    paper = "Yuan et al. 2019, Tang et al. 2018"
    aliases = ("d2 --form d2",)
    elementwise = True
    linear_vectors = 2
    linear_rates = ("form",)

    learning_rate: Rate = 0.2
    """Step size η of each worker."""
    form: Literal["exact-diffusion", "d2"] = "exact-diffusion"
    """Matrix V of the average: (1 + W)/2, or W itself."""

    def check(self, workers):
        self.refuse_changing_graph("corrects what it hears from its neighbours")
        return super().check(workers)

    def linear_round(self, mix, vectors, curvature):
        params, correction = vectors
        stepped = params - curvature * params
        sent = stepped + correction
        after = self._averaged(sent, mix(sent))
        return after, after - stepped

    def local_variables(self, params):
        return {"correction": ClearedOnLoss(0 * params)}

    def local_step(self, worker, gradient):
        worker.params.assign_sub(self.learning_rate * gradient)

    def message(self, worker):
        return worker.params + worker.correction

    def on_reply(self, worker, reply):
        after = self._averaged(worker.params + worker.correction, reply)
        worker.correction.assign(after - worker.params)
        worker.params.assign(after)

    def _averaged(self, sent, mixed):
        return mixed if self.form == "d2" else (sent + mixed) / 2
