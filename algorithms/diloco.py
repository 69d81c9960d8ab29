"""DiLoCo: many local AdamW steps, then one Nesterov step of the center along the workers' mean move.

    worker, each step       x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over
                            periods and never leave the worker
    every period            push x,  wait,  x ← θ
    server                  Δ = θ − (1/W) Σ x_k,  m ← μ m + Δ,  θ ← θ − ε (Δ + μ m),  then release all workers

Use: for large models over slow links, equal workers; not for short runs or small periods.
Reference: Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023,
arXiv:2311.08105.
Departures: the inner rate is constant unless it is given a schedule; the period is short by default (the paper: 500).
Limits: with the inner optimizer SGD, an outer rate of one and no momentum it is `local_sgd`. With the inner optimizer
SGD it is block-wise model update filtering with Nesterov momentum (Chen and Huo 2016), `bmuf`, with ζ = ε and the block
momentum μ; the center here is the start of a block in `bmuf`, not its global model. With one worker it is Lookahead if
μ = 0, else SNOO (arXiv:2510.15830). With the inner optimizer Muon it is MuLoCo (Thérien et al. 2025, arXiv:2505.23725),
which has ε = 0.7, μ = 0.6 and a period of 30 for one worker; the scale of Muon's steps differs between versions.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Fraction, InnerOptimizer, Period, Rate, Scheme


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Scheme):
    """Many local AdamW steps, then a Nesterov step of the center."""

    paper = "Douillard et al. 2023"
    aliases = (
        "lookahead --workers 1 --momentum 0 --outer-learning-rate 0.5",
        "snoo --workers 1",
        "muloco --inner-optimizer muon --learning-rate 0.02 --communication-period 30 --momentum 0.6",
    )
    sync = Barrier()
    sends = "params"

    communication_period: Period = 20
    """Local steps between two outer steps."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer Nesterov momentum μ."""

    def global_variables(self, center):
        return {"velocity": 0 * center}

    def server_update(self, server, message, staleness):
        moved = server.center - message
        server.velocity.assign(self.momentum * server.velocity + moved)
        server.center.assign_sub(self.outer_learning_rate * (moved + self.momentum * server.velocity))
        return server.center
