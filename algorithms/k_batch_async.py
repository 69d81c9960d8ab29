"""K-batch-async SGD: the server steps with the mean of every K gradients, and no worker waits.

    worker k    g = g_k(x),  push g,  x ← reply
    server      G ← G + g;  at each K-th gradient  θ ← θ − (η/K) G,  G ← 0;  reply θ     one atomic event

Use: for many workers with noisy gradients, whose staleness should fall; not if single gradients are exact.
Reference: Dutta, Joshi, Ghosh, Dube, Nagpurkar, *Slow and Stale Gradients Can Win the Race: Error-Runtime Trade-offs in
Distributed SGD*, AISTATS 2018, arXiv:1803.01113.
Departures: none. A worker whose gradient does not complete an update gets the θ that it has.
Limits: with K = 1 it is `async_sgd`. The mean staleness is (W − 1)/K, and updates come at the rate W/(K·E[X]), X being
the time of a gradient, whatever its distribution. With local steps and weights by staleness it is FedBuff.
"""

from dataclasses import dataclass

from ..common.contract import Async, Natural, Rate, Scheme, gathered, sgd


@dataclass(frozen=True, kw_only=True)
class KBatchAsync(Scheme):
    """The mean of every K gradients, of any workers and however late."""

    paper = "Dutta et al. 2018"
    equals = "fedbuff --communication-period 1 --staleness-exponent 0"

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    messages_per_update: Natural = 4
    """Number K of gradients that make one update."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Async(messages_per_update=self.messages_per_update)

    def global_variables(self, center):
        return {"total": 0 * center}

    def server_update(self, server, message, staleness):
        total = gathered(server.total, message, server.completes)
        sgd(server.center, total / self.messages_per_update, self.learning_rate)
        return server.center
