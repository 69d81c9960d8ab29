"""n-softsync: the server steps with the mean of every c gradients, each divided by its staleness; no worker waits.

    worker k                g = g_k(x),  push g,  x ← reply
    server, each push       D ← D + g / max(τ, 1)                               one atomic event
        every c-th          θ ← θ − η D/c,  D ← 0
                            reply θ

where the staleness τ counts updates of the center since worker k's last pull.

Use: between synchronous and asynchronous: less stale than `async_sgd`, and no worker waits.
Reference: Zhang, Gupta, Lian, Liu, *Staleness-aware Async-SGD for Distributed Deep Learning*, IJCAI 2016,
arXiv:1511.05950, equations 2 and 3. The paper's splitting parameter is n = W/c, from 1 to W: set c = ⌊W/n⌋.
Departures: none. The paper's experiments add momentum.
What the paper shows: the mean staleness is about n and rarely more than 2n; with the division, the rate of synchronous
SGD serves all n.
Limits: with one worker and c = 1 it is serial SGD. c = 1 is the paper's W-softsync, `async_sgd` with rates divided by τ
(`dynsgd` divides by τ + 1). While no gradient is more than one update late, as with c = W and workers in turn, it is
K-batch-async (Dutta et al. 2018) with K = c.
"""

from dataclasses import dataclass

from ..common.contract import Async, Natural, Rate, Scheme, gathered, sgd, tf


@dataclass(frozen=True, kw_only=True)
class SoftSync(Scheme):
    """The mean of every few gradients, each divided by its lateness; no worker waits."""

    paper = "Zhang et al. 2016"

    learning_rate: Rate = 0.2
    """Step size η of gradients that are at most one update late."""
    messages_per_update: Natural = 2
    """Number c of gradients that make one update."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Async(messages_per_update=self.messages_per_update)

    def global_variables(self, center):
        return {"buffer": 0 * center}

    def server_update(self, server, message, staleness):
        total = gathered(server.buffer, message / tf.maximum(staleness, 1.0), server.completes)
        sgd(server.center, total / self.messages_per_update, self.learning_rate)
        return server.center
