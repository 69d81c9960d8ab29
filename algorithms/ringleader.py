"""Ringleader: asynchronous SGD with the mean of the workers' mean gradients, so that all shards count alike.

    worker k        g = g_k(x),  push g,  x ← reply
    server          k has had its update of this cycle:   add g to the mean m⁺_k, reply y_k
                    otherwise:                            add g to the mean m_k, and
                        some m_j is empty                 reply y_k
                        none is empty                     θ ← θ − η (1/W) Σ m_j,  y_k ← θ,  reply y_k
                    after the W-th update of a cycle:     m ← m⁺,  m⁺ ← empty

with one atomic event for each message. y_k is the center that worker k got with its last update, at which it takes all
gradients until its next one. A cycle has one update for each worker: a fast worker makes its means better, not heavier.

Use: for unequal data on workers of different speed; on equal data it is slower than `async_sgd`.
Reference: Maranjyan, Richtárik, *Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data
Heterogeneity*, ICLR 2026, arXiv:2509.22860, Algorithm 1.
Departures: the version of the center, and with it staleness and the number of updates of a run, counts all messages,
also those that only change a mean. W messages of a cycle move the center; the first cycle has 2W − 1 messages at least,
a later one begins with what is in m⁺ and may have W. A worker that restarts takes its first gradient at the present
center.
Choice of η: the paper has η = min{1/(8WL), ...} for a smoothness L. The mean of a cycle is applied W times, and its
gradients are up to 2W − 2 moves of the center late: more workers need a smaller η.
Memory: the ps keeps three vectors for each worker.
Limits: with one worker it is serial SGD. A cycle needs a gradient of each worker: once one has finished its steps or is
lost for good, at most 2W − 2 further messages move the center. So give fast workers more steps than they make, and end
the run by `stop_at_version`. `rescaled_asgd` is as fair with no memory, but its steps vary with the speeds.
"""

from dataclasses import dataclass

from ..common.contract import EachWorker, Rate, Scheme, tf


@dataclass(frozen=True, kw_only=True)
class Ringleader(Scheme):
    """Each worker in turn moves the center along the mean of all workers' mean gradients."""

    paper = "Maranjyan & Richtárik 2026"

    learning_rate: Rate = 0.1
    """Step size η."""

    def global_variables(self, center):
        scalars = dict.fromkeys(("filled", "next_filled", "done", "cycle"), 0 * center[0])
        means = dict.fromkeys(("mean", "next_mean"), EachWorker(0 * center))
        counts = dict.fromkeys(("count", "next_count", "served", "last_cycle"), EachWorker(0.0))
        of_each = {**means, "model": EachWorker(center), **counts}
        return {"average": 0 * center, "next_average": 0 * center, **scalars, **of_each}

    def server_update(self, server, message, staleness):
        workers = float(server.num_workers)
        # In a new cycle, a worker's first message finds its means as the last cycle left them.
        new = tf.not_equal(server.last_cycle, server.cycle)
        mean, count = tf.where(new, server.next_mean, server.mean), tf.where(new, server.next_count, server.count)
        next_mean, next_count = tf.where(new, 0.0, server.next_mean), tf.where(new, 0.0, server.next_count)
        ahead = tf.where(new, 0.0, server.served)  # 1 if this message is for the next cycle, else 0

        moved = (message - tf.where(ahead > 0, next_mean, mean)) / (1 + tf.where(ahead > 0, next_count, count))
        average = server.average + (1 - ahead) * moved / workers
        next_average = server.next_average + ahead * moved / workers
        filled = server.filled + (1 - ahead) * tf.cast(tf.equal(count, 0), tf.float32)
        next_filled = server.next_filled + ahead * tf.cast(tf.equal(next_count, 0), tf.float32)
        update = (1 - ahead) * tf.cast(tf.equal(filled, workers), tf.float32)
        done = server.done + update
        ends = tf.equal(done, workers)

        server.center.assign_sub(self.learning_rate * update * average)
        server.model.assign(tf.where(update > 0, server.center, server.model))
        server.mean.assign(mean + (1 - ahead) * moved)
        server.next_mean.assign(next_mean + ahead * moved)
        server.count.assign(count + 1 - ahead)
        server.next_count.assign(next_count + ahead)
        server.served.assign(ahead + update)
        server.last_cycle.assign(server.cycle)
        server.average.assign(tf.where(ends, next_average, average))
        server.next_average.assign(tf.where(ends, 0.0, next_average))
        server.filled.assign(tf.where(ends, next_filled, filled))
        server.next_filled.assign(tf.where(ends, 0.0, next_filled))
        server.done.assign(tf.where(ends, 0.0, done))
        server.cycle.assign_add(tf.cast(ends, tf.float32))
        return server.model.read_value()
