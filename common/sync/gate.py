"""The base of all gates: who waits for whom on the parameter server.

A gate builds one exchange, from push to reply, into the graph. Whatever the number of ps tasks, an exchange is one
atomic event: `ps.event` takes the lock after the whole message has arrived, so it is never held while one travels.

A gate of your own, in a file of your own (`--import my_gate.py`): derive from `Async` if nobody waits, else from
`Gate` with `waits = True`, and write `exchange`, `awaited` and `release`. `bounded.py` is a complete example.

There are two engines: one of TensorFlow graphs, and one in virtual time, which has no graphs. What both must know of
who waits for whom is said once, in plain Python: `set_size` or `lead`. The graphs of the gates here are made from them.
The engine in virtual time refuses a gate that has methods of its own besides and does not say that these change nothing
of that: `simulated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..errors import UserError
from ..lazy import tf
from .store import Event, Store, Tensor, WorkerSlot

__all__ = ["Event", "Gate", "Store", "WorkerSlot"]

SAYS_WHO_WAITS = {"set_size", "lead"}

BESIDES = {"updates_per_round", "check", "traffic", "label"}  # no part of an exchange


class Gate:
    """Who waits for whom. The defaults: an exchange of one message with the parameter server, nobody waits.

    Attributes:
        waits: True if workers wait for each other's messages. Then a call may take as long as the slowest worker, and
            whoever has waited too long says for whom.
        exchanges: False if there is one worker, which exchanges nothing.
        uses_ps: False if there is no parameter server: worker 0 holds the center and the record.
        label: what the catalogue prints.
        simulated: True if a message does what the simulation does with it: it is folded when it arrives, and the reply
            is the newest center as soon as `lead` lets the worker go on; or, with `set_size`, the mean of a set of
            messages is folded, and the new center is the reply to all of them. To say `set_size` or `lead` says so too.
    """

    waits: ClassVar[bool] = False
    exchanges: ClassVar[bool] = True
    uses_ps: ClassVar[bool] = True
    label: ClassVar[str] = "asynchronous"
    simulated: ClassVar[bool] = False

    def updates_per_round(self, workers: int) -> float:
        """How many updates of the center one round of all workers makes; learning-rate schedules divide by it."""
        return workers

    def check(self, workers: int) -> None:
        """Raise `UserError` if this gate cannot work with this number of workers."""

    def traffic(self, workers: int) -> tuple[float, float]:
        """Vectors that a recorded exchange moves, towards the center and back."""
        del workers
        return 1, 1

    # Who waits for whom, for all engines.

    def set_size(self, active: int) -> int | None:
        """How many messages, of different workers, make an update together; who has sent one waits for the others.

        Default: None, each message is folded when it arrives.

        Args:
            active: how many workers are counted on, from 0.
        """
        del active

    @property
    def lead(self) -> int | None:
        """Rounds that a worker may be ahead of the slowest when it begins one. Default: None, any number."""
        return None

    def can_be_simulated(self) -> bool:
        """Return False if a class has methods of its own, and neither it nor one derived from it is `simulated`."""
        for kind in type(self).__mro__:
            own = vars(kind)
            if "simulated" in own:
                return own["simulated"]
            if SAYS_WHO_WAITS & own.keys():
                return True
            if any(callable(value) or isinstance(value, property) for name, value in own.items() if _counts(name)):
                return False
        return False

    # What it keeps on the ps.

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Initial values of what is kept on the first ps task, by name: `ps.kept.<name>`.

        Default: flags [W] of who has arrived, if workers wait here.
        """
        return {"arrived": tf.zeros([ps.num_workers], tf.bool)} if self.waits else {}

    def slice_variables(self, ps: Store, part: Any) -> Mapping[str, Tensor]:
        """Initial values of what is kept beside each slice of the center, by name: `part.<name>`. Default: nothing.

        `part` has `initial`, the first value of this slice of the center [n], and `no_message`, zeros for a sum of
        messages [n + m]: with the scalars that the scheme sends, if it does.
        """
        del ps, part
        return {}

    # What a worker does in its rounds.

    def exchange(self, ps: Store, slot: WorkerSlot, message: Tensor) -> Tensor:
        """Push `message` [P] of the worker in that slot and return the reply [P]."""
        raise NotImplementedError(f"{type(self).__name__} exchanges nothing")

    def is_finite(self, ps: Store, reply: Tensor) -> Tensor:
        """Without a ps: True if the workers may adopt this reply, the same for all. Default: looks at each element."""
        del ps
        return tf.reduce_all(tf.math.is_finite(reply))  # of two sums one may overflow, and not the other

    def push(self, ps: Store, slot: WorkerSlot, message: Tensor) -> None:
        """Push without waiting for a reply; only schemes with such rounds need it."""
        raise NotImplementedError(f"{type(self).__name__} cannot push without a reply")

    def gather(self, ps: Store, slot: WorkerSlot, indices: Tensor) -> Tensor:
        """Read some coordinates of the center; only schemes for sparse problems need it."""
        raise NotImplementedError(f"{type(self).__name__} reads the whole center")

    def mean(self, ps: Store, slot: WorkerSlot, vector: Tensor) -> Tensor:
        """The mean over all workers of a tensor of any shape, within a round: `worker.mean`. Default: refused.

        Whoever waits for it is not at the gate: one that can go on without a worker needs an answer for both places.

        Raises:
            UserError: this gate has none.
        """
        raise UserError(
            "worker.mean needs a gate without a parameter server: send numbers beside the vector (scalars), or use "
            f"gate = Collective(). Received: gate = {type(self).__name__}()"
        )

    def share_state(self, ps: Store, slot: WorkerSlot, state: Tensor) -> Tensor:
        """Let the evaluator see the worker's non-trainable state [S]; returns what the worker goes on with."""
        ps.store_state(slot, state)
        return state

    # Who waits, and who comes and goes.

    def arrived(self, ps: Store) -> Tensor | None:
        """Flags [W] of who waits at the gate; None if nobody ever waits on the ps."""
        return ps.kept.arrived.read_value() if self.waits else None

    def awaited(self, ps: Store) -> Tensor:
        """Flags [W] of those for whom the others wait. Default: all that are counted on and have not arrived."""
        return ps.active & ~ps.kept.arrived

    def release(self, ps: Store) -> None:
        """Under the lock, on the first ps task, when somebody is not counted on any more: let go who need not wait."""
        raise NotImplementedError(f"{type(self).__name__} waits, and has no release")

    def complete(self, ps: Store) -> Tensor:
        """True once the run has made its last update: nobody is admitted any more. Default: never."""
        return tf.constant(False)

    def rejoin(self, ps: Store, slot: WorkerSlot) -> Tensor:
        """Under the lock: a worker takes its slot, and tokens for whoever held it before are void.

        Returns:
            True if its last message still waits for others.
        """
        if self.arrived(ps) is None:
            return tf.constant(False)
        with tf.control_dependencies([slot.forget_tokens()]):
            return ps.kept.arrived.read_value()[slot.index]

    def wake(self, ps: Store) -> None:
        """A token for everybody: the state has been restored. Whoever goes on is refused, and joins again."""
        if self.arrived(ps) is not None:
            ps.wake(tf.ones([ps.num_workers], tf.bool))

    def evict(self, ps: Store, slot: WorkerSlot) -> Tensor:
        """The worker in that slot has waited long enough: go on without those it waits for, if enough are left.

        Returns who was evicted, flags [W]; they are back when they join again. Default for all gates that wait.
        """
        with ps.exclusive(), tf.device(ps.devices[0]):
            evicted = self.awaited(ps) & ps.kept.arrived.read_value()[slot.index]
            enough = ps.count(ps.active & ~evicted) >= ps.min_workers
            return self._go_on_without(ps, evicted & enough)

    def deregister(self, ps: Store, slot: WorkerSlot) -> Tensor:
        """The worker in that slot has done all its rounds: nobody waits for it any more. Returns its flag, [W]."""
        with ps.exclusive(), tf.device(ps.devices[0]):
            return self._go_on_without(ps, ps.only(slot))

    def _go_on_without(self, ps: Store, gone: Tensor) -> Tensor:
        with tf.control_dependencies(ps.close_slots(gone)):
            self.release(ps)
        return tf.identity(gone)


def _counts(name: str) -> bool:
    """True for a method that may change what an exchange does."""
    return name not in BESIDES and not (name.startswith("__") and name.endswith("__"))
