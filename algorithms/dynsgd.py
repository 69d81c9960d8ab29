"""DynSGD: dynamic SGD. A message is divided by its staleness plus one.

    worker, each step       x ← x − η g_k(x),  A ← A + g          A begins at 0
    every period            push A,  x ← reply
    server, each push       θ ← θ − η A / (τ + 1),  reply θ                one atomic event

where the staleness τ is the number of updates since worker k's last pull, read inside the lock.

Use: for many asynchronous workers at a large rate; not where slow workers have data of their own.
Reference: Jiang, Cui, Zhang, Yu, *Heterogeneity-aware Distributed Parameter Servers*, SIGMOD 2017, in the form of
Hermans' thesis (2017), section 2.3.2.
Departures: the thesis' equation divides by τ, its algorithm by τ + 1, as here. The SIGMOD paper keeps
a running mean of the updates for each version; that form is not implemented. dist-keras reads τ outside its lock: a
race.
Limits: with one worker it is serial SGD. With τ = 0 throughout it is `downpour_easy`. With W equal workers 1/(τ+1) is
about 1/W, which is little more than a lower rate.
"""

from dataclasses import dataclass

from ..common.contract import Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class DynSGD(Scheme):
    """Sums of gradients over a period, divided by their lateness."""

    paper = "Jiang et al. 2017"
    equals = "fedbuff --messages-per-update 1 --staleness-exponent 1"
    elementwise = True
    sends = "gradient_sum"

    communication_period: Period = 5
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.1
    """Step size η, on the worker and on the server."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate / (staleness + 1))
        return server.center
