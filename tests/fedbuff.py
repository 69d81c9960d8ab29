"""A file of a user, for `--import`: FedBuff (Nguyen et al. 2022), and a number for each worker on the server."""

from dataclasses import dataclass

import tensorflow as tf

from distsgd.common.contract import Count, Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class FedBuff(Scheme):
    """Many local steps; the server steps with the mean of every K messages; no worker waits.

    worker      H times  x ← x − η g(x);   push  Δ = a_k − x,  x ← reply
    server      D ← D + s(τ) Δ / K;  at each K-th message  θ ← θ − D,  D ← 0;   reply θ,  a_k ← θ

    s(τ) = 1/√(1 + τ), where the staleness τ counts server steps.
    """

    name = "fedbuff"
    paper = "Nguyen et al. 2022"

    communication_period: Period = 2
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.1
    """Step size η of the workers."""
    buffer_size: Count = 3
    """Messages K that make a step of the server together."""

    @property
    def messages_per_update(self):
        return self.buffer_size

    def local_variables(self, params):
        return {"start": params}

    def global_variables(self, center):
        return {"buffer": 0 * center}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return worker.start - worker.params

    def server_update(self, server, message, staleness):
        gathered = server.buffer + self.weight(server, staleness) / self.buffer_size * message
        server.center.assign_sub(tf.where(server.completes, gathered, 0.0))
        server.buffer.assign(tf.where(server.completes, 0.0, gathered))
        return server.center

    def weight(self, server, staleness):
        return (1 + staleness) ** -0.5

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.start.assign(reply)


@dataclass(frozen=True, kw_only=True)
class Fair(FedBuff):
    """The n-th message of a worker counts 1/√n: a fast worker does not drown the others."""

    name = "fair"

    def worker_numbers(self):
        return {"sent_before": 0.0}

    def weight(self, server, staleness):
        server.sent_before.assign_add(1)
        return server.sent_before**-0.5


# The same in NumPy.


def fedbuff(theta, order, gradient, scheme):
    """Return the center of each version, and version and staleness of each message.

    Args:
        theta: the first center.
        order: which worker's message comes, one after the other.
        gradient: of a point.
        scheme: its hyperparameters.
    """
    thetas, buffer, seen, count = [theta], 0 * theta, [], {}
    pulled = dict.fromkeys(order, (theta, 0))
    for n, k in enumerate(order, 1):
        pulled_center, at = pulled[k]
        x, count[k] = pulled_center, count.get(k, 0) + 1
        for _ in range(scheme.communication_period):
            x = x - scheme.learning_rate * gradient(x)
        version = len(thetas) - 1
        weight = (count[k] if isinstance(scheme, Fair) else 1 + version - at) ** -0.5
        seen.append((version, version - at))
        buffer = buffer + weight / scheme.buffer_size * (pulled_center - x)
        if n % scheme.buffer_size == 0:
            thetas.append(thetas[-1] - buffer)
            buffer = 0 * buffer
        pulled[k] = thetas[-1], len(thetas) - 1
    return thetas, seen
