"""DC-ASGD: asynchronous SGD with delay compensation. A late gradient is corrected to first order.

    worker      g = g_k(x),  push g,  x ← reply
    server      θ ← θ − η (g + λ g ⊙ g ⊙ (θ − a_k)),  reply θ,  a_k ← θ        one atomic event, elementwise

where the anchor a_k is the center that worker k pulled last. To first order the gradient at θ is g + H (θ − a_k);
λ g ⊙ g stands for the diagonal of the Hessian H. That is DC-ASGD-c, whose λ is constant. DC-ASGD-a adapts it:

    server      q ← m q + (1 − m) g ⊙ g,  λ = λ₀ / √(q + 10⁻⁷),  then as above        elementwise

Reference: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, *Asynchronous Stochastic Gradient Descent with Delay Compensation*,
ICML 2017, arXiv:1609.08326.
Departures: none. (Microsoft's published updaters, multiverso, depart from the paper: one has |g| in place of g ⊙ g, so
that its λ is on another scale, and the adaptive one a q for each worker.)
Choice of λ: it has a unit and must be tuned. The Hessian is a loss per parameter², g ⊙ g a loss² per parameter², so λ
is one over a loss; the λ₀ of the adaptive form is one over a parameter. The paper's values are λ = 0.04, and λ₀ = 2
with m = 0.95; where gradients are small, as in the project's benchmarks, 0.04 does next to nothing.
Limits: λ = 0 is `async_sgd`, and so is one worker, since θ is its anchor. The correction is quadratic in g: where
gradients are large, it explodes (in the adaptive form with m near one, too: q is that of the past). The ps holds W more
centers, and q.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Fraction, NotNegative, Rate, Scheme, tf


@dataclass(frozen=True, kw_only=True)
class DCASGD(Scheme):
    """A late gradient is corrected by how far the center has moved meanwhile."""

    paper = "Zheng et al. 2017"
    keeps_anchors = True

    learning_rate: Rate = 0.1
    """Step size η."""
    compensation: NotNegative = 0.04
    """Strength λ of the correction; λ₀ of the adaptive form."""
    form: Literal["constant", "adaptive"] = "constant"
    """Whether λ is constant (DC-ASGD-c) or follows the size of the gradients (DC-ASGD-a)."""
    decay: Fraction = 0.95
    """m, of the mean square in the adaptive form."""

    def global_variables(self, center):
        return {"mean_square": 0 * center} if self.form == "adaptive" else {}

    def server_update(self, server, message, staleness):
        square, strength = message * message, self.compensation
        if self.form == "adaptive":
            mean_square = self.decay * server.mean_square + (1 - self.decay) * square
            server.mean_square.assign(mean_square)
            strength = self.compensation / tf.sqrt(mean_square + 1e-7)
        moved = server.center - server.anchor
        server.center.assign_sub(self.learning_rate * (message + strength * square * moved))
        return server.center
