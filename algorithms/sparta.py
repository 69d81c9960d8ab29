"""SPARTA: workers train on their own, and average a small random part of their parameters after each step.

    worker, each step       x ← AdamW(x, g_k(x)), or another inner optimizer; its moments never leave the worker
    every period            q_j = x_j − y_j for j ∈ S,  push q,  wait,  y ← y + s,  x_j ← y_j for j ∈ S
    server                  s = (1/W) Σ q_k,  θ ← θ + s,  reply s,  then release all workers

where S has each element with the probability p, drawn from the seed and the number of the round, so that it is the same
on all workers, and y is the worker's copy of θ. So the elements in S become the mean of the workers' parameters; θ has
the last mean of each element. Message and reply have pairs of an index and a value.

Use: for links that are always a little free, instead of rare large messages; not where each message has a high latency.
Reference: Beton, Baioumy, van der Ouderaa, Reed, Howes, Cheema, Vrabie, *Improving the Efficiency of Distributed
Training using Sparse Parameter Averaging*, 2025, openreview.net/forum?id=stFPf3gzq1.
Departures: elements are sent with their indices, although all workers know S. The paper averages all parameters at the
end of a run; here the result is θ, whose elements are 1/p rounds old in the mean. Its overlap with computing, and the
outer steps of DiLoCo between, are left out.
Limits: with a share of one it is `local_sgd` with that inner optimizer, and with SGD and a period of one `sync_sgd`.
Averaging keeps the mean of the workers' parameters. An element stays apart for n rounds with the probability (1 − p)^n.
Defaults: the paper's p is 0.0005 to 0.005, for runs of 10,000 steps and more; short runs need a larger one, or most
elements of θ are still the initial ones.
"""

from dataclasses import dataclass

from ..common.contract import Barrier, Coordinates, Fraction, InnerOptimizer, Period, Rate, Scheme, tf


@dataclass(frozen=True, kw_only=True)
class Sparta(Scheme):
    """Local steps, and the mean of a random part of the parameters after each of them."""

    paper = "Beton et al. 2025"
    sync = Barrier()

    communication_period: Period = 1
    """Local steps between two averages."""
    learning_rate: Rate = 0.002
    """Step size η of the local steps."""
    inner_optimizer: InnerOptimizer = "adamw"
    """Optimizer of the local steps: sgd, momentum, adam, adamw, lion or muon; with options, adamw:weight_decay=0.1."""
    share: Fraction = 0.1
    """Probability p with which an element is averaged in a round."""

    @property
    def codec(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Coordinates(self.share), Coordinates(self.share)

    def local_variables(self, params):
        return {"copy": params}

    def message(self, worker):
        return tf.where(self._drawn(worker), worker.params - worker.copy, 0.0)

    def server_update(self, server, message, staleness):
        server.center.assign_add(message)
        return message

    def on_reply(self, worker, reply):
        worker.copy.assign_add(reply)
        worker.params.assign(tf.where(self._drawn(worker), worker.copy, worker.params))

    def _drawn(self, worker):
        return worker.uniform(worker.round) < self.share
