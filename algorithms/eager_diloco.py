"""Eager DiLoCo: DiLoCo whose messages travel during a whole period, with the worker's own news at once.

    worker k, at the        push Δ_k, its move in the round before (0 in the first), and continue without a wait
    begin of a round
    H steps                 x ← AdamW(x, g_k(x)), or another inner optimizer; its moments are kept over rounds
                            and never leave the worker
    end of the round        Δ' = θ_k − x,  wait for the reply Δ̄,  D = Δ̄ + (Δ' − Δ_k)/W,  Δ_k ← Δ',
                            m_k ← μ m_k + D,  θ_k ← θ_k − ε (D + μ m_k),  x ← θ_k
    server                  Δ̄ = (1/W) Σ Δ_k,  D = Δ̄_old + (Δ̄ − Δ̄_old)/W,  Δ̄_old ← Δ̄,
                            m ← μ m + D,  θ ← θ − ε (D + μ m),  reply Δ̄,  then release all workers

The mean move Δ̄ is one round old when a worker has it. The worker replaces its own share of it by its new move: D has
the news of one worker, and the moves of the others from the round before. So each worker has an outer point θ_k of its
own. Their rules are linear with the same momentum, so the center θ, which the server computes from the mean moves
alone, is the mean of all θ_k.

Use: where a message takes up to a whole period of computing; where links are fast, `diloco` uses news of all.
Reference: Kale, Douillard, Donchev, *Eager Updates For Overlapped Communication and Computation in DiLoCo*, 2025,
arXiv:2502.12996.
Departures: messages are moves in float32, or in a `--codec`. The center lags behind the workers by a round: the moves
of a run's last round are not in it.
Limits: with one worker it is `diloco`, a round later. Without the news of its own, D = Δ̄, it would be the paper's
*delayed* outer gradients, which it reports to be worse. The share of own news is 1/W: with many workers it is close to
those. A worker that is started again without its state begins at the center, with Δ_k = 0.
Defaults: those of `diloco`, but for the paper's ε = 0.4: the moves of other workers come a round late, and with ε = 0.7
the momentum of 0.9 makes the center swing.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, FixedPeriod, Fraction, InnerOptimizer, Rate, Scheme


@dataclass(frozen=True, kw_only=True)
class EagerDiLoCo(Scheme):
    """Many local AdamW steps while the last moves travel, then a Nesterov step with the worker's own news at once."""

    paper = "Kale et al. 2025"
    sync = Barrier()

    communication_period: FixedPeriod = 20
    """Local steps H between two outer steps; a message and its reply may take as long."""
    learning_rate: Rate = 0.002
    """Inner step size."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    outer_learning_rate: Rate = 0.4
    """Outer step size ε."""
    momentum: Fraction = 0.9
    """Outer Nesterov momentum μ."""

    @property
    def overlap(self):
        return self.communication_period

    def local_variables(self, params):
        return {"outer": params, "velocity": 0 * params, "moved": 0 * params}

    def global_variables(self, center):
        return {"velocity": 0 * center, "moved": 0 * center}

    def message(self, worker):
        return worker.moved

    def server_update(self, server, message, staleness):
        self._outer_step(server.center, server, message - server.moved, server.moved, server.num_workers)
        server.moved.assign(message)
        return message

    def on_reply(self, worker, reply):
        moved = worker.outer - worker.params
        self._outer_step(worker.outer, worker, moved - worker.moved, reply, worker.num_workers)
        worker.moved.assign(moved)
        worker.params.assign(worker.outer)

    def _outer_step(self, params, own, news, before, workers):
        """Make a Nesterov step along D = before + news/W."""
        direction = before + news / workers
        velocity = own.velocity.assign(self.momentum * own.velocity + direction)
        params.assign_sub(self.outer_learning_rate * (direction + self.momentum * velocity))
