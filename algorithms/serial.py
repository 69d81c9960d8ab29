"""Serial SGD: one process, no parameter server. The baseline of every comparison.

    each step      θ ← θ − η g(θ)

Use: on one machine that is fast enough, and as the baseline of every comparison.
Reference: Robbins and Monro, *A Stochastic Approximation Method*, 1951.
Departures: none.
Limits: it equals `async_sgd` with one worker; with batch W·b it equals `sync_sgd` with W workers of batch b.
"""

from dataclasses import dataclass

from ..common.contract import Alone, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class Serial(Scheme):
    """One process, the baseline."""

    paper = "Robbins & Monro 1951"
    sync = Alone()
    elementwise = True

    learning_rate: Rate = 0.2
    """Step size η."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)
