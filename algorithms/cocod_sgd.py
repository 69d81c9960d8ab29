"""CoCoD-SGD: local steps while the parameters travel; then the worker adds its own move to their mean.

    worker, at the          push x,  y ← x,  and continue without a wait
    begin of a round
    H steps                 x ← x − η g_k(x), or another inner optimizer; its variables never leave the worker
    end of the round        wait for the reply θ,  x ← θ + (x − y)
    server                  θ ← (1/W) Σ x_k of what was sent,  then release all workers

A message and its reply may take as long as the H steps of a round. No move is lost or late: the mean of the workers'
parameters changes by the mean of their moves, as with `local_sgd`. But a worker begins a round away from that mean, by
its own move in the round before minus the mean of all moves.

Use: where a message takes up to a whole period of computing; not where the shards of the workers differ much, for then
workers begin their rounds far from each other. Where links are fast, with `local_sgd` all begin at the mean.
Reference: Shen, Xu, Liu, Liang, Cheng, *Faster Distributed Deep Net Training: Computation and Communication Decoupled
Stochastic Gradient Descent*, IJCAI 2019, arXiv:1906.12043.
Departures: all batches have the same size; the paper also gives faster workers larger ones. The center lags behind the
workers by a round: it is their mean at the begin of a round, and the moves of a run's last round are not in it.
Limits: with one worker it is serial SGD. Where the gradients of all workers are linear in x with the same curvature,
the mean of the workers is that of `local_sgd`. There, with a curvature h, each round multiplies the difference of two
workers by −(1 − (1 − η h)ᴴ), beside what their shards and batches add: with an odd H and η h > 1 workers drift apart,
while `local_sgd` is stable up to η h = 2. A worker that is started again without its state begins at the center.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, FixedPeriod, InnerOptimizer, Rate, Scheme


@dataclass(frozen=True, kw_only=True)
class CoCoDSGD(Scheme):
    """Local steps while the parameters travel, then the worker's own move is added to their mean."""

    paper = "Shen et al. 2019"
    sync = Barrier()
    elementwise = True
    sends = "params"

    communication_period: FixedPeriod = 10
    """Local steps H of a round; a message and its reply may take as long."""
    learning_rate: Rate = 0.2
    """Step size η."""
    inner_optimizer: InnerOptimizer = "sgd"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""

    @property
    def overlap(self):
        return self.communication_period

    def local_variables(self, params):
        return {"sent": params}

    def message(self, worker):
        worker.sent.assign(worker.params)
        return worker.params

    def server_update(self, server, message, staleness):
        server.center.assign(message)
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply + (worker.params - worker.sent))
