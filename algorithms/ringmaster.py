"""Ringmaster: asynchronous SGD that drops gradients which are too stale.

    worker k    g = g_k(x),  push g,  x ← reply
    server      if τ < R:  θ ← θ − η g;  reply θ                           one atomic event

where the staleness τ is the number of updates since worker k's last pull; a dropped gradient is no update.

Use: if some workers are much slower than others; not on unequal data, where slow workers would not be heard.
Reference: Maranjyan, Tyurin, Richtárik, *Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity*,
ICML 2025, arXiv:2501.16168, Algorithm 4. (`tf.contrib`'s DropStaleGradientOptimizer is the same rule.)
Departures: none from Algorithm 4; with `cancel_late` none from Algorithm 5, which stops a computation as soon as its
delay is R, and begins anew. That needs a simulation, or a `Group`: on processes and threads a gradient is a single
call, which cannot be stopped.
Choice of R and η: they belong together. To bring the mean of ‖∇f‖² below ε, with a smoothness L and gradients of
variance σ², the paper has R = max{1, ⌈σ²/ε⌉} and η = min{1/(2RL), ε/(4Lσ²)}: R depends on the noise and not on the
machines, and a smaller R allows a larger η. The default 16 is not chosen in this way: tune R and η on one grid.
Limits: with R above all staleness it is `async_sgd`. R = 1 uses only gradients at the present center: with W equal
workers in turn, those of one worker.
"""

from dataclasses import dataclass

from ..common.contract import Async, Natural, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class Ringmaster(Scheme):
    """Every gradient is applied when it arrives, unless it is too late."""

    paper = "Maranjyan et al. 2025"
    equals = "k_batch_sync --messages-per-update 1, if --delay-threshold 1"

    learning_rate: Rate = 0.1
    """Step size η."""
    delay_threshold: Natural = 16
    """Smallest staleness R at which a gradient is dropped."""
    cancel_late: bool = False
    """Stop a computation as soon as its gradient would be dropped; only in a simulation or a `Group`."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Async(drop_after=self.delay_threshold - 1, cancel_late=self.cancel_late)

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
