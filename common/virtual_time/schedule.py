"""The course of a run in virtual time: a heap of what happens next.

A worker computes; its message is ready, and travels; it waits for the lock of the ps, which does one thing after the
other, and is folded; its gate lets some workers go on; their replies travel; and so on. Without a ps, all wait until
the last message is ready, and reduce them together.

The same arguments give the same course, to the bit: times are whole nanoseconds, what happens at the same time happens
by kind and worker, and how long something takes is a function of the seed, the worker and its round alone.
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

ARRIVE, REPLY, COMPUTED = range(BACK + 1, BACK + 4)  # kinds of events: in this order if they are at the same time

SECOND = 10**9  # nanoseconds


class Course:
    """A run in virtual time.

    Whatever is on its way belongs to one life of a worker: what a worker has sent before it crashed still takes its
    place on the links, and is refused then.

    Args:
        scheme: the algorithm.
        machines: what it runs on.
        workers: W.
        rounds: of each worker; or one for all of them.
        seed: of all that is drawn.
        ps: tasks.
        sizes: bytes of a message and of a reply.
        stop_at_version: ends the run with this update.

    Attributes:
        books: of the ps.
        end: nanoseconds, when the last worker has the reply of its last round.
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
        # What takes no time is left out.
        at_once = not any(self.network.latency)
        send = self._arrive if at_once and self.network.up is None else self._send
        self.reply = self._end_round if at_once and self.network.down is None else self._reply
        gate, books = scheme.gate, self.books
        self.exchange = self._step_alone if not gate.exchanges else send if gate.uses_ps else self._reduce
        self.fold = {"exchange": books.exchange, "push": books.push, "pull": books.pull}
        work = {"exchange": self.message_bytes, "push": self.message_bytes, "pull": self.reply_bytes}
        self.service = {event: machines.service + round(size / ps / machines.ps_rate) for event, size in work.items()}
        self.fetching = set[int]()  # who waits for the center and nothing else
        self.end = 0
        self.together: list[int] = []  # without a ps: whose messages are ready
        self.held_back = range(1, workers) if scheme.warmup_updates else range(0)

    def run(self, progress: Callable[[int], None]) -> None:
        """All events, to the end."""
        for worker in range(self.workers):
            if worker not in self.held_back:
                self.presence.stay(worker, 0)
                self._begin(worker, 0)
        self.clock.run(progress)

    @property
    def seconds(self) -> float:
        """When the run ended."""
        return self.end / SECOND

    # A round, from one worker's side.

    def _begin(self, worker: int, now: int) -> None:
        """The next round of a worker, if there is one."""
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
        """A worker has done its steps, but for what they take of the cores that all share."""
        assert self.cores is not None  # noqa: S101
        steps = self.steps[worker][self.books.folded[worker]]
        self.clock.share(self.cores, now, worker, steps * self.machines.core)

    def _ready(self, worker: int, now: int) -> None:
        self.stamps.ready[worker] = now
        self.exchange(worker, now)

    def _send(self, worker: int, now: int) -> None:
        """A message begins its way, or the question for the center, which has no bytes."""
        if self.network.up is None or self.events[worker][self.books.folded[worker]] == "pull":
            self._sent(worker, now)
        else:
            self.clock.share(self.network.up, now, worker, self.message_bytes)

    def _sent(self, worker: int, now: int) -> None:
        """All of it is on its way."""
        late = self.network.message_late(worker, self.books.folded[worker])
        if late:
            self.clock.at(now + late, ARRIVE, worker)
        else:
            self._arrive(worker, now)

    def _arrive(self, worker: int, now: int) -> None:
        """It is there, and gets the lock when those before it have had it."""
        if self.books.over:
            return
        event = self.events[worker][self.books.folded[worker]]
        self.stamps.arrived[worker] = begun = self.lock.take(now, self.service[event])
        self._go_on(self.fold[event](worker, begun), begun, self.lock.free)
        if self.held_back and worker == CHIEF:
            self._start_others()

    def _go_on(self, free: Iterable[int], released: int, at: int) -> None:
        """Workers need not wait any more; their replies are sent at some time."""
        for worker in free:
            self.stamps.released[worker] = released
            if worker in self.presence.away:
                self.presence.miss(worker, at)
            elif at > released:
                self.clock.at(at, REPLY, worker)
            else:
                self.reply(worker, at)

    def _reply(self, worker: int, now: int) -> None:
        """A reply begins its way; that a push has arrived has no bytes."""
        if self.network.down is None or (
            worker not in self.fetching and self.events[worker][self.books.folded[worker] - 1] == "push"
        ):
            self._replied(worker, now)
        else:
            self.clock.share(self.network.down, now, worker, self.reply_bytes)

    def _replied(self, worker: int, now: int) -> None:
        """All of it is on its way."""
        now += self.network.reply_late(worker, max(0, self.books.folded[worker] - 1))
        if worker in self.fetching:
            self.fetching.remove(worker)
            self._begin(worker, now)
        else:
            self._end_round(worker, now)

    def _end_round(self, worker: int, now: int) -> None:
        """A worker has its reply."""
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
        """The last message that is ready lets all be reduced together."""
        self.stamps.arrived[worker] = now
        self.together.append(worker)
        if len(self.together) == self.workers:
            self.together = []
            at = now + self.network.reduction(self.message_bytes, self.books.version)
            for free in self.books.reduce(at):
                self.stamps.released[free] = now
                self._end_round(free, at)

    def _step_alone(self, worker: int, now: int) -> None:
        """The one worker that is all there is has done the steps of a round."""
        self.stamps.arrived[worker] = self.stamps.released[worker] = now
        self.books.step_alone(self.steps[worker][self.books.folded[worker]], now)
        self._end_round(worker, now)

    # Who comes and goes.

    def _start_others(self) -> None:
        """If worker 0 has warmed up, the others start from what it has reached."""
        if self.books.version >= self.scheme.warmup_updates or self.books.folded[CHIEF] == len(self.steps[CHIEF]):
            others, self.held_back = self.held_back, range(0)
            for worker in others:
                self.presence.stay(worker, self.lock.free)
                self.presence.join(worker, self.lock.free, recorded=False)

    def _fetch(self, worker: int, now: int) -> None:
        """The center travels to a worker that has joined."""
        self.fetching.add(worker)
        self.clock.at(now, REPLY, worker)
