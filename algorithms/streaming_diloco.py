"""Streaming DiLoCo: DiLoCo whose workers continue to compute while the parameters travel.

    worker, each step       x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over
                            periods and never leave the worker
    τ steps before the      push x, and continue without a wait
    end of a period
    every period            wait for the reply θ,  x ← α x + (1 − α) θ
    server                  Δ = θ − (1/W) Σ x_k,  m ← μ m + Δ,  θ ← θ − ε (Δ + μ m),  then release all workers

So the τ local steps after a message hide the time that it and the reply travel, and the mixing α keeps a part of them.

Use: where `diloco` waits for slow links; not where links are fast, for the τ steps after a message count little.
Reference: Douillard et al., *Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch*, 2025,
arXiv:2501.18512.
Departures: the model is one fragment. The period ends with the reply, so the first message leaves after H − τ steps
instead of H; after the last period, the center has nothing of the last τ steps. Messages are parameters in float32; the
paper sends the moves in 4 bits.
Limits: with τ = 0 and α = 0 it is `diloco`. With α = 0 the τ steps change only the moments of the inner optimizer; with
α = 1 workers never hear of each other. With τ = H each message holds the parameters of one period before (as in CO2,
arXiv:2401.16265), and the first one the initial parameters.
Defaults: α = 0.5 as in the paper; its τ is 1 and up to 5, of a period of 100.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Count, Fraction, InnerOptimizer, Period, Rate, Scheme, inner


@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(Scheme):
    """Many local AdamW steps, some of them while the parameters travel, and a Nesterov step of the center."""

    paper = "Douillard et al. 2025"
    sync = Barrier()
    sends_params = True

    communication_period: Period = 20
    """Local steps H between two outer steps."""
    delay: Count = 1
    """Local steps τ between a message and the use of its reply; at most the period."""
    mixing: Fraction = 0.5
    """Share α of its own parameters that a worker keeps when it uses a reply."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.7
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer Nesterov momentum μ."""

    def local_variables(self, params):
        return inner(self.inner_optimizer).local_variables(params)

    def global_variables(self, center):
        return {"velocity": 0 * center}

    def local_step(self, worker, gradient):
        inner(self.inner_optimizer).step(worker, gradient, self.learning_rate)

    def message(self, worker):
        return worker.params

    def server_update(self, server, message, staleness):
        moved = server.center - message
        server.velocity.assign(self.momentum * server.velocity + moved)
        server.center.assign_sub(self.outer_learning_rate * (moved + self.momentum * server.velocity))
        return server.center

    def on_reply(self, worker, reply):
        if self.mixing:
            reply = self.mixing * worker.params + (1 - self.mixing) * reply
        worker.params.assign(reply)
