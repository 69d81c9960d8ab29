"""Gates: who waits for whom on the parameter server. A gate builds one exchange, push to reply, into the graph.

An exchange is one atomic event whatever the number of ps tasks. The lock lives on the first ps task and is taken
after the whole message has arrived, so it is never held while a message travels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import UserError, at_least

if TYPE_CHECKING:
    from .parameter_server import ParameterServer, Seat
    from .scheme import Event


class Gate:
    """Who waits for whom. The defaults: an exchange of one message with the parameter server, for any workers."""

    synchronous: ClassVar[bool] = False
    uses_ps: ClassVar[bool] = True

    def check(self, workers: int) -> None:
        """Raise `UserError` if this gate cannot work with so many workers."""

    def variables(self, ps: ParameterServer) -> None:
        """Make what the gate keeps on the ps."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Push `message` [P] of the worker in that seat and return the reply [P]."""
        raise NotImplementedError(f"{type(self).__name__} exchanges nothing")

    def push(self, ps: ParameterServer, seat: Seat, message: Any) -> None:
        """Push without waiting for a reply; only schemes with such rounds need it."""
        raise NotImplementedError(f"{type(self).__name__} cannot push without a reply")

    def gather(self, ps: ParameterServer, seat: Seat, indices: Any) -> Any:
        """Read some coordinates of the center; only schemes for sparse problems need it."""
        raise NotImplementedError(f"{type(self).__name__} reads the whole center")

    def complete(self, ps: ParameterServer) -> Any:
        """True once the run has made its last update: nobody is admitted any more. Here it ends with its workers."""
        import tensorflow as tf

        return tf.constant(False)

    def rejoin(self, ps: ParameterServer, seat: Seat) -> Any:
        """Under the lock: a worker takes its seat. True if its last message still waits for others there."""
        import tensorflow as tf

        return tf.constant(False)

    def recall(self, ps: ParameterServer) -> list[Any]:
        """Operations that wake whoever waits: the state has been restored."""
        return []

    def share_state(self, ps: ParameterServer, seat: Seat, state: Any) -> Any:
        """Let the evaluator see the worker's non-trainable state [S]; returns what the worker goes on with."""
        ps.store_state(seat, state)
        return state

    def traffic(self, workers: int) -> tuple[float, float]:
        """Vectors that a recorded exchange moves, towards the center and back."""
        del workers
        return 1, 1


@dataclass(frozen=True)
class Async(Gate):
    """Nobody waits: each message is folded when it arrives, under the lock."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Lock; staleness; update; version + 1; read the reply; unlock."""
        parts = ps.receive(message)
        with ps.event(seat, parts):
            replies = _fold(ps, seat, parts)
            ps.note_pull(seat)
        return ps.concat(replies)

    def push(self, ps: ParameterServer, seat: Seat, message: Any) -> None:
        """The same without the reply."""
        parts = ps.receive(message)
        with ps.event(seat, parts):
            _fold(ps, seat, parts, "push")

    def gather(self, ps: ParameterServer, seat: Seat, indices: Any) -> Any:
        """Lock; read; unlock."""
        return ps.gather(seat, indices, locked=True)


@dataclass(frozen=True)
class Unlocked(Gate):
    """Hogwild: no lock at all. Reads may mix versions, and the recorded versions are approximate."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Update in place and read, with nothing to keep others out."""
        with self._arrived(ps, message) as parts:
            replies = _fold(ps, seat, parts, locked=False)
            ps.note_pull(seat)
        return ps.concat(replies)

    def push(self, ps: ParameterServer, seat: Seat, message: Any) -> None:
        """Update in place."""
        with self._arrived(ps, message) as parts:
            _fold(ps, seat, parts, "push", locked=False)

    def gather(self, ps: ParameterServer, seat: Seat, indices: Any) -> Any:
        """Read, whatever others are writing."""
        return ps.gather(seat, indices, locked=False)

    @contextmanager
    def _arrived(self, ps: ParameterServer, message: Any) -> Iterator[list[Any]]:
        """What is built inside happens once the message is there: the staleness too is taken then, not earlier."""
        import tensorflow as tf

        parts = ps.receive(message)
        with tf.control_dependencies(tf.nest.flatten(parts, expand_composites=True)):
            yield parts


def _fold(
    ps: ParameterServer, seat: Seat, parts: list[Any], event: Event = "exchange", locked: bool = True
) -> list[Any]:
    """The event of an asynchronous scheme: recorded, every slice updated, the version counted."""
    import tensorflow as tf

    version = ps.read_version()
    staleness = ps.staleness(version, seat)
    with tf.control_dependencies([ps.record(version, seat, staleness, accepted=True, event=event, locked=locked)]):
        replies = ps.update(parts, staleness, version, seat)
        ps.count_updates(1)
    return replies


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

        from .parameter_server import queue

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
class Alone(Gate):
    """One worker without a ps: its parameters are the center, and nothing is exchanged."""

    synchronous = True
    uses_ps = False

    def check(self, workers: int) -> None:
        """Exactly one worker."""
        if workers != 1:
            raise UserError(f"this algorithm runs in one process: use --workers 1. Received: workers={workers}")

    def traffic(self, workers: int) -> tuple[float, float]:
        """None."""
        del workers
        return 0, 0


@dataclass(frozen=True)
class AllReduce(Barrier):
    """No ps: every worker gets the mean of all messages from TensorFlow's ring all-reduce.

    The center is the parameters of worker 0, which keeps the record too. As threads, the workers have one memory: there
    the reduction is a sum in it, behind a barrier.
    """

    uses_ps = False

    def variables(self, ps: ParameterServer) -> None:
        """What a barrier needs, for threads."""
        if ps.in_process:
            super().variables(ps)

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """The mean message."""
        import tensorflow as tf

        if ps.in_process:
            return super().exchange(ps, seat, message)
        mean = self._mean(ps, seat, message)
        if seat.index == 0:
            with tf.control_dependencies([mean]):
                for k in range(ps.num_workers):
                    ps.record(ps.read_version(), replace(seat, index=k), 0, accepted=True, locked=False)
                ps.count_updates(1)
        return mean

    def rejoin(self, ps: ParameterServer, seat: Seat) -> Any:
        """As at a barrier for threads; nobody waits on the center elsewhere."""
        return super().rejoin(ps, seat) if ps.in_process else Gate.rejoin(self, ps, seat)

    def recall(self, ps: ParameterServer) -> list[Any]:
        """Threads wait for tokens."""
        return super().recall(ps) if ps.in_process else []

    def share_state(self, ps: ParameterServer, seat: Seat, state: Any) -> Any:
        """The mean over the workers; nobody but worker 0 may touch its variables in the middle of a reduction."""
        import tensorflow as tf

        if ps.in_process:
            return super().share_state(ps, seat, state)
        mean = self._mean(ps, seat, state)
        if seat.index == 0:
            ps.states.assign(tf.tile(mean[None], [ps.num_workers, 1]))
        return mean

    def _mean(self, ps: ParameterServer, seat: Seat, vector: Any) -> Any:
        import tensorflow as tf

        if ps.num_workers == 1:
            return vector
        return tf.raw_ops.CollectiveReduce(
            input=vector,
            group_size=ps.num_workers,
            group_key=1,
            instance_key=next(seat.collectives),
            merge_op="Add",
            final_op="Div",
            subdiv_offsets=[0],
            communication_hint="ring",
        )

    def traffic(self, workers: int) -> tuple[float, float]:
        """In a ring everyone sends (W - 1)/W of a vector twice: to reduce, and to gather."""
        return (workers - 1) / workers, (workers - 1) / workers
