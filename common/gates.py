"""Gates: who waits for whom on the parameter server. A gate builds one exchange, push to reply, into the graph.

An exchange is one atomic event whatever the number of ps tasks. The lock lives on the first ps task and is taken
after the whole message has arrived, so it is never held while a message travels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .errors import UserError, at_least

if TYPE_CHECKING:
    from .parameter_server import ParameterServer, Seat


class Gate(Protocol):
    """Who waits for whom."""

    synchronous: bool

    def check(self, workers: int) -> None:
        """Raise `UserError` if this gate cannot work with so many workers."""

    def variables(self, ps: ParameterServer) -> None:
        """Make what the gate keeps on the ps."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Push `message` [P] of the worker in that seat and return the reply [P]."""


@dataclass(frozen=True)
class Async:
    """Nobody waits: each message is folded when it arrives, under the lock."""

    synchronous = False

    def check(self, workers: int) -> None:
        """Any number of workers will do."""

    def variables(self, ps: ParameterServer) -> None:
        """Nothing."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Lock; staleness; update; version + 1; read the reply; unlock."""
        parts = ps.receive(message)
        with ps.lock(after=parts):
            replies = _fold(ps, seat, parts)
        return ps.concat(replies)


@dataclass(frozen=True)
class Unlocked:
    """Hogwild: no lock at all. Reads may mix versions, and the recorded versions are approximate."""

    synchronous = False

    def check(self, workers: int) -> None:
        """Any number of workers will do."""

    def variables(self, ps: ParameterServer) -> None:
        """Nothing."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Update in place and read, with nothing to keep others out."""
        return ps.concat(_fold(ps, seat, ps.receive(message)))


def _fold(ps: ParameterServer, seat: Seat, parts: list[Any]) -> list[Any]:
    """The event of an asynchronous scheme: every slice updated, the version counted, the event recorded."""
    version = ps.read_version()
    staleness = ps.staleness(version, seat)
    replies = ps.update(parts, staleness)
    ps.record(version, seat, staleness, accepted=True)
    ps.set_pulled_version(seat, ps.count_updates(1))
    return replies


@dataclass(frozen=True)
class Barrier:
    """A strict barrier: the mean of one message of each of `workers - backup_workers` workers, then all go on.

    The message that completes the set applies the update and puts one token into the own queue of every worker
    that waits. A message computed on an older version is dropped, and its worker goes on at once.
    """

    backup_workers: int = 0
    synchronous = True

    def check(self, workers: int) -> None:
        """At least one worker must be needed."""
        at_least(0, backup_workers=self.backup_workers)
        if self.backup_workers >= workers:
            raise UserError(
                f"backup_workers must be fewer than the workers. Received: "
                f"backup_workers={self.backup_workers}, workers={workers}"
            )

    def variables(self, ps: ParameterServer) -> None:
        """An arrival flag and a token queue per worker; the sum of messages and the last reply of each slice."""
        import tensorflow as tf

        from .parameter_server import queue

        with tf.device(ps.devices[0]):
            ps.arrived = tf.Variable(tf.zeros([ps.num_workers], tf.bool), name="arrived")
            ps.tokens = [queue(f"token_{k}") for k in range(ps.num_workers)]
        for part in ps.slices:
            with tf.device(part.device):
                part.inbox = tf.Variable(tf.zeros_like(part.initial), name=f"inbox_{part.index}")
                part.reply = tf.Variable(part.initial, name=f"reply_{part.index}")

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Arrive; the last one folds; wait for the token; read the reply."""
        import tensorflow as tf

        parts = ps.receive(message)
        with ps.lock(after=parts) as arrival:
            self._arrive(ps, seat, parts)
        with tf.control_dependencies([arrival.released]), tf.device(ps.devices[0]):
            token = seat.tokens.dequeue()
        # With backup workers the others may fold again while this one reads, so it reads under the lock.
        with ps.lock(after=[token]) if self.backup_workers else tf.control_dependencies([token]):
            ps.set_pulled_version(seat, ps.read_version())
            replies = ps.each_slice(lambda part, _: tf.identity(part.reply))
        return ps.concat(replies)

    def _arrive(self, ps: ParameterServer, seat: Seat, parts: list[Any]) -> None:
        """Under the lock: add a fresh message to the sums; if it is the last one needed, fold."""
        import tensorflow as tf

        needed = ps.num_workers - self.backup_workers
        with tf.device(ps.devices[0]):
            version = ps.read_version()
            staleness = ps.staleness(version, seat)
            fresh = tf.equal(staleness, 0)
            if self.backup_workers:
                # Every round of a worker costs at least one version, so before the last version all workers are
                # still there to fill a set; after it nobody waits.
                fresh &= version < ps.last_version
            tf.raw_ops.ResourceScatterUpdate(resource=ps.arrived.handle, indices=seat.index, updates=fresh)
            complete = fresh & tf.equal(tf.reduce_sum(tf.cast(ps.arrived, tf.int32)), needed)
            ps.record(version, seat, staleness, accepted=fresh)

        def fold(part: Any) -> None:
            reply = ps.scheme.server_update(part, part.inbox / needed, tf.constant(0.0))
            if reply is part.center and not self.backup_workers:
                part.reply = part.center  # nobody can change it before everybody has read it: no copy needed
            else:
                part.reply.assign(reply)
            part.inbox.assign(tf.zeros_like(part.inbox))

        def arrive_at(part: Any, u: Any) -> Any:
            if self.backup_workers:
                u = tf.where(fresh, u, tf.zeros_like(u))
            part.inbox.assign_add(u)
            return when(complete, lambda: fold(part))

        folded = ps.each_slice(arrive_at, parts)

        def release() -> None:
            waiting = tf.cast(ps.arrived.read_value(), tf.int32)
            with tf.control_dependencies([ps.count_updates(1), waiting]):
                cleared = ps.arrived.assign(tf.zeros([ps.num_workers], tf.bool))
            with tf.control_dependencies([cleared]):  # a released worker must see the new version
                for k, tokens in enumerate(ps.tokens):
                    tokens.enqueue_many([tf.ones([waiting[k]], tf.bool)])

        # No token before every slice has its update: enqueueing shares no resource with the center, so
        # nothing else orders the two.
        with tf.control_dependencies(folded), tf.device(ps.devices[0]):
            when(complete, release)
            if self.backup_workers:
                late = tf.cast(~fresh, tf.int32)
                seat.tokens.enqueue_many([tf.ones([late], tf.bool)])


def when(condition: Any, action: Callable[[], None]) -> Any:
    """Build `action` to run only if `condition` holds; the returned tensor is there when it has run.

    A control edge from a `tf.cond` does not wait for what its branches do to variables; an edge from a tensor
    made of its output does.
    """
    import tensorflow as tf

    def act() -> Any:
        action()
        return tf.constant(True)  # inside a function, a result waits for everything that was built before it

    return tf.identity(tf.cond(condition, act, lambda: tf.constant(False)))


@dataclass(frozen=True)
class Alone:
    """One worker without a ps: its parameters are the center, and nothing is exchanged."""

    synchronous = True

    def check(self, workers: int) -> None:
        """Exactly one worker."""
        if workers != 1:
            raise UserError(f"this algorithm runs in one process: use --workers 1. Received: workers={workers}")

    def variables(self, ps: ParameterServer) -> None:
        """Nothing."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Never called."""
        raise NotImplementedError("a worker alone exchanges nothing")
