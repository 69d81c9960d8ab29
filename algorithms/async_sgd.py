"""Asynchronous SGD: the plain parameter server.

    worker      g = g_k(x),  push g,  x ← reply
    server      θ ← θ − η g,  reply θ                            one atomic event

Use: for workers of different speed with fast links; not for many workers at a large rate, as the rate has to fall as
1/W.
Reference: the asynchronous mode of Dean et al., *Large Scale Distributed Deep Networks*, NIPS 2012, with a
period of one; also called locked Hogwild.
Departures: none.
Limits: with one worker it is serial SGD. With W workers in turn every gradient is W − 1 updates old, and on ½hx² the
iteration is stable only for ηh < 2 sin(π/(4W − 2)).
"""

from dataclasses import dataclass

from ..common.contract import Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class AsyncSGD(Scheme):
    """Every gradient is applied when it arrives, under a lock."""

    paper = "Dean et al. 2012"
    aliases = ("asgd",)
    sparse = True

    learning_rate: Rate = 0.1
    """Step size η."""

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
