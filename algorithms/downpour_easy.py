"""DOWNPOUR-Easy: DOWNPOUR with plain SGD on the server.

    worker, each step       x ← x − η g_k(x),  A ← A + g          A begins at 0
    every period            push A,  x ← reply
    server, each push       θ ← θ − η A,  reply θ                          one atomic event

Use: as the plain baseline of `downpour`; not for many workers or long periods, with which its steps grow.
Reference: Dean et al., *Large Scale Distributed Deep Networks*, NIPS 2012, without its Adagrad.
Departures: those of `downpour` in its default phase.
Limits: with one worker it is serial SGD for any period; with a period of one `async_sgd`. Sums grow with the period,
so W workers with period H move θ by about W·H gradients at a time: it diverges if W·H·η is large.
"""

from dataclasses import dataclass

from ..common.contract import Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class DownpourEasy(Scheme):
    """Sums of gradients over a period, plain SGD on the server."""

    paper = "Dean et al. 2012"
    elementwise = True
    sends = "gradient_sum"

    communication_period: Period = 5
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.05
    """Step size η, on the worker and on the server."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
