"""FedAsync: each model that arrives is mixed into the center, the less the later it is.

    worker k    H times  x ← x − η (g_k(x) + ρ (x − a)),  a the center that it pulled last;  push x,  x, a ← reply
    server      α' = α s(τ),  θ ← (1 − α') θ + α' x,  reply θ    τ updates after the pull of that worker
    s(τ)        constant: 1    polynomial: (τ + 1)^−e    hinge: 1 for τ ≤ b, else 1/(c (τ − b) + 1)

The server moves towards the model itself, and not by the worker's move, as `fedbuff` and `async_diloco` do.

Use: for clients of many speeds that send models, where no update may throw the center far: on a quadratic it is stable
for every delay if the local steps are; not for many workers of one speed, where each update undoes others' in part.
Reference: Xie, Koyejo and Gupta, *Asynchronous Federated Optimization*, OPT 2020, arXiv:1903.03934, Algorithm 1.
Departures: all clients are workers, and each begins its next round at once; in the paper the server calls them.
Limits: with one worker, α = 1 and ρ = 0 it is serial SGD. Where the hinge's b is at least W − 1 and the workers take
turns, it is the constant weight. Clients that are seldom heard count less, and weights by lateness make that more so:
on unequal data the center rests nearer to the minima of the fast ones.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Count, Fraction, NotNegative, Period, Rate, Scheme, sgd, tf


@dataclass(frozen=True, kw_only=True)
class FedAsync(Scheme):
    """Models of workers, mixed into the center the less the later they are."""

    paper = "Xie et al. 2020"
    elementwise = True
    sends = "params"

    communication_period: Period = 10
    """Local steps H of a round."""
    learning_rate: Rate = 0.2
    """Local step size η."""
    mixing: Fraction = 0.6
    """Share α of a message in the center, if it is not late."""
    weight: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """How the share falls with the lateness of a message."""
    exponent: NotNegative = 0.5
    """Exponent e of the polynomial weight."""
    patience: Count = 4
    """Lateness b up to which the hinge does not fall, in updates."""
    slope: NotNegative = 10.0
    """Slope c of the hinge."""
    proximity: NotNegative = 0.005
    """Strength ρ of the spring to the center that the worker pulled last."""

    def local_variables(self, params):
        return {"pulled": params}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient + self.proximity * (worker.params - worker.pulled), self.learning_rate)

    def server_update(self, server, message, staleness):
        share = self.mixing * self._weight(staleness)
        server.center.assign((1 - share) * server.center + share * message)
        return server.center

    def on_reply(self, worker, reply):
        worker.pulled.assign(reply)
        worker.params.assign(reply)

    def _weight(self, staleness):
        if self.weight == "polynomial":
            return (staleness + 1.0) ** -self.exponent
        late = tf.maximum(staleness - self.patience, 0.0)
        return 1 / (self.slope * late + 1) if self.weight == "hinge" else 1.0
