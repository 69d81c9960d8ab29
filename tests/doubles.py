"""Algorithms that are broken on purpose: what the replay must catch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distsgd.algorithms import AsyncSGD, Hogwild
from distsgd.common.gates import Async, Unlocked, _fold


@dataclass(frozen=True, kw_only=True)
class SlowAsyncSGD(AsyncSGD):
    """Correct, but it reads, thinks for a while and writes: harmless under the lock, fatal without."""

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        import tensorflow as tf

        before = server.center.read_value()
        thought = tf.ones([128, 128]) * before[0]
        for _ in range(8):
            thought = tf.matmul(thought, tf.zeros([128, 128])) + before[0]
        server.center.assign(before - self.learning_rate * message + 0 * thought[0, 0])
        return server.center


@dataclass(frozen=True)
class EarlyUnlock(Async):
    """Releases the lock before the update instead of after it."""

    def exchange(self, ps: Any, seat: Any, message: Any) -> Any:
        import tensorflow as tf

        parts = ps.receive(message)
        with ps.lock(after=parts) as held:
            ps.read_version()
        with tf.control_dependencies([held.released]):
            replies = _fold(ps, seat, parts, locked=False)
            ps.note_pull(seat)
            return ps.concat(replies)


@dataclass(frozen=True, kw_only=True)
class NoLock(SlowAsyncSGD):
    @property
    def gate(self) -> Unlocked:
        return Unlocked()


@dataclass(frozen=True, kw_only=True)
class UnlockedEarly(SlowAsyncSGD):
    @property
    def gate(self) -> EarlyUnlock:
        return EarlyUnlock()


@dataclass(frozen=True, kw_only=True)
class RaisesInWorker(AsyncSGD):
    """A bug in the worker's part."""

    def message(self, worker: Any) -> Any:
        raise RuntimeError("a bug in the message")


@dataclass(frozen=True, kw_only=True)
class CountingHogwild(Hogwild):
    """The lost-update detector: every entry of a batch subtracts 1, whatever x is."""

    learning_rate: float = 1.0

    def message(self, worker: Any) -> Any:
        return ones(worker.gradient)


@dataclass(frozen=True, kw_only=True)
class CountingAsyncSGD(AsyncSGD):
    """The same under the lock."""

    learning_rate: float = 1.0

    def message(self, worker: Any) -> Any:
        return ones(worker.gradient)


def ones(gradient: Any) -> Any:
    import tensorflow as tf

    return tf.IndexedSlices(tf.ones_like(gradient.values), gradient.indices)


@dataclass(frozen=True, kw_only=True)
class SlowUpdate(AsyncSGD):
    """Correct, and under the lock for most of the time."""

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        import tensorflow as tf

        def think(i: Any, thought: Any) -> tuple[Any, Any]:
            return i + 1, tf.matmul(thought, thought) * 0 + 1

        thought = tf.while_loop(lambda i, _: i < 100, think, (tf.constant(0), tf.ones([64, 64])))[1]
        server.center.assign_sub(self.learning_rate * message * thought[0, 0])
        return server.center


@dataclass(frozen=True, kw_only=True)
class Stumbles(AsyncSGD):
    """The messages of worker 1 are now and then not finite."""

    def message(self, worker: Any) -> Any:
        import tensorflow as tf

        bad = tf.reduce_sum(tf.abs(worker.gradient)) * 1e4
        sick = tf.equal(tf.cast(bad, tf.int32) % 5, 0) & tf.equal(worker.index, 1)
        return tf.where(sick, worker.gradient / 0, worker.gradient)
