"""DIANA: each worker sends a random part of the difference between its gradient and what it has sent before.

    worker k    q = Q(g_k(x) − h_k),  h_k ← h_k + α q,  push q,  wait,  x ← θ    h_k = 0 at first
    server      θ ← θ − η (h + (1/W) Σ q_k),  h ← h + α (1/W) Σ q_k,  then release all workers

Q keeps k elements of P, drawn anew for each message, multiplies them by P/k, and sets the others to zero: in the mean
it changes nothing, and its variance is ω ‖p‖² with ω = P/k − 1. h is the mean of all h_k at every event, and each h_k
goes to the gradient of the worker's own loss at the minimum: there the differences vanish, and with them the noise that
Q adds.

Use: where messages must be small and data are unequal; not with workers that are often lost.
Reference: Mishchenko, Gorbunov, Takáč, Richtárik, *Distributed Learning with Compressed Gradient Differences*, 2019,
arXiv:1901.09269, without its momentum and proximal step; known here from a coauthor's code and restatements.
Departures: the paper's Q is a ternary quantization of blocks; random elements are another unbiased compressor, with the
usual α = 1/(1 + ω). The reply is the whole center. A worker that is started again begins with h_k = 0, while the share
of its old h_k in h stays: from then on the center comes to rest where the mean gradient is the negative of that share.
The loss of a worker leaves such a remainder, too.
Limits: with a share of one it is `sync_sgd`, for any α. With α = 0 gradients are compressed without memory: the center
then moves around the minimum for ever, the further the more the gradients of the workers differ. The rate must be
smaller than that of `sync_sgd`, by about 1 + ω/W: with few workers a larger share is better.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Coordinates, Fraction, Probability, Rate, Scheme, random_k, sgd


@dataclass(frozen=True, kw_only=True)
class DIANA(Scheme):
    """Workers send random elements of the change of their gradients, and the server adds up the changes."""

    paper = "Mishchenko et al. 2019"
    sync = Barrier()

    learning_rate: Rate = 0.1
    """Step size η."""
    share: Probability = 0.1
    """Fraction of all elements that a message has, at least one element."""
    memory_rate: Fraction | None = None
    """Rate α at which worker and server learn the worker's gradient; by default the share, 1/(1 + ω)."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Coordinates(self.share)

    def local_variables(self, params):
        return {"known": 0 * params}

    def global_variables(self, center):
        return {"known": 0 * center}

    def message(self, worker):
        sent = random_k(worker.gradient - worker.known, worker.uniform(worker.index, worker.round), self.share)
        worker.known.assign_add(self._rate * sent)
        return sent

    def server_update(self, server, message, staleness):
        sgd(server.center, server.known + message, self.learning_rate)
        server.known.assign_add(self._rate * message)
        return server.center

    @property
    def _rate(self):
        return self.share if self.memory_rate is None else self.memory_rate
