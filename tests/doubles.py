"""Algorithms that are broken on purpose: what the replay must catch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from sleeping import in_task

from distsgd.algorithms import AEAMSGD, AllReduce, AsyncSGD, Downpour, Hogwild, LocalSGD, SyncSGD
from distsgd.common.contract import Bounded, EachWorker, Unlocked
from distsgd.common.contract.rounds import Rounds


class SlowAsyncSGD(AsyncSGD):
    """Correct, but it reads, thinks for a while and writes: harmless under the lock, fatal without."""

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        before = server.center.read_value()
        thought = tf.ones([128, 128]) * before[0]
        for _ in range(8):
            thought = tf.matmul(thought, tf.zeros([128, 128])) + before[0]
        server.center.assign(before - self.learning_rate * message + 0 * thought[0, 0])
        return server.center


class HalfWay(Downpour):
    """The update of the second slice says that it is there, and waits for a token: the center is half old, half new."""

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        from distsgd.common.messages.ops import queue

        if server.center.name.startswith("center_1"):
            with tf.control_dependencies([queue("half_way").enqueue(True)]):
                token = queue("go_on").dequeue()
            with tf.control_dependencies([token]):
                message = tf.identity(message)
        return super().server_update(server, message, staleness)


class HeavyAllReduce(AllReduce):
    """Correct, with a velocity on each worker."""

    name = "heavy_all_reduce"

    def local_variables(self, params: Any) -> Any:
        return {"velocity": 0 * params}

    def on_reply(self, worker: Any, reply: Any) -> None:
        velocity = 0.5 * worker.velocity + reply
        worker.velocity.assign(velocity)
        worker.params.assign_sub(self.learning_rate * velocity)


class ShortFirst(AEAMSGD):
    """Worker 0 has done its rounds when the others have not."""

    name = "short_first"

    def rounds(self, steps: int, done: int = 0, worker: int = 0, seed: int = 0) -> Rounds:
        return super().rounds(steps if worker else 1, done, worker)


class PerWorker(AsyncSGD):
    """The n-th message of worker k adds k + n / 10 to the center."""

    def global_variables(self, center: Any) -> Any:
        return {"messages": EachWorker(0 * center)}

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        number = server.messages.read_value() + 1
        server.messages.assign(number)
        server.center.assign_add(tf.cast(server.sender, tf.float32) + number / 10)
        return server.center


class RandomPart(AsyncSGD):
    """Each worker sends a random part of its gradient, times its loss."""

    name = "random_part"

    def message(self, worker: Any) -> Any:
        mask = worker.uniform(worker.index, worker.round) < 0.5
        return tf.where(mask, worker.gradient, 0.0) * worker.loss


class Weighed(SyncSGD):
    """The message of worker k counts k + 1 times."""

    def weighted(self, server: Any, message: Any, staleness: Any) -> Any:
        return message * (tf.cast(server.sender, tf.float32) + 1)


@dataclass(frozen=True, kw_only=True)
class Waiting(AsyncSGD):
    """No worker is far ahead."""

    slack: int = 1

    @property
    def sync(self) -> Bounded:
        return Bounded(self.slack)


class NoLock(SlowAsyncSGD):
    @property
    def sync(self) -> Unlocked:
        return Unlocked()


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
    return tf.IndexedSlices(tf.ones_like(gradient.values), gradient.indices)


class Stumbles(AsyncSGD):
    """The messages of worker 1 are now and then not finite."""

    def message(self, worker: Any) -> Any:
        bad = tf.reduce_sum(tf.abs(worker.gradient)) * 1e4
        sick = tf.equal(tf.cast(bad, tf.int32) % 5, 0) & tf.equal(worker.index, 1)
        return tf.where(sick, worker.gradient / 0, worker.gradient)


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Mixed into a scheme: at one chosen moment of round `PAUSE_ROUND`, it waits once, while the file `armed` exists.

    Moments: "push" (worker 1 has its message, and has sent nothing), "lock" (the ps is in the middle of an update),
    "reply" (the ps has applied the message of worker 1, which has not heard of it). What happens is done by operations
    of the graph, so that it happens in the process that it should happen in.
    """

    folder: str
    moment: str

    def local_variables(self, params: Any) -> Any:
        return {**super().local_variables(params), "pause_rounds": 0.0}  # pyright: ignore

    def global_variables(self, center: Any) -> Any:
        return {**super().global_variables(center), "pause_updates": 0.0}  # pyright: ignore

    def _pause(self, here: Any) -> Any:
        def there(name: str, looks: Any) -> Any:
            # The name depends on the loop: of a constant, TensorFlow would look once and remember the answer.
            nothing = tf.strings.substr(tf.strings.as_string(looks), 0, 0)
            return tf.size(tf.io.matching_files(tf.strings.join([f"{self.folder}/{name}", nothing]))) > 0

        def tell(_: Any, looks: Any) -> Any:
            with tf.control_dependencies([tf.io.write_file(f"{self.folder}/here", "")]):
                return there("armed", looks), looks + 1

        waits = here & there("armed", 0) & ~there("here", 0)  # the task that takes its place does not wait
        return tf.while_loop(lambda waits, _: waits, tell, [waits, 1])[0]

    def message(self, worker: Any) -> Any:
        message = super().message(worker)  # pyright: ignore
        turn = tf.equal(worker.pause_rounds.assign_add(1.0), PAUSE_ROUND) & tf.equal(worker.index, 1)
        with tf.control_dependencies([self._pause(turn & (self.moment == "push"))]):
            return tf.identity(message)

    def server_update(self, server: Any, message: Any, staleness: Any) -> Any:
        turn = tf.equal(server.pause_updates.assign_add(1.0), PAUSE_ROUND)
        with tf.control_dependencies([self._pause(turn & (self.moment == "lock"))]):
            return super().server_update(server, tf.identity(message), staleness)  # pyright: ignore

    def on_reply(self, worker: Any, reply: Any) -> None:
        turn = tf.equal(worker.pause_rounds, PAUSE_ROUND) & tf.equal(worker.index, 1)
        with tf.control_dependencies([reply]):
            waited = self._pause(turn & (self.moment == "reply"))
        with tf.control_dependencies([waited]):
            super().on_reply(worker, tf.identity(reply))  # pyright: ignore


