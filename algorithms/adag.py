"""ADAG: asynchronous distributed adaptive gradients. A stale message is damped where the center has moved.

    worker, each step       x ← x − η g_k(x),  A ← A + g          A begins at 0
    every period of H       push u = η A/H,  x ← reply
    server, each push       θ ← θ − u / ((θ − a_k)²/γ + 1),  reply θ,  a_k ← θ        one atomic event, elementwise

where a_k is the center that worker k pulled last.

Use: for many asynchronous workers, with which `agn` diverges; for few workers it is slower.
Reference: Hermans, *On Scalable Deep Learning and Parallelizing Gradient Descent*, master thesis, Maastricht 2017,
chapter 4, the form in which the server keeps the anchors. dist-keras and the first reports give this name to another
rule, which is `agn` here, as in its paper.
Departures: γ is 0.01 by default; the thesis begins with γ = η and ends with 0.0001. The thesis writes a norm, and
applies it to each weight. If η is a schedule, u has its rate at the beginning of the period; the thesis has the mean of
η_t g_t.
Limits: for γ → ∞ it is `agn` with η on both sides, and so it is with one worker, for which a_k = θ. The ps holds W more
centers.
"""

from dataclasses import dataclass

from ..common.contract import Period, Positive, PulledCenter, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class ADAG(Scheme):
    """Means of gradients, damped by how far the center has moved meanwhile."""

    paper = "Hermans 2017 (thesis)"
    elementwise = True
    sends = "gradient_sum"

    communication_period: Period = 10
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.2
    """Step size η, on the worker and in the message."""
    distance_scale: Positive = 0.01
    """Distance scale γ: a weight that has moved by √γ takes half a step."""

    def global_variables(self, center):
        return {"pulled_center": PulledCenter()}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return self.learning_rate * worker.gradient_sum / worker.steps

    def server_update(self, server, message, staleness):
        moved = server.center - server.pulled_center
        server.center.assign_sub(message / (moved * moved / self.distance_scale + 1))
        return server.center
