"""The base of all synchronization rules, which an algorithm names as `sync`.

A rule builds one exchange, from push to reply, into the graph. Whatever the number of ps tasks, an exchange is one
atomic event: `ps.event` takes the lock after the whole message has arrived, so no lock is held while a message travels.

To write your own rule, in a file of your own (`--import my_rule.py`): derive from `Async` if no worker waits, else from
`Synchronization` with `waits = True`, and write `exchange`, `awaited` and `release`; `bounded.py` is an example.

Two engines use the rules: one of TensorFlow graphs, and one in virtual time, which has no graphs. Both read in plain
Python which workers wait: `set_size` or `lead`. The rules of this folder build their graphs from them. The engine in
virtual time refuses a rule that overrides other methods, unless the rule declares with `simulated` that these leave
unchanged which workers wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from ..errors import UserError
from ..lazy import tf
from .store import Event, Message, Store, Tensor, WorkerSlot

__all__ = ["Event", "Message", "Store", "Synchronization", "WorkerSlot"]

RULE = {"set_size", "lead"}  # the methods that say which workers wait

Kind = Literal["alone", "server", "regions", "collective", "gossip", "pairs"]

# What follows from `kind`, with a kind for which it is not as in the base.
FOLLOWS = {
    "exchanges": "alone",
    "uses_ps": "collective",
    "gossips": "gossip",
    "can_lose": "gossip",
    "in_pairs": "pairs",
    "in_regions": "regions",
}

# Methods that a rule may override and stay `simulated`: they change no exchange.
BESIDES = {"updates_per_round", "check", "traffic", "label", "is_collective"}


class Synchronization:
    """A synchronization rule. By default each worker exchanges messages with the parameter server and never waits.

    Attributes:
        waits: True if workers wait for each other's messages. Then a call may take as long as the slowest worker, and
            a worker that has waited too long names the workers that are missing.
        kind: with whom a worker exchanges messages. Without a parameter server worker 0 holds the record, and the
            center, unless workers gossip: then the center is the mean of the workers.

            * `alone`: a single worker, which exchanges nothing (`Alone`);
            * `server`: with the parameter server;
            * `regions`: with the server of its region, on a ps task of its own (`InRegions`);
            * `collective`: with all other workers (`Collective`);
            * `gossip`: with its neighbours. A run may continue without some of its workers (`Gossip`);
            * `pairs`: with one neighbour at a time, without a wait (`Pairs`). A worker answers the others at any
              time, also after its last round, so workers cannot stand still together, for a checkpoint or for a
              snapshot of one version.
        label: the name of the rule in the catalogue.
        topology: the graph of the workers (`Gossip`, `Pairs`); empty where there is none.
        buckets: number of parts in which a message leaves, each as soon as it is known; see `Collective`.
        late: with `set_size`, `drop` if a message computed on an older version is dropped, `count` if it is part of the
            next set.
        grace: with `set_size`, the seconds for which a set with that many messages stays open for those of the other
            workers; it closes at once when it has those of all active workers.
        outliers: with `set_size`, the share of the messages of a set that the rule of the server leaves out: so many of
            them may not be finite. The rule sees all in the scheme's variables of each worker; its message is the mean
            of the finite ones. For more that are not finite see `Recovery.on_nan`.
        messages_per_update: number of messages that make one update where each is merged when it arrives, see `Async`.
        warm_start: number of updates that worker 0 makes alone before the others start.
        cancel_late: True if a worker stops its computation as soon as its message could only be dropped, and begins
            anew from the newest center, in virtual time and in a `Group`; the event log has a pull in place of the
            message. Processes and threads refuse it: no worker looks within a step.
        simulated: True if the simulation treats messages as this synchronization rule does: a message is applied when
            it arrives, and the reply is the newest center as soon as `lead` lets the worker continue; or, with
            `set_size`, the mean of a set of messages is applied, and the new center is the reply to all of them.
            Implied by a class that overrides `set_size` or `lead`.
    """

    kind: ClassVar[Kind] = "server"
    waits: ClassVar[bool] = False
    label: ClassVar[str] = "asynchronous"
    topology: str = ""
    buckets: int = 1
    late: Literal["drop", "count"] = "drop"
    grace: float = 0.0
    outliers: float = 0.0
    messages_per_update: int = 1
    warm_start: int = 0
    cancel_late: bool = False
    simulated: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Set `simulated` unless the class declares it: False if the class has methods that may change an exchange.

        Raises:
            UserError: the class sets what follows from its kind, or has an unknown kind.
        """
        attributes = vars(cls)
        for name in FOLLOWS.keys() & attributes.keys():
            raise UserError(
                f"class {cls.__name__}: {name} follows from the kind of a synchronization rule: leave it out, and "
                f'declare the kind, as in kind = "{FOLLOWS[name]}". Received: {name}={attributes[name]!r}'
            )
        if cls.kind not in get_args(Kind):
            raise UserError(
                f"class {cls.__name__}: kind must be one of {', '.join(get_args(Kind))}. Received: kind={cls.kind!r}"
            )
        if "simulated" not in attributes:
            methods = {name for name, value in attributes.items() if callable(value) or isinstance(value, property)}
            changes = any(name not in BESIDES and not name.startswith("__") for name in methods)
            cls.simulated = bool(RULE & attributes.keys()) or (cls.simulated and not changes)

    def updates_per_round(self, workers: int) -> float:
        """Return the number of updates that one round of all workers makes; learning-rate schedules divide by it."""
        return workers

    def most_left_out(self, messages: int) -> int:
        """Return how many of the messages of a set are outliers: fewer than half of them."""
        return max(0, min(int(self.outliers * messages + 1e-9), (messages - 1) // 2))

    def check(self, workers: int) -> None:
        """Raise `UserError` if this synchronization rule cannot work with this number of workers."""

    def traffic(self, workers: int) -> tuple[float, float]:
        """Return the number of vectors that a recorded exchange sends to the center, and back."""
        return 1, 1

    @property
    def exchanges(self) -> bool:
        """True unless a single worker exchanges nothing."""
        return self.kind != "alone"

    @property
    def uses_ps(self) -> bool:
        """True with a parameter server."""
        return self.kind in ("server", "regions")

    @property
    def is_collective(self) -> bool:
        """True if the workers exchange messages among themselves."""
        return self.exchanges and not self.uses_ps

    @property
    def gossips(self) -> bool:
        """True if each worker hears its neighbours alone."""
        return self.kind in ("gossip", "pairs")

    @property
    def in_pairs(self) -> bool:
        """True if two workers at a time average their parameters."""
        return self.kind == "pairs"

    @property
    def in_regions(self) -> bool:
        """True if workers exchange with the server of their region."""
        return self.kind == "regions"

    @property
    def can_lose(self) -> bool:
        """True if a run without a parameter server may continue without some of its workers."""
        return self.kind == "gossip"

    @property
    def overlaps(self) -> bool:
        """True if workers may compute between message and reply, see `Scheme.overlap`: no set is without a worker."""
        if not self.waits or self.gossips:
            return False
        # A few numbers of active workers tell whether a set has a message of each, whatever their number.
        return self.late == "count" or all(self.set_size(active) == active for active in (1, 2, 3, 64))

    def meets(self, workers: int) -> bool:
        """Return True if each update is made of a message of every worker."""
        return self.set_size(workers) == workers

    def losses(self, ps: Store) -> dict[str, Tensor]:
        """Return the mean losses of the sets so far, see `MeanLoss`; nothing of other rules."""
        return {}

    # The synchronization rule, for all engines.

    def set_size(self, active: int) -> int | None:
        """Return the number of messages of different workers that make one update; their senders wait for the set.

        Default: None, each message is applied when it arrives.

        Args:
            active: the number of active workers, from 0.
        """

    def accepts(self, staleness: Any) -> Any:
        """Return False if the server drops a message of this staleness, a number or a tensor. Default: True."""
        return True

    @property
    def lead(self) -> int | None:
        """Rounds by which a worker may be ahead of the slowest when it begins a round. Default: None, no limit."""
        return None

    # The variables of the synchronization rule on the ps.

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Return the initial values of the rule's variables on the first ps task, by name: `ps.variables.<name>`.

        Default: flags [W] of the workers that have arrived, if workers wait here.
        """
        return {"arrived": tf.zeros([ps.num_workers], tf.bool)} if self.waits else {}

    def slice_variables(self, ps: Store, part: Any) -> Mapping[str, Tensor | Message]:
        """Return the initial values of the rule's variables for each slice of the center, by name: `part.<name>`.

        `part` has `initial`, the first value of this slice of the center [n], and `no_message`, zeros for a sum of
        messages, which becomes a `Message` of variables. Default: no variables.
        """
        return {}

    # The operations of a worker in its rounds.

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Push `message` of the worker in `slot` and return the reply [P]."""
        raise NotImplementedError(f"{type(self).__name__} exchanges nothing")

    def is_finite(self, ps: Store, reply: Tensor) -> Tensor:
        """Return True if the workers may adopt this reply, the same for all, without a ps. Default: test each."""
        return tf.reduce_all(tf.math.is_finite(reply))  # not of its sum, which may overflow on one worker only

    def push(self, ps: Store, slot: WorkerSlot, message: Message) -> None:
        """Push without waiting for a reply; only schemes with such rounds need it."""
        raise NotImplementedError(f"{type(self).__name__} cannot push without a reply")

    def gather(self, ps: Store, slot: WorkerSlot, indices: Tensor) -> Tensor:
        """Read some coordinates of the center; only schemes for sparse problems need it."""
        raise NotImplementedError(f"{type(self).__name__} reads the whole center")

    def mean(self, ps: Store, slot: WorkerSlot, vector: Tensor) -> Tensor:
        """Return the mean over all workers of a tensor of any shape, within a round: `worker.mean`. Default: refused.

        A worker inside `mean` has not sent its message. A synchronization rule that can evict workers must also release
        the workers that wait in `mean`.

        Raises:
            UserError: this synchronization rule offers no mean.
        """
        raise UserError(
            "worker.mean needs a rule without a parameter server: send numbers beside the vector (scalars), or use "
            f"sync = Collective(). Received: sync = {type(self).__name__}()"
        )

    def replies(self, number: Tensor, messages: Tensor, arrived: Tensor) -> Tensor:
        """Return the replies to the messages of all workers in a round, [W, P], if each worker has its own.

        `arrived` are these messages as they arrive, [W, P].
        """
        raise NotImplementedError(f"{type(self).__name__} has one reply for all")

    def peer(self, workers: int, worker: Any, number: Any) -> Tensor:
        """Return the worker with which `worker` averages in its round of this number, or itself, int32, of pairs."""
        raise NotImplementedError(f"{type(self).__name__} has no pairs")

    def share_state(self, ps: Store, slot: WorkerSlot, state: Tensor) -> Tensor:
        """Store the worker's non-trainable state [S] for the evaluator; returns the state that the worker adopts."""
        ps.slots.store_state(slot, state)
        return state

    # Waiting workers, and workers that join and leave.

    def arrived(self, ps: Store) -> Tensor | None:
        """Return flags [W] of the workers that wait for others; None if no worker ever waits on the ps."""
        return ps.variables.arrived.read_value() if self.waits else None

    def awaited(self, ps: Store) -> Tensor:
        """Return flags [W] of the workers that the others wait for. Default: active workers that have not arrived."""
        return ps.slots.active & ~ps.variables.arrived

    def release(self, ps: Store) -> None:
        """Release the workers that need not wait any more, after others have left; under the lock, on the first ps."""
        raise NotImplementedError(f"{type(self).__name__} waits, and has no release")

    def complete(self, ps: Store) -> Tensor:
        """Return True once the run has made its last update: no worker is admitted any more. Default: never."""
        return tf.constant(False)

    def rejoin(self, ps: Store, slot: WorkerSlot) -> Tensor:
        """Let a worker take its slot, and discard the tokens of the worker that held it before; under the lock.

        Returns:
            True if its last message still waits for others.
        """
        if self.arrived(ps) is None:
            return tf.constant(False)
        with tf.control_dependencies([slot.forget_tokens()]):
            return ps.variables.arrived.read_value()[slot.index]

    def wake(self, ps: Store) -> None:
        """Wake all workers after the state was restored: each is refused at its next message, and joins again."""
        if self.arrived(ps) is not None:
            ps.wake(tf.ones([ps.num_workers], tf.bool))

    def lost(self, ps: Store) -> dict[str, Tensor]:
        """Return what the record needs of workers that were lost where no ps knows of them, by name. Default: empty."""
        return {}

    def evict(self, ps: Store, slot: WorkerSlot) -> Tensor:
        """Evict the workers that the worker in `slot` has waited for too long, if enough workers are left.

        Returns flags [W] of the evicted workers, which are active again when they rejoin. Default for all
        synchronization rules that wait.
        """
        with ps.transactions.exclusive(), tf.device(ps.devices[0]):
            evicted = self.awaited(ps) & ps.variables.arrived.read_value()[slot.index]
            enough = ps.slots.count(ps.slots.active & ~evicted) >= ps.min_workers
            return self._leave_out(ps, evicted & enough)

    def deregister(self, ps: Store, slot: WorkerSlot) -> Tensor:
        """Remove the worker in `slot`, which has done all its rounds, from those awaited; returns its flag, [W].

        No effect, and no flag, if another process has joined as this worker.
        """
        with ps.transactions.exclusive(), tf.device(ps.devices[0]):
            return self._leave_out(ps, ps.slots.only(slot) & ps.transactions.holds(slot))

    def _leave_out(self, ps: Store, gone: Tensor) -> Tensor:
        """Close the slots of the workers in `gone` [W], and release those that waited for them; returns `gone`."""
        # Release after the slots are closed: `release` reads `active`, and would still wait for the workers that leave.
        with tf.control_dependencies(ps.slots.close_slots(gone)):
            self.release(ps)
        return tf.identity(gone)
