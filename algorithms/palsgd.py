"""PALSGD: DiLoCo, in which some local steps are pulls towards the last center instead of steps of the optimizer.

    worker, each step       with probability p  x ← x − (η γ / p) (x − θ),
                            else                x ← AdamW(x, g_k(x)) with the rate η / (1 − p), or another inner
                            optimizer; its variables change in these steps alone, and never leave the worker
    every period            push x,  wait,  x ← θ
    server                  Δ = θ − (1/W) Σ x_k,  m ← μ m + Δ,  θ ← θ − ε (Δ + μ m),  then release all workers

So a step is in the mean one of the optimizer and one of a spring of strength γ, both of rate η. Each worker draws for
itself, from the seed, its index and the number of the step.

Use: for periods so long that the workers of `diloco` drift apart; not for short ones, where θ is never far.
Reference: Naganuma, Zhang, Yue, Mitliagkas, Witte, Hewett, Lee, *Pseudo-Asynchronous Local SGD: Robust and Efficient
Data-Parallel Training*, TMLR 2025, arXiv:2504.18454.
Departures: a pull takes a batch and computes its gradient, too, but does not use it; the paper saves that time. The
paper begins with steps of plain data parallelism.
Limits: with p = 0 it is `diloco`. With SGD, an outer rate of one and no momentum, its steps are in the mean those of
`fedprox`. A pull passes the center if η γ > p.
Defaults: p = 0.1 and γ = 0.5, as in the authors' program for ImageNet; all others are those of `diloco`.
"""

from dataclasses import dataclass
from typing import Any, cast

from ..common.contract import Barrier, Fraction, InnerOptimizer, NotNegative, Period, Rate, Scheme, UserError, inner, tf


@dataclass(frozen=True, kw_only=True)
class PALSGD(Scheme):
    """Many local AdamW steps with pulls to the last center between them, then a Nesterov step of the center."""

    paper = "Naganuma et al. 2025"
    sync = Barrier()
    sends = "params"

    communication_period: Period = 20
    """Local steps between two outer steps, pulls included."""
    learning_rate: Rate = 0.002
    """Step size η of the local steps."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    pull_probability: Fraction = 0.1
    """Probability p with which a local step is a pull to the last center; below 1."""
    pull_strength: NotNegative = 0.5
    """Strength γ of the spring to the last center."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer Nesterov momentum μ."""

    def check(self, workers):
        if self.pull_probability >= 1:
            raise UserError(
                "pull_probability must be below 1, so that some steps use a gradient. "
                f"Received: pull_probability={self.pull_probability}"
            )

    def local_variables(self, params):
        return {"pulled": params}

    def global_variables(self, center):
        return {"velocity": 0 * center}

    def local_step(self, worker, gradient):
        optimizer, eta, p = inner(self.inner_optimizer), cast(Any, self.learning_rate), self.pull_probability
        if p == 0:
            return optimizer.step(worker, gradient, eta)
        pulls = worker.uniform(worker.index, worker.step, count=1)[0] < p
        x = worker.params.read_value()
        kept = {name: getattr(worker, name).read_value() for name in optimizer.local_variables(x)}
        optimizer.step(worker, gradient, eta / (1 - p))
        pull = x - eta * self.pull_strength / p * (x - worker.pulled)
        worker.params.assign(tf.where(pulls, pull, worker.params))
        for name, value in kept.items():
            getattr(worker, name).assign(tf.where(pulls, value, getattr(worker, name)))

    def server_update(self, server, message, staleness):
        moved = server.center - message
        server.velocity.assign(self.momentum * server.velocity + moved)
        server.center.assign_sub(self.outer_learning_rate * (moved + self.momentum * server.velocity))
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.pulled.assign(reply)
