"""DeMo: workers keep the momentum that they do not send, and send its largest cosine coefficients.

    worker k    m ← β m + g_k(θ),  q = C(D m),  m ← m − α Dᵀ q,  push q,  wait,  x ← θ
    server      M = Dᵀ mean q_k;  θ ← θ − η φ(M),  then release all workers

where D is the discrete cosine transform of each chunk, and C keeps the largest coefficients of each. A message has an
index and a value for each of them; the reply is the whole center. The step φ is sign(M), M itself (`plain`), or `muon`:
0.2 √max(n, m) times a matrix of the same singular vectors, and signs for variables that are no matrices [n, m]; its
singular values are near 1: five steps of Newton and Schulz, as in Muon, bring all but tiny ones between 0.7 and 1.2.
The mean of a coefficient is over all workers, or over those that have sent it (`senders`), so that one of W alone
counts whole.

Use: for large models with momentum and few bytes; not for small models, for which `ef_sgd` is simpler.
Reference: Peng, Chen, Su, Quesnelle, Kingma, Liu, *DeMo: Decoupled Momentum Optimization*, ICLR 2026, arXiv:2411.19870,
known here from a summary: α and the three φ are of that version. The preprint of 2024 has α = 1 and signs.
Departures: a chunk is a part of the flat vector, and each ps task's slice begins a new one; the paper has squares of a
matrix. So a chunk may reach from a variable into the next, and moves elements of one without a gradient (a run names
it). In the paper workers gather the messages of all, and each makes the step itself; here the ps does, so replies are
not compressed. The preprint's code has η g in m, which matters under a schedule alone; here, as in the paper, it is g.
The code takes the mean over the senders; what the paper's equations take is not known here. No weight decay.
Limits: the momentum is the error memory of `--codec dct` with a decay. If all coefficients of a chunk are sent, m has
(1 − α) D m left after each message: with α = 1 it is zero, and the step has the sign of the mean gradient; else that of
the mean of a momentum with the decay (1 − α) β. So a coefficient that is always sent has no momentum with α = 1. With
`plain` and β = 1 a gradient moves θ by 1/α times its size in all: scale η. With signs every element moves by η in each
step, however small its gradient is, so only a falling rate converges. `muon` needs the whole vectors, so one ps.
Defaults: the authors' β = 0.999 and chunks of 64; they send 32 of the 4096 coefficients of a square. α = 1 is the
preprint's; the paper tunes it over 0.2, 0.5 and 1, and 1 is not its best.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import (
    DCT,
    Barrier,
    Fraction,
    Natural,
    OfCoefficients,
    Positive,
    Rate,
    Scheme,
    UserError,
    count_senders,
    mean_over_senders,
    sgd,
    steepest,
    tf,
)


@dataclass(frozen=True, kw_only=True)
class DeMo(Scheme):
    """The largest cosine coefficients of each worker's momentum now, the rest later; steps of signs."""

    paper = "Peng et al. 2026"
    sync = Barrier()

    learning_rate: Rate = 0.003
    """Step size η of each weight."""
    decay: Fraction = 0.999
    """Decay β of the momentum."""
    subtraction: Positive = 1.0
    """Fraction α of what is sent that leaves the momentum, from 0 to 1."""
    chunk: Natural = 64
    """Elements of a chunk."""
    kept: Natural = 4
    """Coefficients of each chunk that a message has."""
    step: Literal["sign", "plain", "muon"] = "sign"
    """Step along the mean momentum: its signs, itself, or orthogonalized for each matrix."""
    mean_over: Literal["all", "senders"] = "all"
    """Workers over which the mean of a coefficient is taken: all, or those that have sent it."""

    def check(self, workers):
        if self.subtraction > 1:
            raise UserError(f"subtraction must be at most 1. Received: subtraction={self.subtraction}")

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return OfCoefficients(DCT(block=self.chunk, kept=self.kept), self.decay, self.subtraction)

    @property
    def whole_center(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.step == "muon"

    def global_variables(self, center):
        return {"senders": 0 * center, "messages": 0 * center[0]} if self.mean_over == "senders" else {}

    def weighted(self, server, message, staleness):
        if self.mean_over == "senders":
            count_senders(server, message)
        return message

    def server_update(self, server, message, staleness):
        mean = mean_over_senders(server, message) if self.mean_over == "senders" else message
        momentum = DCT(block=self.chunk, kept=self.kept).inverse(mean)
        sgd(server.center, self._direction(momentum, server.shapes), self.learning_rate)
        return server.center

    def _direction(self, momentum, shapes):
        """Return φ of the mean momentum [n]."""
        if self.step == "muon":
            return steepest(momentum, shapes)
        return tf.sign(momentum) if self.step == "sign" else momentum
