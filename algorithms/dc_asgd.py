"""DC-ASGD: asynchronous SGD with delay compensation. A late gradient is corrected to first order.

    worker      g = g_k(x),  push g,  x ← reply
    server      θ ← θ − η (g + λ g ⊙ g ⊙ (θ − a_k)),  reply θ,  a_k ← θ        one atomic event, elementwise

where the anchor a_k is the center that worker k pulled last. To first order the gradient at θ is g + H (θ − a_k);
λ g ⊙ g stands for the diagonal of the Hessian H.

Reference: Zheng, Meng, Wang, Chen, Yu, Ma, Liu, *Asynchronous Stochastic Gradient Descent with Delay Compensation*,
ICML 2017, arXiv:1609.08326.
Departures: λ is constant; the paper's adaptive form divides it by the root of a mean square of gradients.
Limits: λ = 0 is `async_sgd`, and so is one worker, since θ is its anchor. The correction is quadratic in g: where
gradients are large, it explodes. The ps holds W more centers.
"""

from dataclasses import dataclass

from ..common.contract import NotNegative, Rate, Scheme


@dataclass(frozen=True, kw_only=True)
class DCASGD(Scheme):
    """A late gradient is corrected by how far the center has moved meanwhile."""

    paper = "Zheng et al. 2017"
    keeps_anchors = True

    learning_rate: Rate = 0.1
    """Step size η."""
    compensation: NotNegative = 0.04
    """Strength λ of the correction."""

    def server_update(self, server, message, staleness):
        moved = server.center - server.anchor
        server.center.assign_sub(self.learning_rate * (message + self.compensation * message * message * moved))
        return server.center
