"""The base of algorithms whose server looks at the gradient of each worker, of which some may be hostile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import UserError
from ..lazy import tf
from .hyperparameters import Decay, Natural, Rate
from .kept import EachWorker
from .optimizers import sgd, take
from .scheme import Scheme
from .seeded import OF_BUCKETS, uniform
from .views import Server, Tensor


@dataclass(frozen=True, kw_only=True)
class Robust(Scheme):
    """A synchronous scheme that steps along an aggregate of the workers' gradients.

    The server keeps the last gradient of each worker, or the momentum m ← β m + (1 − β) g of each. With `bucket` s it
    passes the means of s of them, in random order, to `aggregate`.
    """

    learning_rate: Rate = 0.2
    """Step size η."""
    momentum: Decay = 0.0
    """Momentum β of each worker's gradients, which the server keeps; 0 for none."""
    bucket: Natural = 1
    """Gradients, drawn at random, of which the rule gets the mean; 1 for each by itself."""

    def aggregate(self, server: Server, rows: Tensor, present: Tensor, hostile: Tensor) -> Tensor:
        """Return the vector [n] along which the center steps.

        Args:
            server: the server.
            rows: gradients of the workers, or means of buckets, [R, n]; an element that is not finite is hostile.
            present: flags [R] of the rows that count: a lost worker, and an empty bucket, have none.
            hostile: the most rows that may be hostile, less than half of those that count, a whole number.
        """
        raise NotImplementedError

    def check(self, workers: int) -> Iterable[str] | None:
        """Refuse buckets of which half may be hostile."""
        hostile, buckets = self.sync.most_left_out(workers), -(-workers // self.bucket)
        if self.bucket > 1 and 0 < buckets <= 2 * hostile:
            raise UserError(
                f"{self.name}: {hostile} hostile workers of {workers} may spoil half of the {buckets} buckets: "
                f"use a smaller bucket, or a smaller share of hostile workers. Received: bucket={self.bucket}"
            )

    def global_variables(self, center: Tensor) -> Mapping[str, Tensor]:
        """Return a gradient for each worker, and a flag of those that have come; a lost worker keeps its gradient."""
        rounds = {"rounds": 0 * center[0]} if self.bucket > 1 else {}
        return {"gradients": EachWorker(0 * center), "present": EachWorker(0.0), **rounds}

    def weighted(self, server: Server, message: Tensor, staleness: Tensor) -> Tensor:
        """Keep the gradient of a worker."""
        server.gradients.assign(self._kept(server.gradients, message))
        server.present.assign(1.0)
        return message

    def _kept(self, before: Tensor, gradient: Tensor) -> Tensor:
        """Return what is kept of a gradient; after one that was not finite, momentum begins anew."""
        if not self.momentum:
            return gradient
        before = tf.convert_to_tensor(before)
        return self.momentum * tf.where(tf.math.is_finite(before), before, 0.0) + (1 - self.momentum) * gradient

    def server_update(self, server: Server, message: Tensor, staleness: Tensor) -> Tensor:
        """Step along the aggregate of the gradients that have come."""
        present = take(server.present) > 0
        rows = self.rows(server, present)
        count = tf.reduce_sum(tf.cast(present, tf.int32))
        hostile = tf.gather([self.sync.most_left_out(n) for n in range(server.num_workers + 1)], count)
        if self.bucket > 1:
            rows, present = self._buckets(server, rows, present, count)
            count = tf.reduce_sum(tf.cast(present, tf.int32))
        hostile = tf.minimum(hostile, tf.maximum(count - 1, 0) // 2)
        sgd(server.center, self.aggregate(server, rows, present, hostile), self.learning_rate)
        return server.center

    def rows(self, server: Server, present: Tensor) -> Tensor:
        """Return the gradient, or the momentum, of each worker, [W, n]; `present` has flags of those that have come."""
        return server.gradients.read_value()

    def _buckets(self, server: Server, rows: Tensor, present: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of `bucket` rows each, in the random order of this round, and the flags of these buckets."""
        workers, size = server.num_workers, self.bucket
        drawn = uniform(0, workers, OF_BUCKETS, tf.cast(server.rounds, tf.int64))
        server.rounds.assign_add(1.0)
        order = tf.argsort(tf.where(present, drawn, 2.0), stable=True)
        padding = -workers % size
        occupied = tf.range(workers + padding) < count
        shuffled = tf.where(occupied[:, None], tf.pad(tf.gather(rows, order), [[0, padding], [0, 0]]), 0.0)
        number = tf.reduce_sum(tf.reshape(tf.cast(occupied, tf.float32), [-1, size]), 1)
        sums = tf.reduce_sum(tf.reshape(shuffled, [-1, size, rows.shape[1]]), 1)
        return sums / tf.maximum(number, 1.0)[:, None], number > 0


def whole(rows: Tensor, present: Tensor) -> Tensor:
    """Return flags [R] of the rows that count and have no element that is not finite."""
    return present & tf.math.is_finite(tf.reduce_sum(rows, 1))
