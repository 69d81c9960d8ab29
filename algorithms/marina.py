"""MARINA: random parts of gradient differences, and now and then, by a coin, the whole gradients of all workers.

    a round             has one coin for all workers: heads with the probability p, and in the first round
    worker k, heads     push g_k(x),  wait,  x' ← x,  x ← θ
    worker k, tails     push q_k = Q(g_k(x) − g_k(x')),  wait,  x' ← x,  x ← θ
    server, heads       G ← (1/W) Σ g_k,  θ ← θ − η G,  then release all workers
    server, tails       G ← G + (1/W) Σ q_k,  θ ← θ − η G,  then release all workers

Q keeps k elements of P, drawn anew for each message, multiplies them by P/k, and sets the others to zero: its variance
is ω ‖p‖² with ω = P/k − 1. g_k(x') is the gradient that the worker took in the round before. In the mean G is not the
gradient, but its error is small where steps are short, and vanishes at rest: differences are then zero.

Use: with batches that are a worker's whole data, where messages must be small; with smaller ones, `diana`.
Reference: Gorbunov, Burlachenko, Li, Richtárik, *MARINA: Faster Non-Convex Distributed Learning with Compression*,
ICML 2021, arXiv:2102.07845; known here from its abstract and from implementations by third parties.
Departures: this is the rule for full gradients, and exactly so if a batch is all of a worker's data (`--batch-size`).
With smaller batches the two gradients of a difference are of two batches, and their noise adds up in G until the next
heads: with a share of 0.1 and batches of 32, two workers did not learn the digits at rates of 0.05 and 0.1. VR-MARINA,
which takes both of one batch, needs a second gradient of it, which no round has. Coins are drawn from the run's seed,
and repeat after 65 536 rounds. A worker that is started again takes g_k(x') for zero: G is wrong until the next heads,
as after the loss of a worker.
Limits: with p = 1, and with a share of one, it is `sync_sgd`. Bytes are those of the coins that were drawn. The paper
has η = 1/(L (1 + √((1 − p) ω/(p W)))) for a smoothness L, and p = k/P, the default here: both kinds of rounds then
send about as much.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..common.contract import Barrier, Codec, Coordinates, Kind, Probability, Rate, Rounds, Scheme, random_k, sgd, tf
from ..common.contract.rounds import COINS, coins_of


@dataclass(frozen=True, kw_only=True)
class MARINA(Scheme):
    """Workers send random elements of gradient differences, and by a common coin whole gradients."""

    paper = "Gorbunov et al. 2021"
    sync = Barrier()
    kinds: ClassVar = {"floats": Kind(codec=Codec()), "differences": Kind()}
    scalars = ("floats",)

    learning_rate: Rate = 0.1
    """Step size η."""
    share: Probability = 0.25
    """Fraction of all elements that a message of a difference has, at least one element."""
    probability: Probability | None = None
    """Probability p of a round of whole gradients; by default the share."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Coordinates(self.share), Codec()

    def rounds(self, steps, done=0, worker=0, seed=0):
        first = min(steps, 0 if done else 1)
        coins = coins_of(seed, self.share if self.probability is None else self.probability)

        def cycle(length, _):
            drawn = (coins[(done + first + number) % COINS] for number in range(length))
            return [(1, "floats" if coin else "differences") for coin in drawn]

        return Rounds.even(first, 1, "floats") + Rounds.repeating(cycle, steps - first, COINS)

    def local_variables(self, params):
        return {"before": 0 * params}

    def global_variables(self, center):
        return {"estimate": 0 * center}

    def message(self, worker):
        sent, floats = worker.gradient, worker.kind == "floats"
        if not floats:
            sent = random_k(sent - worker.before, worker.uniform(worker.index, worker.round), self.share)
        worker.before.assign(worker.gradient)
        return sent, {"floats": float(floats)}

    def server_update(self, server, message, staleness):
        estimate = tf.where(server.sent.floats > 0.5, message, server.estimate + message)
        sgd(server.center, server.estimate.assign(estimate), self.learning_rate)
        return server.center
