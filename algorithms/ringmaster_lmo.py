"""Ringmaster LMO: asynchronous steps of Muon along the momentum of all gradients that are not too stale.

    worker k    g = g_k(x),  push g,  x ← reply
    server      if τ < R:  m ← β m + (1 − β) g,  θ ← θ − η φ(m);  reply θ                            one atomic event

where the staleness τ is the number of updates since worker k's last pull; a dropped gradient is no update. φ is a
linear minimization oracle, the steepest direction in a norm: with `muon` 0.2 √max(n, m) O(m) for a matrix [n, m], where
O makes all singular values about 1 (five steps of Newton and Schulz), and sign(m) for other variables; with `sign`
sign(m) for all.

Use: as `ringmaster`, where Muon is the optimizer of choice; not with batches so small that their noise is all of m.
Reference: Sadiev, Maranjyan, Ilin, Richtárik, *Ringmaster LMO: Asynchronous Linear Minimization Oracle Momentum
Method*, 2026, arXiv:2605.18174; known here from its abstract and a third party's notes of its equations. Their momentum
parameter is α = 1 − β.
Departures: m begins at zero. R, β and η are constant; the paper has also a variant in which they change. The scale of
the steps of matrices is that of Liu et al. 2025, as in the inner optimizer `muon`. `cancel_late` stops a computation as
in `ringmaster`.
Limits: without O and signs and with β = 0 it is `ringmaster`. With one worker it is Muon (without Nesterov's part), and
with signs `signsgd_mv`. A step has the same length even if the gradient is small, so only a falling rate converges. O
needs whole matrices, so one ps.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Decay, Rate, sgd, steepest, tf
from .ringmaster import Ringmaster


@dataclass(frozen=True, kw_only=True)
class RingmasterLMO(Ringmaster):
    """Steps of Muon along the momentum of all gradients that are not too late; no worker waits."""

    paper = "Sadiev et al. 2026"
    equals = ""
    whole_center = True

    learning_rate: Rate = 0.01
    """Step size η."""
    momentum: Decay = 0.9
    """Momentum β of the gradients that are applied."""
    step: Literal["muon", "sign"] = "muon"
    """Direction of a step: orthogonal matrices and signs of other variables, or signs alone."""

    def global_variables(self, center):
        return {"velocity": 0 * center}

    def server_update(self, server, message, staleness):
        velocity = server.velocity.assign(self.momentum * server.velocity + (1 - self.momentum) * message)
        sgd(server.center, self._direction(velocity, server.shapes), self.learning_rate)
        return server.center

    def _direction(self, velocity, shapes):
        return steepest(velocity, shapes) if self.step == "muon" else tf.sign(velocity)
