"""FedExP: federated averaging whose server steps further than the mean move, the more so the less the moves agree.

    worker k, each step     x ← x − η g_k(x)
    every period            push Δ_k = θ − x and ‖Δ_k‖²,  wait,  x ← θ
    server                  Δ = (1/W) Σ Δ_k,  η_g = max(1, Σ ‖Δ_k‖²/(2 W (‖Δ‖² + ε))),
                            θ ← θ − η_g Δ,  then release all workers

Use: for clients with unequal data that take turns (`--participation`), without a server's rate to tune.
Reference: Jhunjhunwala, Wang, Joshi, *FedExP: Speeding Up Federated Averaging via Extrapolation*, ICLR 2023,
arXiv:2301.09604; equations, ε and means as in the authors' code.
Departures: the authors evaluate the mean of the last two θ, which oscillates less; here the result is θ. Clients count
alike. ε is constant; in their code it shrinks with the square of η, and is multiplied by the number of clients.
Limits: if the workers' moves are equal, and with one worker, it is `local_sgd`; orthogonal moves of one length make
η_g = W/2. So it differs from `local_sgd` only if Σ ‖Δ_k‖² is more than twice W ‖Δ‖². Near the minimum the noise of
the batches makes moves disagree, and η_g large: a falling rate, or a larger ε, settles it.
Defaults: the authors have ε = 0.001 for three data sets, and 0.1 for one.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, NotNegative, Period, Rate, Scheme, sgd, tf


@dataclass(frozen=True, kw_only=True)
class FedExP(Scheme):
    """Local steps, then a step along the mean move that is the longer the less the moves agree."""

    paper = "Jhunjhunwala et al. 2023"
    sync = Barrier()
    scalars = ("square",)
    whole_center = True

    communication_period: Period = 10
    """Local steps between two rounds."""
    learning_rate: Rate = 0.2
    """The worker's step size η."""
    epsilon: NotNegative = 0.001
    """Number ε that is added to the square of the mean move: it limits the server's step."""

    def local_variables(self, params):
        return {"began": params}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        move = worker.began - worker.params
        return move, {"square": tf.reduce_sum(move * move)}

    def server_update(self, server, message, staleness):
        own = tf.reduce_sum(message * message) + self.epsilon
        sgd(server.center, message, tf.maximum(1.0, tf.math.divide_no_nan(server.sent.square, 2 * own)))
        return server.center

    def on_reply(self, worker, reply):
        worker.began.assign(reply)
        worker.params.assign(reply)
