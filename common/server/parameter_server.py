"""The parameter server: the global variables of a run, and the atomic events on them.

Every task builds the same graph of the variables; TensorFlow's runtime shares them by name. `ParameterServer` composes
parts with one concern each, and has the events that concern several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..errors import UserError
from ..messages.cut import Cut
from ..messages.ops import clock, is_finite, queue, when
from ..sync.store import Event, Message, WorkerSlot
from .answers import Joined
from .center import Center
from .journal import Journal
from .local_copies import LocalCopies
from .persistence import Persistence
from .region import regions_of
from .slots import Slots
from .snapshots import Multiples, SnapshotBuffer
from .trace import UNKNOWN
from .transaction import CLEAN, Transactions


class ParameterServer:
    """Global variables and events, built into the current graph. Synchronization rules see it as `sync.store` says.

    Args:
        center: the center.
        state_size: S, the length of the model's non-trainable float state (batch normalisation), as one vector.
        last_version: rounds of the worker with the most, after which a barrier ends the run; None if a schedule
            or a script decides.
        in_process: True if all workers are threads of this process.
        min_workers: number of workers with which a synchronization rule continues if the others do not join; default W.
        multiples: versions of the center of which snapshots are taken; none if not given.

    Attributes:
        transactions: the lock and the admission of workers.
        center: slices and versions.
        journal: the event log.
        slots: flags, tokens and states of the workers.
        local_copies: copies of the workers' local states.
        regions: the servers of regions that have ps tasks of their own.
        persistence: save and restore of checkpoints.
        variables: the synchronization rule's variables, by name.
    """

    def __init__(
        self,
        center: Center,
        *,
        state_size: int,
        last_version: int | None,
        in_process: bool = False,
        min_workers: int | None = None,
        multiples: Multiples | None = None,
    ):
        self.center, self.client, self.num_workers = center, center.client, center.num_workers
        self.scheme = scheme = center.scheme
        self.in_process, self.last_version = in_process, last_version
        self.min_workers = self.num_workers if min_workers is None else min_workers
        # Processes alone can be lost.
        self.can_lose = scheme.sync.can_lose and not in_process and self.min_workers < self.num_workers
        self.devices = center.ps_devices
        with tf.device(self.client.device):  # fed once; initial value of all copies of the model's state
            self.initial_state = tf.compat.v1.placeholder(tf.float32, [state_size], name="initial_state")
        self.transactions = transactions = Transactions(self.devices[0], self.num_workers, center.version)
        self.journal = journal = Journal(transactions, scheme.sync.waits)
        self.slots = slots = Slots(transactions, self.devices, self.initial_state, scheme.sync.waits)
        self.local_copies = LocalCopies(transactions, journal, slots)
        center.apart = not in_process
        self.multiples = multiples

        with tf.device(self.devices[0]):
            values = scheme.sync.variables(self)
            self.quorums = queue("quorums") if scheme.sync.grace else None
            self.variables = SimpleNamespace(**{name: tf.Variable(value, name=name) for name, value in values.items()})
        self.consensus = self.variables.consensus if scheme.sync.gossips else None
        if multiples is not None:
            center.snapshots = SnapshotBuffer(multiples, center.slices, slots.states, self.consensus)
        center.add_variables(lambda part: scheme.sync.slice_variables(self, part))
        self.regions = regions_of(center, journal, self.share)
        self.initialize = tf.group(*(v.initializer for v in tf.compat.v1.global_variables()))
        single = journal.saved | slots.saved
        saved = center.saved | {name: [variable] for name, variable in single.items()}
        saved |= {
            f"regions.{name}": [of.saved[name] for of in self.regions] for of in self.regions for name in of.saved
        }
        saved |= _of_sync(scheme, vars(self.variables), saved)
        self.persistence = Persistence(saved, self.devices, transactions, journal, slots, self.client)

    when, clock = staticmethod(when), staticmethod(clock)  # for the rules, whose folder is below that of `messages`

    def check(self, slices: Sequence[Message]) -> Any:
        """Refuse a message that is not finite; returns a tensor that its update must follow."""
        return self.transactions.check(self.center.each_slice(lambda _, u: is_finite(u), slices))

    def share(self, reply: Any) -> Any:
        """Return a slice of a reply for several workers: the same, or a copy in memory that all of them read."""
        # An encoded reply is another tensor: sharing the plain one is of no use.
        plain = self.scheme.in_coordinates and not self.center.encodes_replies
        return self.center.transport.share(reply) if plain else reply

    @contextmanager
    def event(
        self, slot: WorkerSlot, slices: Sequence[Message] = (), has_room: Callable[[], Any] | None = None
    ) -> Iterator[Any]:
        """Lock for a worker's request, with a message in `slices` if any; refused if the message cannot be merged.

        Args:
            slot: slot of the worker.
            slices: the slices of its message.
            has_room: builds a flag under the lock, True if a message that is not finite can be merged.

        Yields:
            an object with `released`, see `Transactions.lock`, and, with `has_room`, `finite`: True if the message is.
        """
        checked = slices and self.scheme.sync.uses_ps  # without a ps, workers check the mean of all messages
        finite = self.center.each_slice(lambda _, u: is_finite(u), slices) if checked else []
        with tf.device(self.devices[0]):  # the times have to arrive before the lock is taken
            arrived = [*slices, *finite] if slot.times is None else [*slices, *finite, tf.identity(slot.times)]
            fine = None if has_room is None else tf.reduce_all(finite)

        def conditions() -> list[Any]:
            fits = finite if has_room is None else [fine | has_room()]
            return [~self.scheme.sync.complete(self), *fits]

        with self.transactions.event(slot, arrived, conditions) as held:
            held.finite = fine
            yield held

    def apply(
        self, slot: WorkerSlot, slices: Sequence[Message], event: Event = "exchange", locked: bool = True
    ) -> list[Any]:
        """Build a whole asynchronous update: log it, merge it into every slice, count it.

        Args:
            slot: slot of the sender.
            slices: the slices of its message, on the ps tasks.
            event: `exchange`, or `push`, whose reply is not read.
            locked: True if the caller holds the lock.

        Returns:
            the slices of the reply, on the ps tasks.
        """
        version = self.center.read_version()
        staleness = self.center.staleness(version, slot)
        with tf.device(self.devices[0]):
            lateness = tf.cast(staleness, tf.float32)
            accepted = self.scheme.sync.accepts(staleness)
        with tf.control_dependencies([self.journal.record(version, slot, staleness, accepted, event, locked)]):
            return self.center.apply(slot, slices, lateness, version, accepted, replies=event != "push")

    # Events besides rounds.

    def pull(self, slot: WorkerSlot) -> Any:
        """Read the center, as an event of the worker."""
        with self.event(slot):
            version = self.center.read_version()
            staleness = self.center.staleness(version, slot)
            noted = self.journal.record(version, slot, staleness, accepted=False, event="pull")
            with tf.control_dependencies([noted]):  # read the center after the logged time, not before it
                self.center.note_pull(slot)
                slices = self.center.read()
        return self.center.bring(slices)

    def gather(self, slot: WorkerSlot, indices: Any, locked: bool) -> Any:
        """Read some coordinates of the center; with `locked`, all at one version."""
        cut = Cut(indices, self.center.sizes)
        slices = self.center.each_slice(lambda _, i: tf.identity(i), cut.indices)
        with self.transactions.lock(after=slices) if locked else nullcontext():
            self.center.note_pull(slot)
            values = self.center.each_slice(lambda part, i: tf.gather(part.center, i), slices)
        return cut.join(values)

    def join(self, slot: WorkerSlot, recorded: Any) -> tuple[Any, Any, Joined]:
        """Give a worker its slot, for the first time or again; requests of its previous holder are refused from now on.

        Args:
            slot: slot of the worker.
            recorded: False if the join is not logged. It is not logged either if the worker resumes from a local copy.

        Returns:
            the center, [P]; the worker's non-trainable state, [S]; the answer.
        """
        transactions = self.transactions
        with transactions.lock([], transactions.check_clean, lambda: transactions.mark(CLEAN)):
            with tf.device(self.devices[0]):
                waits = self.scheme.sync.rejoin(self, slot)
                version, rounds = self.center.read_version(), self.journal.rounds_applied.read_value()[slot.index]
                self.slots.take(slot)
                self.slots.write(self.journal.ended, slot, tf.fill([2], tf.constant(UNKNOWN, tf.int64)))
                copied, request = self.local_copies.join(slot, rounds)
                is_logged = recorded & (version > 0) & ~copied
                when(is_logged, lambda: self.journal.record(version, slot, 0, accepted=False, event="join"))
                state = self.slots.states[slot.index]
                restoration, stopping = self.journal.restored[0], self.is_ending()
                joined = Joined(rounds, waits, restoration, stopping, copied, version, request)
            self.center.note_pull(slot, unless=copied)  # a worker that resumes from a copy keeps its older center
            slices = self.center.read()
        return self.center.bring(slices), state, joined

    def refuse(self, slot: WorkerSlot) -> Any:
        """Drop a message that was not finite for good, and count its round as done."""
        with self.event(slot), tf.device(self.devices[0]):
            self.journal.count_refused(slot, tf.constant(1, tf.int64))
            self.journal.record(self.center.read_version(), slot, 0, accepted=False)
        return tf.constant(True)

    def wake(self, flags: Any) -> None:
        """Send a token to every worker in `flags` [W]; in an event, note the time of their release."""
        # Note the time of the release before the tokens are sent. Otherwise a worker could have its reply first.
        with tf.control_dependencies(self.journal.note_release(flags)):
            self.slots.wake(flags)

    def finish(self, slot: WorkerSlot, ended: Any) -> Any:
        """Mark a worker as finished, with `computed` and `replied` of its last round, unless it has lost its slot.

        Worker 1 is taken for dead and started again. The end of the old process must not end the slot of the new one.
        """
        with self.transactions.lock([]) as held, tf.device(self.devices[0]):
            holds_slot = self.transactions.holds(slot)
            self.journal.finish(slot, ended, holds_slot)
            self.slots.write(self.slots.finished, slot, holds_slot | tf.gather(self.slots.finished, slot.index))
        return held.released

    def is_ending(self) -> Any:
        """Return True if workers shall leave: the run was stopped, or its last update has been made."""
        with tf.device(self.devices[0]):
            return self.slots.stopping | self.scheme.sync.complete(self)

    def stop(self) -> Any:
        """Stop the run: refuse all messages, also in regions; the caller then wakes the workers that wait."""
        with tf.control_dependencies([self.slots.stop()]):  # first: a worker that is refused reads there why
            closed = [region.close() for region in self.regions]
        with tf.control_dependencies(closed):
            return tf.identity(True)

    def wake_all(self) -> Any:
        """Wake all workers that wait for others."""
        self.scheme.sync.wake(self)
        return tf.constant(True)

    def check_clean(self) -> Any:
        """Return the version; refused if the state is dirty."""
        with self.transactions.clean():
            return self.center.read_version()

    def snapshot(self) -> dict[str, Any]:
        """Read under one lock: version (`at`), state (mean over the workers), the slices of `vectors`, `refused`.

        Of workers that gossip also the `consensus` distance.
        """
        center = self.center
        names = ["center"] if center.ema_decay is None else ["center", "average"]
        with self.transactions.clean():
            version, vectors = center.read_version(), {name: center.sent(center.read(name)) for name in names}
            with tf.device(self.devices[0]):
                state, refused = tf.reduce_mean(self.slots.states, 0), self.journal.refused.read_value()
                more = {} if self.consensus is None else {"consensus": self.consensus.read_value()}
        return {"at": version, "state": state, "vectors": vectors, "refused": refused, **more}


def _of_sync(scheme: Scheme, variables: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the rule's variables for a checkpoint, by name; `UserError` if the engine has one of that name."""
    if clashing := variables.keys() & saved.keys():
        raise UserError(
            f"{scheme.name}: the engine has variables with names of the synchronization rule: rename "
            f"{', '.join(sorted(clashing))} in the rule"
        )
    return {name: [variable] for name, variable in variables.items()}
