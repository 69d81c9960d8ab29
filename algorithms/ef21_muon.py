"""EF21-Muon: steps of Muon on a mean estimate, where both messages and replies have the largest changes alone.

    worker k    v ← β v + (1 − β) g_k(x),  c = C(v − h_k),  h_k ← h_k + c,  push c,  wait,  x ← x + s
    server      h ← h + (1/W) Σ c_k,  y ← y − η O(h),  s = C'(y − θ),  θ ← θ + s,  reply s,  then release all workers

C and C' keep the elements of largest magnitude of the whole vector, and set the others to zero. For a matrix [n, m],
O(h) is 0.2 √max(n, m) times a matrix with the same singular vectors, whose singular values are about 1 (five steps of
Newton and Schulz, as in Muon); for other variables it is sign(h). x stays equal to θ, which follows y.

Use: as Muon on several machines whose links are slow; not with workers that are often lost.
Reference: Gruntkowska, Gaponov, Tovmasyan and Richtárik, *Error Feedback for Muon and Friends*, ICLR 2026,
arXiv:2510.00643, known here from its abstract and a summary of its equations; their momentum is 1 − β.
Departures: v and h_k begin at zero. The scale of the steps of matrices is that of Liu et al. 2025, as in the inner
optimizer `muon`, and signs move the other variables; the paper has steps in a ball of a norm that is chosen for each
variable. It also compresses by a lower rank and by powers of two. The result is θ, which lacks what C' has not sent. A
worker that is started again begins with v = h_k = 0, while the share of its old h_k in h stays.
Limits: with shares of one it is Muon on the mean momentum (without Nesterov's part). Without O, and with a share of
replies of one, it is `ef21_sgdm`. The mean of all h_k is h at every event. A step has the same length even if the
gradient is small, so only a falling rate converges. O needs whole matrices, so one ps.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Codec, Coordinates, Decay, Probability, Rate, Scheme, sgd, steepest, top_k


@dataclass(frozen=True, kw_only=True)
class EF21Muon(Scheme):
    """Workers send compressed changes of their momentum, and the server those of its steps of Muon."""

    paper = "Gruntkowska et al. 2026"
    sync = Barrier()
    whole_center = True

    learning_rate: Rate = 0.02
    """Step size η."""
    momentum: Decay = 0.9
    """Momentum β of the worker's estimate of its gradient."""
    share: Probability = 0.1
    """Fraction of all elements that a message has, at least one element."""
    reply_share: Probability = 0.2
    """Fraction of all elements that a reply has, at least one element."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        shares = self.share, self.reply_share
        return tuple(Coordinates(share) if share < 1 else Codec() for share in shares)

    def local_variables(self, params):
        return {"estimate": 0 * params, "known": 0 * params}

    def global_variables(self, center):
        return {"known": 0 * center, "model": center}

    def message(self, worker):
        estimate = worker.estimate.assign(self.momentum * worker.estimate + (1 - self.momentum) * worker.gradient)
        sent = top_k(estimate - worker.known, self.share)
        worker.known.assign_add(sent)
        return sent

    def server_update(self, server, message, staleness):
        known = server.known.assign_add(message)
        sgd(server.model, self._direction(known, server.shapes), self.learning_rate)
        sent = top_k(server.model - server.center, self.reply_share)
        server.center.assign_add(sent)
        return sent

    def on_reply(self, worker, reply):
        worker.params.assign_add(reply)

    def _direction(self, known, shapes):
        return steepest(known, shapes)
