"""SSP: stale synchronous parallel. Messages are applied one by one, and workers too far ahead of the slowest block.

    worker k    g = g_k(x),  push g,  wait until all have done at least c_k − s rounds,  x ← θ
    server      θ ← θ − (η/W) g,  c_k ← c_k + 1                            one atomic event

where the clock c_k is the number of rounds that worker k has done, and s the slack.

Use: for workers that are slow now and then; not for one that is always slow, for which all others wait in the end.
Reference: Ho, Cipar, Cui, Lee, Kim, Gibbons, Gibson, Ganger, Xing, *More Effective Distributed ML via a Stale
Synchronous Parallel Parameter Server*, NIPS 2013.
Departures: each gradient has the weight 1/W, so that rates compare with those of `sync_sgd`; the paper adds whole
updates, and has the number of workers in its rate: η = F / (L √(2 (s + 1) W t)), which also falls as 1/√t (here it is
constant unless it is given a schedule). Reads are eager: a worker gets the newest center, as is usual, with at least
the updates that the paper guarantees.
Limits: with one worker it is serial SGD. Without a bound (s as long as the run) it is `async_sgd` with the rate η/W.
With s = 0 no worker begins a round before all have done the last one, as in `sync_sgd`, but messages are applied one by
one.
"""

from dataclasses import dataclass

from ..common.contract import Bounded, Count, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class SSP(Scheme):
    """Every gradient is applied when it arrives, but no worker runs far ahead of the slowest."""

    paper = "Ho et al. 2013"

    learning_rate: Rate = 0.2
    """Step size η, of one gradient of each worker."""
    slack: Count = 2
    """Number of rounds s that a worker may be ahead of the slowest."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Bounded(self.slack)

    def server_update(self, server, message, staleness):
        sgd(server.center, message / server.num_workers, self.learning_rate)
        return server.center
