"""AGN: accumulated gradient normalization. Workers take local steps and push the mean of their gradients.

    worker, each step       x ← x − η g_k(x),  A ← A + g          A begins at 0
    every period of H       push A/H,  x ← reply
    server, each push       θ ← θ − γ A/H,  reply θ                        one atomic event

Use: like `downpour_easy` if the period is to change without the rate; not where each message should bring a whole
period.
Reference: Hermans, Spanakis, Möckel, *Accumulated Gradient Normalization*, ACML 2017, arXiv:1710.02368. Called ADAG
in dist-keras and in the first reports; `adag` here is the rule to which Hermans' thesis gave that name later.
Departures: the paper pushes mean steps, η A/H, and the server adds them: γ = η, as here unless γ is given. A separate
rate on the server is that of `tf.contrib`'s AGNOptimizer. A shorter last round is divided by its own H. If η is a
schedule, the server has its present rate; the paper has the mean of η_t g_t.
Limits: with H = 1 it is `async_sgd`; with γ = H η it is `downpour_easy`. A step of AGN has the direction of the sum and
the size of one gradient, so AGN is stable where sums diverge, and slow where sums are stable.
"""

from dataclasses import dataclass

from ..common.contract import Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class AGN(Scheme):
    """Means of gradients over a period, plain SGD on the server."""

    paper = "Hermans et al. 2017"
    elementwise = True
    sends = "gradient_sum"

    communication_period: Period = 10
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    server_learning_rate: Rate | None = None
    """The server's step size γ; the worker's by default."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return worker.gradient_sum / worker.steps

    def server_update(self, server, message, staleness):
        rate = self.learning_rate if self.server_learning_rate is None else self.server_learning_rate
        sgd(server.center, message, rate)
        return server.center
