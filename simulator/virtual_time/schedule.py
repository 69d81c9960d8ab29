"""The discrete-event simulation of a run in virtual time: the order and the times of its events.

A worker computes; its message travels to the ps, waits for the lock, which serves one message after the other, and is
applied; the synchronization rule releases some workers, and their replies travel back. Without a ps, all workers wait
until the last message is ready, and reduce the messages together.

The same arguments give the same run, to the bit: times are whole nanoseconds, events at the same time are ordered by
kind and worker, and each duration is a function of the seed, the worker and its round alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.cluster.distributions import exponential_time
from ...common.cluster.platform import Machines, Platform
from ...common.contract.rounds import Rounds
from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from ...common.server.trace import UNKNOWN
from ...common.sync.release import waiting_at
from ...common.sync.store import Event
from .cancelling import Cancelling
from .durations import plans_of
from .grace import SECOND, Grace
from .neighbours import Neighbours, between_peers
from .network import Network
from .program import Actions
from .regional import Regional, check_regions, numbers_of
from .resources import ARRIVE, BACK, COMPUTED, CRASH, NEVER, OVERLAPPED, REPLY, EventQueue, one_machine
from .simulated_server import RoundTimings, SimulatedServer
from .sizes import Sizes

CHIEF = 0

MOST_CRASHES = 1000  # the most crashes per round

MOST_LIVES = 4.0  # the longest round, in mean times between crashes: one round of e⁴ completes


def check(scheme: Scheme, machines: Machines, workers: int) -> None:
    """Raise `UserError` if the rule or its regions cannot be simulated, or workers crash without a ps or too often."""
    waiting_at(scheme.sync, workers)
    if scheme.regions:
        check_regions(scheme, machines, workers)
    if machines.failures and not scheme.sync.uses_ps:
        raise UserError(f"{scheme.name} has no parameter server, to which a worker could come back: leave failures out")
    if machines.failures and scheme.sends_in_turn:
        raise UserError(f"workers of {scheme.name} must make the same rounds: leave failures out")
    if scheme.sync.cancel_late and machines.cores:
        raise UserError(
            f"{scheme.name} with cancel_late needs a core for each worker: leave cores out. Received: "
            f"cores={machines.cores}"
        )
    takes = scheme.period * machines.step + 2 * machines.latency
    if machines.failures and takes > MOST_LIVES * machines.failures[0]:
        raise UserError(
            f"hardly a round of {scheme.name} ends between two crashes: let them be rarer. Received: crashes every "
            f"{machines.failures[0] / 1e6:.3g} ms, rounds of {takes / 1e6:.3g} ms"
        )


@dataclass(frozen=True)
class EventSchedule:
    """The events of a run and their times.

    Attributes:
        trace: the events on the ps in order: for each name of `RECORD` a column of integers, [n]; see `server.trace`.
            Microseconds are of virtual time, since the start.
        rounds: rounds of all workers in the order of their ends, [m, len(ROUND)], in microseconds of virtual time; a
            reply that a crashed worker did not receive is `UNKNOWN`; rounds that the end of the run cut are missing.
        seconds: the virtual time of the end.
        actions: what is to be computed; None if the events are those of a real run.
    """

    trace: Mapping[str, np.ndarray]
    rounds: np.ndarray
    seconds: float
    actions: Actions | None = None


class EventLoop:
    """A run in virtual time.

    Each message belongs to one life of its worker: a message sent before a crash still occupies the links, and is then
    refused.

    Args:
        scheme: the algorithm, whose rules of order are used and whose arithmetic is not.
        platform: the machines, described or in numbers.
        workers: W.
        rounds: the rounds of each worker, or those that all share.
        seed: seed of all random numbers.
        message_bytes: size of a message, or of each vector that a worker sends for it, see `Traffic.vectors`.
        reply_bytes: size of a reply, and of the center that a worker pulls or joins with.
        apart: sizes of message and reply in rounds of the kinds that have others, see `Traffic.apart`.
        before: rounds that each worker has made before; after some, workers start as `Network.starts` says.
        ps: number of ps tasks that share the center.
        stop_at_version: version of the center that ends the run.

    Raises:
        UserError: see `check`.

    Attributes:
        end: time at which the last worker has the reply of its last round, in nanoseconds.
        lock_free: time at which the lock of the ps has served all requests so far.
        away: workers that do not receive a release by the synchronization rule: those that are down, and `returned`.
        returned: workers that are back while a message of their former life still waits for others.
        fetching: workers that wait for the center alone.
        reducing: without a ps, the workers whose messages are ready.
        computing: workers that make the steps after their message, and the time at which the reply arrives, or None.
    """

    def __init__(
        self,
        scheme: Scheme,
        platform: Platform | Machines,
        *,
        workers: int,
        rounds: Rounds | Sequence[Rounds],
        seed: int,
        message_bytes: float | Sequence[float],
        reply_bytes: float,
        apart: Mapping[str, tuple[float, float]] = {},
        before: int = 0,
        ps: int = 1,
        stop_at_version: int | None = None,
    ):
        self.machines = machines = platform if isinstance(platform, Machines) else Machines(platform)
        check(scheme, machines, workers)
        self.scheme, self.workers, self.seed = scheme, workers, seed
        self.plans = plans_of(machines, rounds, workers, seed)
        self.events: dict[str, Event] = {name: kind.event for name, kind in scheme.kinds.items()}
        most_rounds = max(len(plan.steps) for plan in self.plans)
        self.sizes = sizes = Sizes(message_bytes, reply_bytes, apart)
        self.queue = queue = EventQueue(numbers_of(scheme, workers))
        self.server = server = SimulatedServer(scheme, workers, self._start_other, most_rounds, stop_at_version)
        self.sequencer, self.timings = server.sequencer, RoundTimings(workers)
        self.regional = Regional(server, machines, ps, seed, self.timings, sizes, self._arrive, self._release, queue)
        self.network = network = between_peers(Network(self.regional.inside, workers, ps, seed), scheme.sync)
        self.regional.connect(network)
        self.cores, sync = one_machine(machines.cores, workers), scheme.sync
        queue.on(CRASH, self._crash)
        queue.on(BACK, self._come_back)
        queue.on(REPLY, self._reply)
        queue.on(COMPUTED, self._computed if self.cores else self._ready)
        queue.on(OVERLAPPED, self._computed if self.cores else self._computed_all)
        self.cancelling = Cancelling(scheme, server, self.timings, self._lock, self._ready, queue)
        self.grace = Grace(server, workers, self._lock, self._release, queue)
        neighbours = Neighbours(sync, server, self.timings, network, sizes, self._end_round, queue)
        queue.add(self.cores, network.up, network.down if network.down is not network.up else None, neighbours.links)
        senders = {"alone": self._step_alone, "collective": self._reduce, "gossip": neighbours.send}
        self.exchange = senders.get(sync.kind, self._send)
        self.process = {"exchange": server.exchange, "push": server.push, "pull": server.pull}
        self.service = lambda size: 0 if sync.in_pairs else machines.held(size / ps)
        self.end, self.lock_free, self.starts = 0, 0, [0] * workers
        self.crashes, self.crash_at = [0] * workers, [math.inf] * workers  # of each worker: their number, the next
        self.away, self.returned, self.fetching, self.reducing = set[int](), set[int](), set[int](), list[int]()
        self.computing: dict[int, int | None] = {}
        if before:
            self.sequencer.held_back = range(0)
            if not self.sequencer.in_sets:
                self.starts = network.starts(max(sizes.usual))

    def run(self, progress: Callable[[int], None] = lambda events: None) -> EventSchedule:
        """Process all events to the end of the run; `progress` receives their number now and then.

        Raises:
            UserError: the run takes more than a century, or hardly a round ends between two crashes.
        """
        for worker in sorted({*range(self.workers)}.difference(self.sequencer.held_back)):
            self._start_life(worker, self.starts[worker])
            self._begin(worker, self.starts[worker])
        try:
            self.queue.run(progress)
        except OverflowError:
            raise UserError(f"{self.scheme.name} takes more than a century on these machines: speed them up") from None
        seconds = max(self.end, self.regional.end) / SECOND
        return EventSchedule(self.server.trace(), self.timings.rounds(), seconds, self.server.actions)

    # The phases of a worker's round.

    def _begin(self, worker: int, now: int) -> None:
        """Begin the next round of a worker, or let the worker leave after its last."""
        number, plan = self.sequencer.recorded[worker], self.plans[worker]
        if self.server.over:
            return
        if number == len(plan.steps):
            self.queue.lives[worker] += 1
            self._release(self.sequencer.leave(worker), now, now)
            return
        self.timings.begun[worker] = now
        overlap = plan.after_message(worker, number, self.scheme.overlap) if self.scheme.overlap else 0
        self.queue.at(until := now + plan.total(worker, number) - overlap, COMPUTED, worker)
        self.cancelling.begin(worker, now, until)

    def _computed(self, worker: int, now: int) -> None:
        """Continue the steps of a worker on the cores that all share."""
        assert self.cores is not None  # noqa: S101
        steps = self.plans[worker].steps[self.timings.logged[worker]]
        overlapped = min(self.scheme.overlap, steps)
        steps = overlapped if worker in self.computing else steps - overlapped
        self.queue.share(self.cores, now, worker, steps * self.machines.core, self._ready)

    def _ready(self, worker: int, now: int) -> None:
        if worker in self.computing:
            self._computed_all(worker, now)
            return
        self.timings.ready[worker] = self.timings.computed[worker] = now
        if self.scheme.overlap:
            self.computing[worker] = None
            overlap = self.plans[worker].after_message(worker, self.timings.logged[worker], self.scheme.overlap)
            self.queue.at(now + overlap, OVERLAPPED, worker)
        self.exchange(worker, now)

    def _computed_all(self, worker: int, now: int) -> None:
        """End the steps after a message, and the round with the later of them and the reply."""
        self.timings.computed[worker], replied = now, self.computing.pop(worker)
        if replied is not None:
            self._end_round(worker, max(now, replied))

    def _send(self, worker: int, now: int) -> None:
        """Send a message, or a request for the center, which has no bytes."""
        up, number = self.network.up, self.sequencer.recorded[worker]
        kind = self.plans[worker].kinds[number]
        if up is None or self.events[kind] == "pull" or (way := self.network.way_up(worker, number)) is None:
            self._sent(worker, now)
        else:
            self.queue.share(up, now, worker, self.sizes.message(kind), self._sent, way)

    def _sent(self, worker: int, now: int) -> None:
        """Add the latency to a message whose bytes have all been sent."""
        latency = self.network.message_latency(worker, self.sequencer.recorded[worker])
        if latency:
            self.queue.at(now + latency, ARRIVE, worker)
        else:
            self.regional.arrive(worker, now)

    def _arrive(self, worker: int, now: int) -> None:
        """Apply a message that has arrived, when the lock has served those before it."""
        if self.server.over:
            return
        event = self.events[kind := self.plans[worker].kinds[self.sequencer.recorded[worker]]]
        size = (self.sizes.reply if event == "pull" else self.sizes.message)(kind)
        self.timings.arrived[worker] = begun = self._lock(now, self.service(size))
        self._release(self.process[event](worker, begun), begun, self.lock_free)
        self.grace.begin(begun)
        if worker == CHIEF and self.sequencer.recorded[CHIEF] == len(self.plans[CHIEF].steps):
            self.sequencer.start_others()

    def _lock(self, now: int, service: int = 0) -> int:
        """Hold the lock of the ps for `service` nanoseconds as soon as it is free; return when that begins."""
        begun = now if now > self.lock_free else self.lock_free
        self.lock_free = begun + service
        return begun

    def _release(self, workers: Sequence[int], released: int, at: int) -> None:
        """Release workers; their replies are sent at the time `at`, when computations that are now late are stopped."""
        self.cancelling.stop_late(at)  # first: a reply without bytes begins a computation at once, at a later time
        for worker in workers:
            self.timings.released[worker] = released
            if worker in self.away:
                self._miss(worker, at)
            elif at > released:
                self.queue.at(at, REPLY, worker)
            else:
                self._reply(worker, at)

    def _reply(self, worker: int, now: int) -> None:
        """Send a reply; the acknowledgement of a push has no bytes."""
        down, number = self.network.down, max(0, self.sequencer.recorded[worker] - 1)
        kind = self.plans[worker].kinds[number]
        pushed = worker not in self.fetching and self.events[kind] == "push"
        if down is None or pushed or (way := self.network.way_down(worker, number)) is None:
            self._replied(worker, now)
        else:
            self.queue.share(down, now, worker, self.sizes.reply(kind), self._replied, way)

    def _replied(self, worker: int, now: int) -> None:
        """Add the latency to a reply whose bytes have all been sent, and pass it to the worker."""
        now += self.network.reply_latency(worker, max(0, self.sequencer.recorded[worker] - 1))
        if worker in self.fetching:
            self.fetching.remove(worker)
            self._begin(worker, now)
        else:
            self._end_round(worker, now)

    def _end_round(self, worker: int, now: int) -> None:
        """Log the round of a worker that has its reply, unless it has crashed, and begin the next.

        If it still makes the steps after its message, the round ends with the later of these and the reply.
        """
        if worker in self.computing:
            self.computing[worker] = now
            return
        if now < self.crash_at[worker]:
            self.end = max(self.end, now)
            self.timings.log(worker, now)
            self._begin(worker, now)

    # Without a ps.

    def _reduce(self, worker: int, now: int) -> None:
        """Wait until the messages of all workers are ready, then reduce them together."""
        self.timings.arrived[worker] = now
        self.reducing.append(worker)
        if len(self.reducing) == self.workers:
            self.reducing, number = [], self.sequencer.version
            at = now + self.network.reductions(self.sizes.reductions(self.workers), number)
            for free in self.server.reduce(at):
                self.timings.released[free] = now
                self._end_round(free, at)

    def _step_alone(self, worker: int, now: int) -> None:
        """Apply the steps of a round of a single worker, which exchanges nothing."""
        self.timings.arrived[worker] = self.timings.released[worker] = now
        self.server.step_alone(self.plans[worker].steps[self.sequencer.recorded[worker]], now)
        self._end_round(worker, now)

    # Workers that crash, return and join.

    def _start_life(self, worker: int, now: int) -> None:
        """Start a life of a worker: schedule its crash."""
        if self.machines.failures:
            mean = self.machines.failures[0]
            self.crash_at[worker] = at = now + exponential_time(self.seed, "crash", worker, self.crashes[worker], mean)
            if at < NEVER:
                self.queue.at(at, CRASH, worker)

    def _crash(self, worker: int, now: int) -> None:
        """Take a worker down and schedule its return; its present round is lost, unless its message is recorded."""
        assert self.machines.failures is not None  # noqa: S101
        if self.server.over:
            return
        recorded = self.sequencer.recorded[worker] > self.timings.logged[worker]
        if recorded and worker not in self.sequencer.waiting.arrived:
            self.timings.log(worker, UNKNOWN)
        crashes, rounds = self.crashes[worker], self.timings.logged[worker]
        if crashes >= MOST_CRASHES * (1 + rounds):
            raise UserError(
                f"hardly a round of {self.scheme.name} ends between two crashes: let them be rarer. Received: "
                f"worker {worker} crashed {crashes} times in {rounds} rounds"
            )
        self.queue.lives[worker] += 1
        self.returned.discard(worker)
        self.computing.pop(worker, None)
        self.cancelling.crash(worker)
        self.away.add(worker)
        back = now + exponential_time(self.seed, "repair", worker, crashes, self.machines.failures[1])
        self.crashes[worker] += 1
        self.queue.at(back, BACK, worker)

    def _come_back(self, worker: int, now: int) -> None:
        """Start a new life of a worker, and let it join."""
        self._start_life(worker, now)
        self._join(worker, now)

    def _join(self, worker: int, now: int, log: bool = True) -> None:
        """Give a worker its slot; if its last message still waits in a set, it joins again after that set."""
        if self.server.over:
            return
        at = self._lock(now)
        if self.server.join(worker, at, log):
            self.returned.add(worker)
        else:
            self.away.discard(worker)
            self.fetching.add(worker)
            self.queue.at(at, REPLY, worker)

    def _miss(self, worker: int, now: int) -> None:
        """Log the round of an absent worker that its rule has released as lost; let the worker join if it is back."""
        self.timings.log(worker, UNKNOWN)
        if worker in self.returned:
            self.returned.remove(worker)
            self._join(worker, now)

    def _start_other(self, worker: int) -> None:
        """Start a worker from the present center: worker 0 has warmed up, or has done all its rounds."""
        self._start_life(worker, self.lock_free)
        self._join(worker, self.lock_free, log=False)
