"""A file of a user, for `--import`: several messages make an update, and the server keeps a number for each worker."""

from dataclasses import dataclass

from distsgd.common.contract import Async, Count, EachWorker, Period, Rate, Scheme, gathered, sgd


@dataclass(frozen=True, kw_only=True)
class Fair(Scheme):
    """The n-th message of a worker counts 1/√n: a fast worker does not drown the others.

    worker      H times  x ← x − η g(x);   push  Δ = a_k − x,  x ← reply
    server      D ← D + Δ / (K √n);  at each K-th message  θ ← θ − D,  D ← 0;   reply θ,  a_k ← θ
    """

    name = "fair"

    communication_period: Period = 2
    """Local steps H between two exchanges."""
    learning_rate: Rate = 0.1
    """Step size η of the workers."""
    buffer_size: Count = 3
    """Messages K that make a step of the server together."""

    @property
    def sync(self):
        return Async(messages_per_update=self.buffer_size)

    def local_variables(self, params):
        return {"start": params}

    def global_variables(self, center):
        return {"buffer": 0 * center, "sent_before": EachWorker(0.0)}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)

    def message(self, worker):
        return worker.start - worker.params

    def server_update(self, server, message, staleness):
        server.sent_before.assign_add(1)
        weight = server.sent_before**-0.5 / self.buffer_size
        server.center.assign_sub(gathered(server.buffer, weight * message, server.completes))
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply)
        worker.start.assign(reply)


# The same in NumPy.


def fair(theta, order, gradient, scheme):
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
        seen.append((version, version - at))
        buffer = buffer + count[k] ** -0.5 / scheme.buffer_size * (pulled_center - x)
        if n % scheme.buffer_size == 0:
            thetas.append(thetas[-1] - buffer)
            buffer = 0 * buffer
        pulled[k] = thetas[-1], len(thetas) - 1
    return thetas, seen
