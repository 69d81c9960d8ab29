"""Asynchronous DiLoCo with delayed Nesterov: no worker waits, and momentum is applied once for every W messages.

    worker, each step       x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over
                            periods and never leave the worker
    τ steps before the      push x, and continue without a wait
    end of a period
    every period            x ← reply, and with τ > 0 the move of these steps: x ← reply + (x − x as pushed)
    server, n-th push       g = a_k − x,  D ← D + g                              one atomic event
        W divides n         m ← β m + D/W,  θ ← θ − ε ((1 − cW + c) β m + g/W),  D ← 0
        otherwise           θ ← θ − ε (c β m + g/W)
                            reply θ,  a_k ← θ

where a_k is the center that worker k pulled last. Nesterov momentum for each of W stale messages would
overshoot W times, so momentum is applied once for every W messages.

Use: for large models over slow links, with workers of different speed; not for short runs.
Reference: Liu, Chhaparia, Douillard, Kale, Rusu, Shen, Szlam, Ranzato, *Asynchronous Local-SGD Training for Language
Modeling*, 2024, arXiv:2401.09135, delayed Nesterov: the share c of the momentum, in [0, 1/N], and g/N are the paper's.
Departures: the paper's buffer size N is fixed to W. A worker keeps its AdamW moments from one period to the next (the
authors' published toy code makes a new AdamW for each). All periods have the same length (the paper's DyLU gives slow
workers fewer steps). The server has no grace period. Each worker has its own shard (the paper samples shards by their
progress). The delay τ is not in the paper: the next message has the move of the steps during a message, so each step
reaches the center once.
Limits: with one worker and τ = 0 it is `diloco` with one worker. β = 0 applies 1/W of each message. c = 1/W gives each
message the same share of the momentum.
"""

from dataclasses import dataclass

from ..common.contract import Delay, Fraction, Period, PulledCenter, Rate, Scheme, UserError, delayed_step
from ..common.contract.inner import InnerOptimizer


@dataclass(frozen=True, kw_only=True)
class AsyncDiLoCo(Scheme):
    """Many local AdamW steps, then a delayed Nesterov step of the center; no worker waits."""

    paper = "Liu et al. 2024"
    sends = "params"

    communication_period: Period = 20
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.005
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer momentum β."""
    delay: Delay = 0
    """Local steps τ between a message and the use of its reply; at most the period."""
    momentum_share: Fraction = 0.0
    """Share c of the momentum for each message, at most 1/W; the W-th message has the rest."""

    def check(self, workers):
        if self.momentum_share * workers > 1:
            raise UserError(f"momentum_share must be at most 1/{workers}. Received: {self.momentum_share}")

    def local_variables(self, params):
        return {"sent": params} if self.delay else {}

    def global_variables(self, center):
        own = {"velocity": 0 * center, "buffer": 0 * center, "count": 0 * center[0]}
        return {"pulled_center": PulledCenter(), **own}

    def message(self, worker):
        if self.delay:
            worker.sent.assign(worker.params)
        return worker.params

    def server_update(self, server, message, staleness):
        delayed_step(
            (server.center, server.velocity, server.buffer, server.count),
            server.pulled_center - message,
            rate=self.outer_learning_rate,
            momentum=self.momentum,
            size=server.num_workers,
            share=self.momentum_share,
        )
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply + (worker.params - worker.sent) if self.delay else reply)
