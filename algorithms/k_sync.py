"""K-sync SGD: the mean of the gradients of the first K of W workers.

    worker k    g_k = g_k(θ),  push g_k,  wait,  x ← θ
    server      keeps the first K gradients computed at the present θ:
                θ ← θ − (η/K) Σ g_k,  then release their workers; later gradients are dropped

Use: if late gradients cost more than lost ones; not on unequal data, where the slowest workers would not be heard.
Reference: Dutta, Joshi, Ghosh, Dube, Nagpurkar, *Slow and Stale Gradients Can Win the Race: Error-Runtime Trade-offs in
Distributed SGD*, AISTATS 2018, arXiv:1803.01113.
Departures: none with `cancel_late`: late computations are cancelled, all workers begin anew at the new θ, and an update
takes the K-th smallest of W times. That needs a simulation, or a `Group`: on processes and threads a round is one
gradient, a single call, within which no worker can stop. There, and without `cancel_late`, a late worker ends its
computation, its gradient is dropped, and only then does it begin at the new θ: updates come less often.
Limits: it is `sync_sgd` with W − K backup workers, and with K = W without. If there are fewer than K workers, all of
them make an update.
"""

from dataclasses import dataclass

from ..common.contract import Natural, Quorum, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class KSync(Scheme):
    """The mean of the first K workers' gradients at the present center; later ones are dropped."""

    paper = "Dutta et al. 2018"
    means_gradients = True
    equals = "sync_sgd --backup-workers W-K"

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    workers_per_update: Natural = 4
    """Number K of workers whose gradients make one update."""
    cancel_late: bool = False
    """Stop a computation as soon as its gradient would be dropped; only in a simulation or a `Group`."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Quorum(self.workers_per_update, cancel_late=self.cancel_late)

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
