"""Ringmaster: asynchronous SGD that ignores gradients which are too late.

    worker k    g = g_k(x),  push g,  x ← reply
    server      if τ < R:  θ ← θ − η g;  reply θ                           one atomic event

where the staleness τ is the number of updates since worker k's last pull: an ignored gradient is none.

Reference: Maranjyan, Tyurin, Richtárik, *Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity*,
ICML 2025, arXiv:2501.16168.
Departures: a gradient that has become too late is computed to its end, and ignored then; the paper's second form stops
it. (`tf.contrib`'s DropStaleGradientOptimizer is the form here.)
Limits: R above all staleness is `async_sgd`. R = 1 uses those gradients alone that were computed at the present center:
among W equal workers in turn, those of one worker.
"""

from dataclasses import dataclass

from ..common.contract import Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class Ringmaster(Scheme):
    """Every gradient is applied when it arrives, unless it is too late."""

    paper = "Maranjyan et al. 2025"

    learning_rate: Rate = 0.1
    """Step size η."""
    delay_threshold: Period = 16
    """Staleness R from which a gradient is ignored."""

    def accepts(self, staleness):
        return staleness < self.delay_threshold

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
