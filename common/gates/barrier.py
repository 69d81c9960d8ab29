"""A barrier: all wait for all, or for all but a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UserError, at_least
from .gate import Gate, ParameterServer, Seat
from .ops import when


@dataclass(frozen=True)
class Barrier(Gate):
    """A strict barrier: the mean of one message of each of `workers - backup_workers` workers, then all go on.

    The message that completes the set applies the update and puts one token into the own queue of every worker
    that waits. A message computed on an older version is dropped, and its worker goes on at once.

    A run makes as many updates as a worker has rounds, and ends with the last. Whoever is behind then, because messages
    were dropped or because it was away, leaves: what it could still send would be dropped, or be all of an update.
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

        from .ops import queue

        with tf.device(ps.devices[0]):
            ps.arrived = tf.Variable(tf.zeros([ps.num_workers], tf.bool), name="arrived")
            ps.tokens = [queue(f"token_{k}") for k in range(ps.num_workers)]
        for part in ps.slices:
            with tf.device(part.device):
                part.inbox = tf.Variable(tf.zeros_like(part.initial), name=f"inbox_{part.index}")
                part.reply = tf.Variable(part.initial, name=f"reply_{part.index}")

    def complete(self, ps: ParameterServer) -> Any:
        """The last version has been reached."""
        return Gate.complete(self, ps) if ps.last_version is None else ps.read_version() >= ps.last_version

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Arrive; the last one folds; wait for the token; read the reply."""
        import tensorflow as tf

        parts = ps.receive(message)
        with ps.event(seat, parts) as arrival:
            self._arrive(ps, seat, parts)
        with tf.control_dependencies([arrival.released]), tf.device(ps.devices[0]):
            token = seat.tokens.dequeue()
        # With backup workers the others may fold again while this one reads, so it reads under the lock.
        with ps.lock(after=[token]) if self.backup_workers else tf.control_dependencies([token]):
            ps.note_pull(seat)
            replies = ps.each_slice(lambda part, _: tf.identity(part.reply))
        return ps.concat(replies)

    def _arrive(self, ps: ParameterServer, seat: Seat, parts: list[Any]) -> None:
        """Under the lock: add a fresh message to the sums; if it is the last one needed, fold."""
        import tensorflow as tf

        with tf.device(ps.devices[0]):
            version = ps.read_version()
            staleness = ps.staleness(version, seat)
            fresh = tf.equal(staleness, 0)
            with tf.control_dependencies([ps.record(version, seat, staleness, accepted=fresh)]):
                arrived = tf.raw_ops.ResourceScatterUpdate(
                    resource=ps.arrived.handle, indices=seat.index, updates=fresh
                )

        def arrive_at(part: Any, u: Any) -> Any:
            if self.backup_workers:
                u = tf.where(fresh, u, tf.zeros_like(u))
            return part.inbox.assign_add(u)

        with tf.control_dependencies([arrived]):
            inboxes = ps.each_slice(arrive_at, parts)
        with tf.control_dependencies(inboxes):
            self._close_set(ps, fresh, version)
        if self.backup_workers:
            with tf.device(ps.devices[0]):
                late = tf.cast(~fresh, tf.int32)
                seat.tokens.enqueue_many([tf.ones([late], tf.bool)])

    def _close_set(self, ps: ParameterServer, possible: Any, version: Any) -> None:
        """Under the lock: if all that are needed have arrived, fold the mean of their messages and let all go."""
        import tensorflow as tf

        with tf.device(ps.devices[0]):
            arrived, active = ps.arrived.read_value(), ps.active.read_value()
            needed = tf.maximum(ps.count(active) - self.backup_workers, 1)
            complete = possible & (ps.count(arrived & active) >= needed)
            waiting = tf.cast(arrived, tf.int32)
            messages = tf.cast(ps.count(arrived), tf.float32)

        def fold(part: Any) -> None:
            reply = ps.merge(part, part.inbox / messages, tf.constant(0.0), version)
            if reply is part.center and not self.backup_workers:
                part.reply = part.center  # nobody can change it before everybody has read it: no copy needed
            else:
                part.reply.assign(reply)
            part.inbox.assign(tf.zeros_like(part.inbox))

        folded = ps.each_slice(lambda part, _: when(complete, lambda: fold(part)))

        def release() -> None:
            with tf.control_dependencies([ps.count_updates(1)]):
                if self.backup_workers:  # at the end nobody waits for those who are late
                    ps.active.assign(active & (arrived | ~self.complete(ps)))
                cleared = ps.arrived.assign(tf.zeros([ps.num_workers], tf.bool))
            with tf.control_dependencies([cleared]):  # a released worker must see the new version
                for k, tokens in enumerate(ps.tokens):
                    tokens.enqueue_many([tf.ones([waiting[k]], tf.bool)])

        # No token before every slice has its update: enqueueing shares no resource with the center, so
        # nothing else orders the two.
        with tf.control_dependencies(folded), tf.device(ps.devices[0]):
            when(complete, release)

    def rejoin(self, ps: ParameterServer, seat: Seat) -> Any:
        """Tokens for whoever sat here before are void. True if its message is in a set that is not complete."""
        import tensorflow as tf

        void = seat.tokens.dequeue_many(seat.tokens.size())
        with tf.control_dependencies([void]):
            return ps.arrived.read_value()[seat.index]

    def recall(self, ps: ParameterServer) -> list[Any]:
        """A token for everybody; whoever goes on is refused, and joins again."""
        return [tokens.enqueue(True) for tokens in ps.tokens]

    def expel(self, ps: ParameterServer, seat: Seat) -> Any:
        """The worker in that seat has waited long enough: go on without the absent, if enough are left.

        Returns who was expelled, [W] booleans; they are back when they join again.
        """
        import tensorflow as tf

        with ps.exclusive(), tf.device(ps.devices[0]):
            arrived, active = ps.arrived.read_value(), ps.active.read_value()
            expelled = active & ~arrived & arrived[seat.index]
            enough = ps.count(active & ~expelled) >= ps.min_workers
            return self._go_on_without(ps, expelled & enough)

    def leave(self, ps: ParameterServer, seat: Seat) -> Any:
        """The worker in that seat has done all its rounds: nobody waits for it any more."""
        import tensorflow as tf

        with ps.exclusive(), tf.device(ps.devices[0]):
            return self._go_on_without(ps, ps.only(seat))

    def _go_on_without(self, ps: ParameterServer, expelled: Any) -> Any:
        import tensorflow as tf

        with tf.device(ps.devices[0]):
            gone = [ps.active.assign(ps.active & ~expelled), ps.revoke(expelled)]
            with tf.control_dependencies(gone):
                self._close_set(ps, tf.constant(True), ps.read_version())
            return tf.identity(expelled)
