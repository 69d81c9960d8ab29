"""Malenia SGD: each worker sends gradients at the present center until the slowest has sent enough, then all move on.

    worker k    g = g_k(x),  push g,  x ← reply
    server      x was not the present center θ:   ignore g
                otherwise:                        add g to the mean m_k of b_k gradients
                W / Σ 1/b_j ≥ s:                  θ ← θ − η (1/W) Σ m_j,  m, b ← empty
                                                  reply θ

with one atomic event for each message. The condition is that on the harmonic mean of the workers' numbers of gradients,
which is 0 while one of them has none.

Use: for unequal data and noisy gradients, where fast workers should average more; on equal data it is slower.
Reference: Tyurin, Richtárik, *Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed
Computation Model*, NeurIPS 2023, arXiv:2305.12387, method 6; the paper's S is sW.
Departures: as in the paper, gradients that come too late are ignored, and their computation is not stopped. The version
of the center, and with it staleness and the number of updates of a run, counts all messages, also those that only
change a mean or are ignored. A worker that restarts has its first gradient ignored, unless the center is the same.
Choice of s and η: the paper has S = max{W, ⌈σ²/ε⌉} to bring the mean of ‖∇f‖² below ε with gradients of variance σ²:
more noise needs a larger s. Each update takes the step of a synchronous one.
Limits: with one worker and s = 1 it is serial SGD. An update needs a gradient of each worker: once one has finished its
steps or is lost for good, at most one more is made. So give fast workers more steps than they make, and end the run by
`stop_at_version`. s = 1 is `sync_sgd` in which fast workers add gradients to their means instead of waiting; but of
workers with equal speed those that have not finished the set lose a gradient. `ringleader` loses none. `k_batch_sync`
with equal shards needs no gradient of the slow workers.
"""

from dataclasses import dataclass

from ..common.contract import EachWorker, Positive, Rate, Scheme, tf


@dataclass(frozen=True, kw_only=True)
class Malenia(Scheme):
    """The mean of the workers' mean gradients at one center, in which fast workers have several."""

    paper = "Tyurin & Richtárik 2023"

    learning_rate: Rate = 0.2
    """Step size η."""
    gradients_per_worker: Positive = 1.0
    """Number s of gradients of a worker in an update, as a harmonic mean over the workers."""

    def global_variables(self, center):
        of_each = {"mean": EachWorker(0 * center), "count": EachWorker(0.0), "asked": EachWorker(0.0)}
        return {"average": 0 * center, **dict.fromkeys(("filled", "inverse", "cycle"), 0 * center[0]), **of_each}

    def server_update(self, server, message, staleness):
        workers = float(server.num_workers)
        used = tf.cast(tf.equal(server.asked, server.cycle), tf.float32)
        first = used * tf.cast(tf.equal(server.count, 0), tf.float32)
        count = server.count + 1
        moved = used * (message - server.mean) / count
        average = server.average + moved / workers
        filled = server.filled + first
        inverse = server.inverse + used * (1 / count - (1 - first) / tf.maximum(server.count, 1.0))
        enough = workers > self.gradients_per_worker * inverse * (1 - 1e-5)  # or equal, if it were not rounded
        update = used * tf.cast(tf.equal(filled, workers) & enough, tf.float32)

        server.center.assign_sub(self.learning_rate * update * average)
        stays = used * (1 - update)
        server.mean.assign(stays * (server.mean + moved))
        server.count.assign(stays * count)
        server.average.assign((1 - update) * average)
        server.filled.assign((1 - update) * filled)
        server.inverse.assign((1 - update) * inverse)
        server.asked.assign(server.cycle.assign_add(update))
        return server.center
