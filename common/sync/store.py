"""Messages, slots, and the interface of the parameter server for synchronization rules.

A rule gets the server, a `server.parameter_server.ParameterServer`, as `ps: Store`. The center [P] is cut into slices,
one for each ps task. Operations on the first ps task are built in `with tf.device(ps.devices[0])`, operations on each
slice in `each_slice`.

    num_workers         W
    min_workers         the number of workers with which a rule continues if the others do not join
    last_version        rounds of the worker with the most, after which a barrier ends the run; None if not known
    in_process          True if all workers are threads of this process
    can_lose            True if this run may continue without some of its workers, and there is no ps
    multiples           versions of the center of which snapshots are taken, `every` and `number`; None if none are
    devices             one device for each ps task; version, lock, record and all [W] variables are on the first
    scheme              the algorithm
    variables           the rule's `variables`, as attributes
    quorums             a queue with a token for each set that has enough messages, if the rule has a time of grace
    event(slot, slices, has_room)           context: one atomic event of this worker, which may bring a message. It is
                                            refused if the message is not finite, unless `has_room()` is true then,
                                            comes after the last update, or is not from the holder of the slot. Of its
                                            value, `released` is ready once the lock is free again; with `has_room`,
                                            `finite` tells whether the message is
    check(slices)                           refuse a message that is not finite, where no `event` does; returns a tensor
                                            that the update must follow
    apply(slot, slices, event, locked)      make an asynchronous update: record it, merge it into every slice, count it;
                                            returns the replies
    gather(slot, indices, locked)           some coordinates of the center; if `locked`, all of one version
    share(reply)                            a slice of a reply for several workers: the same object, or a copy in memory
                                            that all of them read
    wake(flags)                             send a token to every worker in `flags` [W]; in an event, these workers are
                                            released at its time
    clock()                                 the time at which the control inputs have run: microseconds since 1970
    when(condition, action, otherwise)      run `action` if a scalar holds; returns a tensor that is ready afterwards

`ps.transactions`, the lock:

    exclusive()                             context: one atomic event that is no worker's message
    lock(after)                             context: reads that see one consistent state, once `after` is ready
    holds(slot)                             True if the caller has the slot: no other process has joined as this worker

`ps.center`, in the order in which rules use it:

    slices              those of the center, with `index`, `device`, `center`, `initial` (its first value), `no_message`
                        (zeros like the slices that `receive` returns), the scheme's global variables, and the rule's
                        `slice_variables`
    pulled              the version that each worker has pulled last, [W]
    receive(slot, message)                  the slot with the times of the round, and the message as slices, which have
                                            arrived on the ps tasks; called before the lock, not under it. A rule that
                                            adds up or divides messages does the same to their scalars
    read_version()                          the number of updates that the center has had
    staleness(version, slot)                updates between this worker's last pull and `version`; without a lock an
                                            estimate
    each_slice(build, values)               `build(slice, value)` for each slice, built on its device
    weighted(part, message, staleness, slot)                a slice with the weight that the scheme gives it in a set
    merge(part, message, staleness, version, slot)          apply the scheme's rule to one slice, for a message of the
                                                            worker in `slot` or of a set; returns the reply
    count_updates(number)                   add to the version, and return it
    note_pull(slot)                         record that this worker has pulled the present center
    reply(replies, slot)                    a reply to that worker as one vector [P] on the caller's device
    after_update(version, clock, state)     without a ps: update the average, and take a snapshot if one is due

`ps.journal`, the record:

    rounds_applied      recorded rounds of each worker, [W]
    released            times at which the rule has released the last message of each worker, [W], if it `waits`
    record(version, slot, staleness, accepted, event, locked)       append one event; returns the operation
    record_rounds(version, times, present)  append consecutive rounds of all workers together, see `server.journal`
    count_refused(slot, number)             count messages of this worker that were not finite
    skip_rounds(number)                     count so many rounds of each worker, [W], as applied without a record

`ps.slots`, the workers:

    active              flags [W] of the workers whose messages the rule expects
    finished            flags [W] of the workers that have done all their rounds
    states              the workers' non-trainable states, [W, S]
    close_slots(flags)                      make the workers in `flags` [W] inactive; they are refused until they join
    write(variable, slot, value)            write this worker's row of a variable [W, ...] on the first ps task
    store_state(slot, state)                write this worker's row of `states`
    only(slot)                              flags [W] that are True for this worker alone
    count(flags)                            the number of flags that are set
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ..lazy import tf

Event = Literal["exchange", "push", "pull"]  # how a round ends; an exchange is a push and its reply

Tensor = Any  # a tf.Tensor or tf.Variable; TensorFlow ships no types

Store = Any  # the parameter server; its module is above this one

TOKENS = "own_tokens"  # name in a worker's graph of the queue on which it waits


def token_of(worker: int) -> str:
    """Return the shared name of that queue."""
    return f"token_{worker}"


class Message(NamedTuple):
    """A message of a worker, or a slice of it on one ps task.

    `tf.nest.map_structure` applies a function to both parts.
    """

    vector: Tensor  # [P], or [n] of a slice
    scalars: Tensor = ()  # the numbers that the scheme names, [m], whole with each slice; () if it names none


@dataclass(frozen=True)
class WorkerSlot:
    """The slot of one worker on the ps, held by the process that joined last as this worker.

    Attributes:
        index: number of the worker, an integer or a scalar on the first ps task.
        device: device of the first ps task.
        tokens: the queue of the worker's tokens on that device.
        incarnation: incarnation of the holder, [2]: its number, given when it joined, and a 1. Others are refused.
        encoder: encoder of the holder's messages, see `messages.encoder`; None for a sender that is no worker.
        codecs: codecs of the message and of the reply, of a round; None outside of rounds, and where there is no ps.
        mail: queues to and from the other workers, see `messages.channels`, or the parameters of all, see
            `messages.copies`; for rules without a parameter server.
        times: times of the round whose message is sent, [4], see `server.trace`; None outside of rounds.
        round: rounds of the worker before this one; for rules without a parameter server.
    """

    index: Any
    device: str
    tokens: Any
    incarnation: Tensor
    encoder: Any = None
    codecs: tuple[Any, Any] | None = None
    mail: Any = None
    times: Tensor = None
    round: Tensor = None

    def sleep(self, after: Sequence[Tensor] = ()) -> Tensor:
        """Wait for a token; returns it. Never called under the lock."""
        with tf.control_dependencies(after), tf.device(self.device):
            return self.tokens.dequeue()

    def wake(self, condition: Tensor) -> None:
        """Send a token to this worker if the scalar `condition` holds."""
        with tf.device(self.device):
            self.tokens.enqueue_many([tf.ones([tf.cast(condition, tf.int32)], tf.bool)])

    def forget_tokens(self) -> Tensor:
        """Delete the tokens that the worker has not taken."""
        with tf.device(self.device):
            return self.tokens.dequeue_many(self.tokens.size())


def parts_of(vector: Tensor) -> list[Tensor]:
    """Return the vectors of which a vector [n] is the concatenation; none if it is no concatenation."""
    is_joined = tf.is_symbolic_tensor(vector) and vector.shape.rank == 1 and vector.op.type == "ConcatV2"
    return list(vector.op.inputs)[:-1] if is_joined else []
