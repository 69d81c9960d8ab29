"""DC-ASGD: asynchronous SGD with delay compensation. A stale gradient is corrected to first order.

    worker      g = g_k(x),  push g,  x ← reply
    server      θ ← θ − η (g + λ g ⊙ g ⊙ (θ − a_k)),  reply θ,  a_k ← θ        one atomic event, elementwise

where a_k is the center that worker k pulled last. To first order the gradient at θ is g + H (θ − a_k);
λ g ⊙ g approximates the diagonal of the Hessian H. This is DC-ASGD-c, whose λ is constant. DC-ASGD-a adapts λ:

    server      q ← m q + (1 − m) g ⊙ g,  λ = λ₀ / √(q + 10⁻⁷),  then as above        elementwise

Use: for asynchronous workers with delays of some tens of updates; not if a copy of the model for each worker is too
much for the ps.
Reference: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, *Asynchronous Stochastic Gradient Descent with Delay Compensation*,
ICML 2017, arXiv:1609.08326.
Departures: none. (Microsoft's published updaters, multiverso, depart from the paper: one has |g| in place of g ⊙ g, so
that its λ is on another scale, and the adaptive one has a q for each worker.)
Choice of λ: it has a unit and must be tuned. The Hessian is a loss per parameter², g ⊙ g a loss² per parameter², so the
unit of λ is one over a loss, and that of λ₀ in the adaptive form one over a parameter. The paper's values are λ = 0.04,
and λ₀ = 2 with m = 0.95; with small gradients, as in the project's benchmarks, 0.04 has almost no effect.
Limits: with λ = 0 it is `async_sgd`, and so it is with one worker, for which a_k = θ. The correction is quadratic in g:
with large gradients it explodes (in the adaptive form too if m is near one, since q is then that of the past). The ps
holds W more centers, and q.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Fraction, NotNegative, PulledCenter, Rate, Scheme, tf


@dataclass(frozen=True, kw_only=True)
class DCASGD(Scheme):
    """A late gradient is corrected by how far the center has moved meanwhile."""

    paper = "Zheng et al. 2017"

    learning_rate: Rate = 0.1
    """Step size η."""
    compensation: NotNegative = 0.04
    """Strength λ of the correction; λ₀ of the adaptive form."""
    form: Literal["constant", "adaptive"] = "constant"
    """Form of λ: constant (DC-ASGD-c), or adapted to the size of the gradients (DC-ASGD-a)."""
    decay: Fraction = 0.95
    """Decay m of the mean square in the adaptive form."""

    def global_variables(self, center):
        square = {"mean_square": 0 * center} if self.form == "adaptive" else {}
        return {"pulled_center": PulledCenter(), **square}

    def server_update(self, server, message, staleness):
        square, strength = message * message, self.compensation
        if self.form == "adaptive":
            mean_square = self.decay * server.mean_square + (1 - self.decay) * square
            server.mean_square.assign(mean_square)
            strength = self.compensation / tf.sqrt(mean_square + 1e-7)
        moved = server.center - server.pulled_center
        server.center.assign_sub(self.learning_rate * (message + strength * square * moved))
        return server.center
