"""FedBuff: local SGD without waiting. The server steps with the mean of every K moves, of whichever workers.

    worker, each step       x ← x − η g_k(x)
    every period            push Δ = a − x,  a, x ← reply
    server, each push       D ← D + (1 + τ)^−p Δ/K                              one atomic event
        K divides n         θ ← θ − ε D,  D ← 0
                            reply θ

where n counts messages, a is the center that the worker pulled last, and the staleness τ counts steps of the server
since then.

Use: for many clients that come and leave, with local steps; not if slow clients have data of their own.
Reference: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, *Federated Learning with Buffered Asynchronous
Aggregation*, AISTATS 2022, arXiv:2106.06639, Algorithm 1, with its weights 1/√(1 + τ).
Departures: the paper's maximum concurrency, the number of clients that train at the same time, is the number W of
workers here, and a worker trains again at once; the paper draws another client. No secure aggregation.
Why these defaults: the paper recommends K = 10 for hundreds of clients; fewer workers make too few steps with it.
Limits: with one worker, K = 1 and ε = 1 it is serial SGD. K = 1, ε = 1 and p = 1 is `dynsgd`; K = 1 and p = 0 is
`async_diloco` with SGD inside, no momentum and the outer rate εW. A period of one and p = 0 is K-batch-async (Dutta et
al. 2018) with the rate εη. K = W is not `local_sgd`: a worker that has sent its move goes to its next round at the old
center, and its next move is an update late.
"""

from dataclasses import dataclass

from ..common.contract import Async, Natural, NotNegative, Period, Rate, Scheme, gathered, sgd


@dataclass(frozen=True, kw_only=True)
class FedBuff(Scheme):
    """Local steps, then a step of the server for every K messages; no worker waits."""

    paper = "Nguyen et al. 2022"
    elementwise = True

    communication_period: Period = 10
    """Local steps between two exchanges."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    server_learning_rate: Rate = 1.0
    """The server's step size ε."""
    messages_per_update: Natural = 4
    """Number K of messages that make one step of the server."""
    staleness_exponent: NotNegative = 0.5
    """Exponent p of the weight of a late message; 0 for equal weights."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Async(messages_per_update=self.messages_per_update)

    def local_variables(self, params):
        return {"pulled": params}

    def global_variables(self, center):
        return {"buffer": 0 * center}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return worker.pulled - worker.params

    def server_update(self, server, message, staleness):
        weight = (1 + staleness) ** -self.staleness_exponent / self.messages_per_update
        total = gathered(server.buffer, weight * message, server.completes)
        server.center.assign_sub(self.server_learning_rate * total)
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.pulled.assign(reply)
