"""LOSCAR-SGD: local steps, some of them while a random part of the parameters travels to be averaged.

    worker, each step       x ← x − η g_k(x), or a step of another inner optimizer, which never leaves the worker
    τ steps before the      y ← x,  q_j = y_j − v_j for j ∈ S,  push q,  and continue without a wait
    end of a period
    every period            wait,  v ← v + s,  x_j ← v_j + (x_j − y_j) for j ∈ S
    server                  s = (1/W) Σ q_k,  θ ← θ + s,  reply s,  then release all workers

where S has each element with the probability p, drawn from the seed and the number of the round, so that it is the same
on all workers, and v is the worker's copy of θ. An element in S becomes the mean of what the workers had sent, and
keeps the worker's own steps since then. The mean of all workers' parameters is that of before.

Use: as `sparta`, where a message takes as long as several steps.
Reference: Maziane, Mahran, Maranjyan, Richtárik, *LOSCAR-SGD: Local SGD with Communication-Computation Overlap and
Delay-Corrected Sparse Model Averaging*, 2026, arXiv:2605.20866; known here from its abstract and a third party's notes
of its equations.
Departures: S has K elements in the paper, and pK in the mean here, as in `sparta`. All workers make as many steps; in
the paper a fast one makes more. Elements are sent with their indices, although all workers know S. The result is θ,
which lacks the steps after the last messages, and whose elements are 1/p rounds old in the mean.
Limits: without a delay it is `sparta`, and with a share of one then `local_sgd`, both with the same inner optimizer.
With a share of one and a delay of the whole period it is `cocod_sgd`. Averaging keeps the mean of the workers'
parameters. An element stays apart for n rounds with the probability (1 − p)^n.
"""

from dataclasses import dataclass

from ..common.contract import Delay, FixedPeriod, InnerOptimizer, Rate, tf
from .sparta import Sparta


@dataclass(frozen=True, kw_only=True)
class LoSCAR(Sparta):
    """Local steps, some of them while a random part of the parameters travels, which the worker then corrects."""

    paper = "Maziane et al. 2026"
    equals = "sparta --inner-optimizer sgd, if --delay 0"

    communication_period: FixedPeriod = 2
    """Local steps between two averages."""
    learning_rate: Rate = 0.2
    """Step size η of the local steps."""
    inner_optimizer: InnerOptimizer = "sgd"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    delay: Delay = 1
    """Local steps τ between a message and the use of its reply; at most the period."""

    def local_variables(self, params):
        return super().local_variables(params) | {"sent": params}

    def message(self, worker):
        worker.sent.assign(worker.params)
        return super().message(worker)

    def on_reply(self, worker, reply):
        copy = worker.copy.assign_add(reply)
        later = worker.params - worker.sent
        worker.params.assign(tf.where(self._drawn(worker), copy + later, worker.params))