PAUSE_ROUND = 12.0


@dataclass(frozen=True, kw_only=True)
class PausingAsyncSGD(Pauses, AsyncSGD):
    """Asynchronous."""


@dataclass(frozen=True, kw_only=True)
class PausingSyncSGD(Pauses, SyncSGD):
    """Synchronous."""


@dataclass(frozen=True, kw_only=True)
class PausingAEAMSGD(Pauses, AEAMSGD):
    """Elastic, with momentum: a state of the worker."""


@dataclass(frozen=True, kw_only=True)
class SlowDisk(AsyncSGD):
    """In the tasks of its run, a checkpoint takes some seconds to be written."""

    seconds: float = 10.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        import time

        from distsgd.common.record import checkpoint

        self.__dict__.update(state)
        if not in_task():
            return
        write = checkpoint.write

        def slowly(*arguments: Any) -> Any:
            time.sleep(self.seconds)
            return write(*arguments)

        checkpoint.write = slowly


class RemembersHalf(LocalSGD):
    """Correct, and each worker keeps half of the parameters that it began a step with, and plays with them."""

    def local_variables(self, params: Any) -> Any:
        return {"half": params[: params.shape[0] // 32 * 16]}

    def local_step(self, worker: Any, gradient: Any) -> None:
        worker.half.assign(worker.params[: worker.half.shape[0]])
        super().local_step(worker, gradient)
        worker.half.assign_add(worker.half + 1.0)


class HalvedLocalSGD(LocalSGD):
    """Correct, but its workers go half of the way to a reply, and take that in two halves."""

    def on_reply(self, worker: Any, reply: Any) -> None:
        half = reply.shape[0] // 32 * 16
        worker.params.assign(0.5 * worker.params + tf.concat([0.5 * reply[:half], 0.5 * reply[half:]], 0))
