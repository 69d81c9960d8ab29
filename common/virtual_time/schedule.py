"""The discrete-event simulation of a run in virtual time.

A worker computes; its message travels to the ps, waits for the lock, which serves one message after the other, and is
applied; the gate releases some workers, and their replies travel back. Without a ps, all workers wait until the last
message is ready, and reduce the messages together.

The same arguments give the same run, to the bit: times are whole nanoseconds, events at the same time are ordered by
kind and worker, and each duration is a function of the seed, the worker and its round alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..contract.rounds import Rounds
from ..contract.scheme import Scheme
from .churn import BACK, Presence, ServerLock
from .clock import Clock
from .crashes import Failures
from .network import Network
from .plans import plans_of
from .platform import Machines
from .resources import one_machine
from .server import Books
from .stamps import SimulatedStamps

CHIEF = 0

ARRIVE, REPLY, COMPUTED = range(BACK + 1, BACK + 4)  # kinds of events: processed in this order at the same time

SECOND = 10**9  # nanoseconds


class Course:
    """A run in virtual time.

    Each message belongs to one life of its worker: a message sent before a crash still occupies the links, and is then
    refused.

    Args:
        scheme: the algorithm.
        machines: the machines.
        workers: W.
        rounds: the rounds of each worker, or those that all share.
        seed: seed of all random numbers.
        ps: number of ps tasks.
        sizes: bytes of a message and of a reply.
        stop_at_version: version of the center that ends the run.

    Attributes:
        books: the simulated ps.
        end: time at which the last worker has the reply of its last round, in nanoseconds.
    """

    def __init__(
        self,
        scheme: Scheme,
        machines: Machines,
        workers: int,
        rounds: Rounds | Sequence[Rounds],
        seed: int,
        ps: int,
        sizes: tuple[float, float],
        stop_at_version: int | None,
    ):
        self.scheme, self.machines, self.workers = scheme, machines, workers
        self.message_bytes, self.reply_bytes = sizes
        plans = plans_of(machines, rounds, workers, seed, scheme.exchange_first)
        self.steps, self.events = [plan.steps for plan in plans], [plan.events for plan in plans]
        self.durations = [plan.durations for plan in plans]
        self.books = Books(scheme, workers, max(map(len, self.steps)), stop_at_version)
        self.network = Network(machines, workers, ps, seed)
        self.cores = one_machine(machines.cores, workers)
        self.lock, self.stamps, self.failures = (
            ServerLock(),
            SimulatedStamps(workers),
            Failures(machines.failures, workers, seed),
        )
        shared = (self.cores, self._ready), (self.network.up, self._sent), (self.network.down, self._replied)
        self.clock = Clock(workers, [(thing, act) for thing, act in shared if thing is not None])
        self.presence = Presence(self.books, self.lock, self.clock, self.stamps, self.failures, self._fetch)
        computed = self._computed if self.cores else self._ready
        self.clock.acts = [self.presence.crash, self.presence.come_back, self._arrive, self._reply, computed]
        # Events of phases that take no time are skipped: the next phase is called directly.
        at_once = not any(self.network.latency)
        send = self._arrive if at_once and self.network.up is None else self._send
        self.reply = self._end_round if at_once and self.network.down is None else self._reply
        gate, books = scheme.gate, self.books
        self.exchange = self._step_alone if not gate.exchanges else send if gate.uses_ps else self._reduce
        self.fold = {"exchange": books.exchange, "push": books.push, "pull": books.pull}
        work = {"exchange": self.message_bytes, "push": self.message_bytes, "pull": self.reply_bytes}
        self.service = {event: machines.service + round(size / ps / machines.ps_rate) for event, size in work.items()}
        self.fetching = set[int]()  # workers that wait for the center alone
        self.end = 0
        self.together: list[int] = []  # without a ps: workers whose messages are ready
        self.held_back = range(1, workers) if scheme.warmup_updates else range(0)

    def run(self, progress: Callable[[int], None]) -> None:
        """Process all events to the end of the run."""
        for worker in range(self.workers):
            if worker not in self.held_back:
                self.presence.stay(worker, 0)
                self._begin(worker, 0)
        self.clock.run(progress)

    @property
    def seconds(self) -> float:
        """Virtual time at the end of the run, in seconds."""
        return self.end / SECOND

    # The phases of a worker's round.

    def _begin(self, worker: int, now: int) -> None:
        """Begin the next round of a worker, or let the worker leave after its last."""
        done = self.books.folded[worker]
        if self.books.over:
            return
        if done == len(self.steps[worker]):
            self.clock.lives[worker] += 1
            self._go_on(self.books.leave(worker), now, now)
            return
        self.stamps.begun[worker] = now
        self.clock.at(now + self.durations[worker].until_message(worker, done), COMPUTED, worker)

    def _computed(self, worker: int, now: int) -> None:
        """Continue the steps of a worker on the cores that all share."""
        assert self.cores is not None  # noqa: S101
        steps = self.steps[worker][self.books.folded[worker]]
        self.clock.share(self.cores, now, worker, steps * self.machines.core)

    def _ready(self, worker: int, now: int) -> None:
        self.stamps.ready[worker] = now
        self.exchange(worker, now)

    def _send(self, worker: int, now: int) -> None:
        """Send a message, or a request for the center, which has no bytes."""
        if self.network.up is None or self.events[worker][self.books.folded[worker]] == "pull":
            self._sent(worker, now)
        else:
            self.clock.share(self.network.up, now, worker, self.message_bytes)

    def _sent(self, worker: int, now: int) -> None:
        """Add the latency to a message whose bytes have all been sent."""
        late = self.network.message_late(worker, self.books.folded[worker])
        if late:
            self.clock.at(now + late, ARRIVE, worker)
        else:
            self._arrive(worker, now)

    def _arrive(self, worker: int, now: int) -> None:
        """Apply a message that has arrived, when the lock has served those before it."""
        if self.books.over:
            return
        event = self.events[worker][self.books.folded[worker]]
        self.stamps.arrived[worker] = begun = self.lock.take(now, self.service[event])
        self._go_on(self.fold[event](worker, begun), begun, self.lock.free)
        if self.held_back and worker == CHIEF:
            self._start_others()

    def _go_on(self, free: Iterable[int], released: int, at: int) -> None:
        """Release workers; their replies are sent at the time `at`."""
        for worker in free:
            self.stamps.released[worker] = released
            if worker in self.presence.away:
                self.presence.miss(worker, at)
            elif at > released:
                self.clock.at(at, REPLY, worker)
            else:
                self.reply(worker, at)

    def _reply(self, worker: int, now: int) -> None:
        """Send a reply; the acknowledgement of a push has no bytes."""
        if self.network.down is None or (
            worker not in self.fetching and self.events[worker][self.books.folded[worker] - 1] == "push"
        ):
            self._replied(worker, now)
        else:
            self.clock.share(self.network.down, now, worker, self.reply_bytes)

    def _replied(self, worker: int, now: int) -> None:
        """Add the latency to a reply whose bytes have all been sent, and pass it to the worker."""
        now += self.network.reply_late(worker, max(0, self.books.folded[worker] - 1))
        if worker in self.fetching:
            self.fetching.remove(worker)
            self._begin(worker, now)
        else:
            self._end_round(worker, now)

    def _end_round(self, worker: int, now: int) -> None:
        """Log the round of a worker that has its reply, unless it has crashed, and begin the next."""
        if now < self.failures.crash_at[worker]:
            end = now
            if self.scheme.exchange_first:
                end += self.durations[worker].after_reply(worker, self.stamps.logged[worker])
            if end > self.end:
                self.end = end
            self.stamps.log(worker, now)
            self._begin(worker, now)

    # Without a ps.

    def _reduce(self, worker: int, now: int) -> None:
        """Wait until the messages of all workers are ready, then reduce them together."""
        self.stamps.arrived[worker] = now
        self.together.append(worker)
        if len(self.together) == self.workers:
            self.together = []
            at = now + self.network.reduction(self.message_bytes, self.books.version)
            for free in self.books.reduce(at):
                self.stamps.released[free] = now
                self._end_round(free, at)

    def _step_alone(self, worker: int, now: int) -> None:
        """Apply the steps of a round of a single worker, which exchanges nothing."""
        self.stamps.arrived[worker] = self.stamps.released[worker] = now
        self.books.step_alone(self.steps[worker][self.books.folded[worker]], now)
        self._end_round(worker, now)

    # Workers that join.

    def _start_others(self) -> None:
        """Start the other workers from the present center once worker 0 has warmed up."""
        if self.books.version >= self.scheme.warmup_updates or self.books.folded[CHIEF] == len(self.steps[CHIEF]):
            others, self.held_back = self.held_back, range(0)
            for worker in others:
                self.presence.stay(worker, self.lock.free)
                self.presence.join(worker, self.lock.free, recorded=False)

    def _fetch(self, worker: int, now: int) -> None:
        """Send the center to a worker that has joined."""
        self.fetching.add(worker)
        self.clock.at(now, REPLY, worker)
