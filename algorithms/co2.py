"""CO2: local steps while the mean of the round before is computed, then a step of the center along that mean move.

    worker k, at the        push Δ_k, its move in the round before (0 in the first), and continue without a wait
    begin of a round
    H steps                 x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over rounds
                            and never leave the worker
    end of the round        Δ_k ← θ − x, with the θ where the round began,  wait for the reply,  x ← θ
    server                  m ← μ m + (1/Λ) (1/W) Σ Δ_k,  m ← min(max(m, −φ), φ) in each coordinate,
                            θ ← θ − ε m,  then release all workers

A message and its reply may take as long as the H steps of a round. The mean move is one round old when the center makes
a step along it. Two numbers are against that: the penalty Λ of the staleness gap makes what enters the momentum
smaller, and the clip φ limits what a coordinate moves in a round to ε φ.

Use: where a message takes up to a whole period of computing, and workers shall have the same parameters at the begin of
each round; `eager_diloco` also takes the worker's own news. Where links are fast, `slowmo` uses moves without a delay.
Reference: Sun, Qin, Sun, Li, Li, Shen, Qiao, Zhong, *CO2: Efficient Distributed Training with Full
Communication-Computation Overlap*, ICLR 2024, arXiv:2401.16265, in the form of the authors' implementation
(`CO2DistributedDataParallel` in fairscale-CO2).
Departures: Λ is a constant, as in that implementation; the paper measures the gap in each outer step. In that
implementation the clipped momentum is not assigned, so its clip has no effect. Messages are moves, in float32 or a
`--codec`, and the paper's are parameters: the means of both differ by θ alone. The center lags behind the workers by a
round: the moves of a run's last round are not in it. ZeRO, with which the paper combines it, is left out.
Limits: with μ = 0, Λ = 1, ε = 1 and a large φ it is `local_sgd` whose mean move comes a round late. A constant Λ is a
matter of units: ε/Λ in place of ε and Λ φ in place of φ do the same without it. Where H steps lead from any θ to the
minimum 0 and μ = 0, θ ← θ − (ε/Λ) θ_old: the center swings for ever with a period of six rounds if ε/Λ = 1, and
converges fastest if ε/Λ = ¼, as θ_t = (1 + t) θ_0/2ᵗ. A worker that is started again without its state begins at the
center, with Δ_k = 0.
Defaults: ε = φ = 1 as in that implementation, μ = 0.2 as in its example. Λ = 2, because with Λ = 1 the center swings.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, FixedPeriod, Fraction, InnerOptimizer, Positive, Rate, Scheme, tf


@dataclass(frozen=True, kw_only=True)
class CO2(Scheme):
    """Many local AdamW steps while the last moves travel, then a step of the center with clipped momentum."""

    paper = "Sun et al. 2024"
    sync = Barrier()

    communication_period: FixedPeriod = 20
    """Local steps H between two outer steps; a message and its reply may take as long."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 1.0
    """Outer step size ε."""
    momentum: Fraction = 0.2
    """Outer momentum μ."""
    gap_penalty: Positive = 2.0
    """Penalty Λ of the staleness gap, which divides the mean move of the round before."""
    momentum_clip: Positive = 1.0
    """Largest magnitude φ of a coordinate of the outer momentum."""

    @property
    def overlap(self):
        return self.communication_period

    def local_variables(self, params):
        return {"outer": params, "moved": 0 * params}

    def global_variables(self, center):
        return {"velocity": 0 * center}

    def message(self, worker):
        return worker.moved

    def server_update(self, server, message, staleness):
        velocity = self.momentum * server.velocity + message / self.gap_penalty
        server.velocity.assign(tf.clip_by_value(velocity, -self.momentum_clip, self.momentum_clip))
        server.center.assign_sub(self.outer_learning_rate * server.velocity)
        return server.center

    def on_reply(self, worker, reply):
        worker.moved.assign(worker.outer - worker.params)
        worker.outer.assign(reply)
        worker.params.assign(reply)
