"""CHOCO-SGD: gossip in compressed messages. Workers average public copies of each other, and send what these lack.

    worker i, each step     x_i ← x_i − η g_i(x_i),  send q_i = Q(x_i − x̂_i) to the neighbours,  wait for their q_j
                            x̂_i ← x̂_i + q_i,  s_i ← s_i + Σ_j W_ij q_j
                            x_i ← x_i + γ (s_i − x̂_i)    x̂ and s begin at zero
    center                  θ ← the mean of all x_i, collected for evaluations and for the result

x̂_i is the copy of x_i that all neighbours can follow, Q a compressor, and s_i = Σ_j W_ij x̂_j. With `order authors` a
worker adds γ (s_i − x̂_i) before it compresses, as the authors' code does: the average is that of the copies before. The
worker keeps its last x_i and s_i − x̂_i, and the codec x_i − x̂_i, which is the rest of an error feedback.

Use: for many workers over slow links; not for few, or where the messages of `d_psgd` are no burden.
Reference: Koloskova, Stich and Jaggi, *Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication*, ICML 2019, arXiv:1902.00340, Algorithm 2. Without a gradient it is its CHOCO-Gossip, Algorithm 1.
Departures: the graph must be the same in all rounds, as in the paper. Q is any `--codec`, without its own memory; one
that rounds at random is divided by 1 + its variance, as in the authors' code. A lost worker begins all copies anew.
Limits: the mean of the workers moves by −η times their mean gradient, exactly, for each Q and γ. With `compressor
float32` and γ = 1 it is `sgp` on the same graph, and with `order authors` `d_psgd`; with γ < 1 it has the lazy matrix
1 − γ + γ W in place of W. Above a γ workers move apart without any gradient. With the largest elements of 100
parameters that is, as 500 rounds show,

    fraction sent       0.01  0.1   0.5
    ring of 8           0.13  0.38  1.41
    ring of 16          0.13  0.43  1.42
    hypercube of 16     0.10  0.29  1.25
    complete graph of 8 0.09  0.26  1.43

The paper's theorem has a γ that is some thousand times as small.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import ClearedOnLoss, Compression, OnGraph, Positive, Rate, with_memory


@dataclass(frozen=True, kw_only=True)
class ChocoSGD(OnGraph):
    """Gossip in compressed messages: workers average copies, and send what these lack."""

    paper = "Koloskova et al. 2019"
    elementwise = True
    sends = "gradient"  # a change, whose rest is sent later
    linear_rates = ("consensus_rate", "order")

    learning_rate: Rate = 0.2
    """Step size η of each worker."""
    consensus_rate: Positive = 0.2
    """Gossip step size γ: the smaller the part that is sent, the smaller."""
    compressor: Compression = "topk:fraction=0.1"
    """Compressor Q: a codec, as for --codec, or float32 for none."""
    order: Literal["paper", "authors"] = "paper"
    """A worker adds the average after its message, as in the paper, or before it, as in the authors' code."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return with_memory(self.compressor)

    @property
    def linear_vectors(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return 1 if self.compressor == "float32" else 0  # no compressed round is linear

    def check(self, workers):
        self.refuse_changing_graph("sums up what its neighbours have sent")
        return super().check(workers)

    def linear_round(self, mix, vectors, curvature):
        (params,) = vectors
        stepped = (1 - curvature) * params
        ahead = params if self.order == "authors" else stepped
        return [stepped + self.consensus_rate * (mix(ahead) - ahead)]

    def local_variables(self, params):
        return {name: ClearedOnLoss(0 * params) for name in ("sent", "behind")}

    def local_step(self, worker, gradient):
        worker.params.assign_sub(self.learning_rate * gradient)

    def message(self, worker):
        if self.order == "authors":
            worker.params.assign_add(self.consensus_rate * worker.behind)
        return worker.params - worker.sent

    def on_reply(self, worker, reply):
        change = worker.params - worker.sent
        worker.sent.assign(worker.params)
        worker.behind.assign_add(reply - change)
        if self.order == "paper":
            worker.params.assign_add(self.consensus_rate * worker.behind)
