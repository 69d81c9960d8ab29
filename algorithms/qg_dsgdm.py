"""QG-DSGDm: gossip with quasi-global momentum, which follows the moves of the mixed parameters, not the gradients.

    worker i, each step     m = β m̂_i + g_i(x_i),  send x_i − η m to the neighbours,  wait for theirs
                            x_i' ← Σ_j W_ij (x_j − η m_j)
                            m̂_i ← μ m̂_i + (1 − μ) (x_i − x_i')/η,  x_i ← x_i'    m̂ begins at zero
    center                  θ ← the mean of all x_i, collected for evaluations and for the result

With Nesterov's form the message is x_i − η (g_i + β m). A momentum of a worker's own gradients leads each worker
towards the minimum of its own shard; here a part of the neighbours' moves is in each m̂_i.

Use: as `d_psgd` with momentum, where the shards of the workers differ; not for one worker, where momentum is simpler.
Reference: Lin, Karimireddy, Stich and Jaggi, *Quasi-Global Momentum: Accelerating Decentralized Deep Learning on
Heterogeneous Data*, ICML 2021, arXiv:2102.04761, Algorithm 1.
Departures: none; the authors' code has Nesterov's form and μ = 0.9 by default.
Limits: with β = 0 it is `sgp` on the same graph. A lasting gradient moves the parameters by η/(1 − β) in a step,
whatever μ is: where gradients have no noise, it comes to rest where `sgp` does, and a momentum of a worker's own
gradients where `sgp` with η/(1 − β) does. With one worker m̂ decays by a = μ + (1 − μ) β in a step. On the same loss
½Lx² of all workers, on each graph here, it is stable for η < 2 (1 + a)/((1 + μ) L), 2.09/L with the defaults, and for
η < 1.10/L with Nesterov's form. Where the smallest eigenvalue of W is near −1, workers move apart without any gradient:
such a run is refused.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Decay, OnGraph, Rate


@dataclass(frozen=True, kw_only=True)
class QGDSGDm(OnGraph):
    """Gossip with a momentum that follows the moves of the mixed parameters."""

    paper = "Lin et al. 2021"
    elementwise = True
    linear_vectors = 2  # parameters, and η times the momentum
    linear_rates = ("momentum", "smoothing", "form")

    learning_rate: Rate = 0.02
    """Step size η of each worker."""
    momentum: Decay = 0.9
    """Momentum β of a step."""
    smoothing: Decay = 0.9
    """Weight μ of the past in the momentum."""
    form: Literal["heavy-ball", "nesterov"] = "heavy-ball"
    """Form of the step: with the momentum of before the gradient, or Nesterov's."""

    def linear_round(self, mix, vectors, curvature):
        params, momentum = vectors
        mixed = mix(params - self._step(momentum, curvature * params))
        return mixed, self.smoothing * momentum + (1 - self.smoothing) * (params - mixed)

    def local_variables(self, params):
        return {"momentum": 0 * params}

    def message(self, worker):
        return worker.params - self.learning_rate * self._step(worker.momentum, worker.gradient)

    def on_reply(self, worker, reply):
        moved = (worker.params - reply) / self.learning_rate
        worker.momentum.assign(self.smoothing * worker.momentum + (1 - self.smoothing) * moved)
        worker.params.assign(reply)

    def _step(self, momentum, gradient):
        step = self.momentum * momentum + gradient
        return gradient + self.momentum * step if self.form == "nesterov" else step
