"""A file of a user, for `--import`: workers that do unequal numbers of local steps, and messages that say how many."""

from dataclasses import dataclass

import tensorflow as tf

from distsgd.common.contract import Barrier, Period, Positive, Rate, Rounds, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class Uneven(Scheme):
    """Rounds of worker k have as many steps as the k-th of some numbers."""

    sends = "gradient_sum"

    local_steps: tuple[Period, ...] = (1, 2, 4)
    """Local steps of a round, of one worker after the other."""
    learning_rate: Rate = 0.1
    """Step size η."""

    @property
    def period(self):
        return max(self.local_steps)

    def own(self, worker):
        return self.local_steps[worker % len(self.local_steps)]

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class FedNova(Uneven):
    """Each worker counts by its mean step, whatever the number of its steps (Wang et al. 2020, equation 7).

    worker      H_k times  x ← x − η g;   push  d = η Σ g / H_k,  H_k
    server      θ ← θ − mean(H) mean(d),  reply θ
    """

    name = "fed_nova"
    sync = Barrier()
    scalars = ("steps",)

    def rounds(self, steps, done=0, worker=0, seed=0):
        own = self.own(worker)
        return Rounds.even(steps // self.period * own, own)  # as many rounds as the others

    def message(self, worker):
        return self.learning_rate * worker.gradient_sum / worker.steps, {"steps": worker.steps}

    def server_update(self, server, message, staleness):
        server.center.assign_sub(server.sent.steps * message)
        return server.center


@dataclass(frozen=True, kw_only=True)
class Clipped(Uneven):
    """Asynchronous sums of gradients, which the server clips: no slice of it could know the norm of the whole.

    worker      H_k times  x ← x − η g;   push  u = Σ g,  |u|
    server      θ ← θ − η u min(1, c/|u|),  reply θ
    """

    name = "clipped"
    scalars = ("norm",)

    limit: Positive = 1.0
    """The norm c to which messages are clipped."""

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.even(steps, self.own(worker))  # as many steps as the others

    def message(self, worker):
        return worker.gradient_sum, {"norm": tf.norm(worker.gradient_sum)}

    def server_update(self, server, message, staleness):
        factor = tf.minimum(1.0, self.limit / server.sent.norm)
        server.center.assign_sub(self.learning_rate * factor * message)
        return server.center


# The same in NumPy.


def fed_nova(x, gradient, rounds, local_steps, eta):
    """Return the last center."""
    for r in range(rounds):
        mean_steps = []
        for k, number in enumerate(local_steps):
            own = x.copy()
            for t in range(number):
                own -= eta * gradient(own, k, r * number + t)
            mean_steps.append((x - own) / number)
        x = x - sum(local_steps) / len(local_steps) * sum(mean_steps) / len(mean_steps)
    return x


def clipped(x, gradient, contacts, steps, local_steps, eta, limit):
    """Return the last center; ~k in the contacts means that worker k starts anew from the center."""
    read, done = [x] * len(local_steps), [0] * len(local_steps)
    for contact in contacts:
        k = max(contact, ~contact)
        if contact >= 0:
            own, total = read[k].copy(), 0
            for t in range(done[k], min(done[k] + local_steps[k], steps)):
                total = total + gradient(own, k, t)
                own -= eta * gradient(own, k, t)
            done[k] += local_steps[k]
            x = x - eta * min(1, limit / (total @ total) ** 0.5) * total
        read[k] = x
    return x
