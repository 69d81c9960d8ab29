"""A file of a user, for `--import`: workers that take means, of a number or of vectors, to make their messages."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from distsgd.common.contract import Barrier, Collective, Period, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class WithoutPS(Scheme):
    """All workers make the same step by the mean message."""

    name = "without_ps"
    sync = Collective()

    learning_rate: Rate = 0.1
    """Step size η."""

    def server_update(self, server, message, staleness):
        return message

    def on_reply(self, worker, reply):
        sgd(worker.params, reply, self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Normalised(WithoutPS):
    """Sums of gradients, in units of their mean norm.

    worker k    s_k = Σ g_k(x),  n = mean |s_k|;  u_k = s_k / n,  x ← x − η mean u_k
    """

    name = "normalised"
    sends = "gradient_sum"

    communication_period: Period = 2
    """Gradients of a round, all at the same x."""

    def message_sizes(self, shapes):
        return [1, *super().message_sizes(shapes)]

    def message(self, worker):
        return worker.gradient_sum / worker.mean(tf.norm(worker.gradient_sum))


@dataclass(frozen=True, kw_only=True)
class PowerSGD(WithoutPS):
    """Gradients of rank 1, with memory (Vogels et al. 2019, arXiv:1905.13727, Algorithms 1 and 2).

    worker k    M_k = g_k(x) + e_k, as a square;  p = mean M_k q,  p ← p / |p|;  q ← mean M_kᵀ p
                e_k ← M_k − p qᵀ;  x ← x − η p qᵀ
    """

    name = "power_sgd"

    def message_sizes(self, shapes):
        (size,) = super().message_sizes(shapes)
        return [side_of(size), side_of(size), size]

    def local_variables(self, params):
        side = side_of(params.shape[0])
        return {"error": tf.zeros([side, side]), "q": tf.ones([side])}

    def message(self, worker):
        size = worker.params.shape[0]
        side = side_of(size)
        m = tf.reshape(tf.pad(worker.gradient, [[0, side**2 - size]]), [side, side]) + worker.error
        p = worker.mean(tf.linalg.matvec(m, worker.q))
        p /= tf.norm(p)
        q = worker.mean(tf.linalg.matvec(m, p, transpose_a=True))
        low = p[:, None] * q[None]
        worker.q.assign(q)
        worker.error.assign(m - low)
        return tf.reshape(low, [-1])[:size]


@dataclass(frozen=True, kw_only=True)
class AtServer(PowerSGD):
    """Means where there is a parameter server: refused."""

    name = "at_server"
    sync = Barrier()


def side_of(size):
    """Return the side of the smallest square that has so many elements."""
    return int(np.ceil(np.sqrt(size)))


# The same in NumPy.


def normalised(x, gradient, workers, steps, eta, period):
    """Return the last center."""
    for first in range(0, steps, period):
        sums = [sum(gradient(x, k, t) for t in range(first, first + period)) for k in range(workers)]
        x = x - eta * np.mean(sums, axis=0) / np.mean([np.linalg.norm(s) for s in sums])
    return x


def power_sgd(x, gradient, workers, steps, eta):
    """Return the last center."""
    side = side_of(len(x))
    errors, q = np.zeros((workers, side, side)), np.ones(side)
    for t in range(steps):
        ms = [np.resize(0.0, (side, side)) for _ in range(workers)]
        for k, m in enumerate(ms):
            m.flat[: len(x)] = gradient(x, k, t)
            m += errors[k]
        p = np.mean(ms, axis=0) @ q
        p /= np.linalg.norm(p)
        q = np.mean(ms, axis=0).T @ p
        errors = [m - np.outer(p, q) for m in ms]
        x = x - eta * np.outer(p, q).flat[: len(x)]
    return x
