"""K-batch-sync SGD, also called Rennala: the mean of the first K gradients at the present center.

    worker k    g = g_k(x),  push g,  x ← reply
    server      if τ = 0:  G ← G + g;  at each K-th of them  θ ← θ − (η/K) G,  G ← 0;  reply θ     one atomic event

where the staleness τ is the number of updates since worker k's last pull. A worker that has sent a gradient takes the
next one at the same θ, so a fast worker has several in an update; a gradient at an older θ is dropped.

Use: for workers of different speed where stale gradients do harm; not on unequal data, where slow shards would be lost.
Reference: Tyurin, Richtárik, *Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed
Computation Model*, NeurIPS 2023, arXiv:2305.12387 (Rennala SGD); Dutta, Joshi, Ghosh, Dube, Nagpurkar, *Slow and Stale
Gradients Can Win the Race*, AISTATS 2018, arXiv:1803.01113 (K-batch-sync SGD).
Departures: none from Rennala, where a worker ends a late gradient, and the server drops it. Dutta et al. cancel it, and
start anew at the new θ, as `cancel_late` does in a simulation and in a `Group`; on processes and threads a gradient is
a single call, which cannot be cancelled.
Choice of K: to bring the mean of ‖∇f‖² below ε with gradients of variance σ², Rennala has K = max{1, ⌈σ²/ε⌉} and η of
the order of the inverse smoothness 1/L: K depends on the noise and not on the machines.
Limits: it is serial SGD with batches of K times the size, by whichever workers are fast, and no update waits for a slow
one. With one worker that is gradient accumulation. K = 1 is `ringmaster` with R = 1.
"""

from dataclasses import dataclass

from ..common.contract import Async, Natural, Rate, Scheme, gathered, sgd


@dataclass(frozen=True, kw_only=True)
class KBatchSync(Scheme):
    """The mean of the first K gradients at the present center; a fast worker sends several."""

    paper = "Tyurin & Richtárik 2023, Dutta et al. 2018"
    means_gradients = True
    aliases = ("rennala",)

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    messages_per_update: Natural = 4
    """Number K of gradients that make one update."""
    cancel_late: bool = False
    """Stop a computation as soon as its gradient would be dropped; only in a simulation or a `Group`."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Async(messages_per_update=self.messages_per_update, drop_after=0, cancel_late=self.cancel_late)

    def global_variables(self, center):
        return {"total": 0 * center}

    def server_update(self, server, message, staleness):
        total = gathered(server.total, message, server.completes)
        sgd(server.center, total / self.messages_per_update, self.learning_rate)
        return server.center
