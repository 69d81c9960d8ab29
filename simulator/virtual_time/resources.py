"""Shared resources (a network card with links to it, the cores of a machine), and the queue of events.

Fair sharing is max-min fair: all messages in transit have the same rate, limited by the worker's own link, and for all
of a region together by the link of the region. Rates are computed anew when a message begins or ends, for groups of
users whose rates are always equal (same link, same region). Each group has a clock that runs at its rate (virtual
service time), so the remaining bytes of a message are never stored. A group is a queue in the order of the ends:
messages of equal size end in the order in which they began, so a beginning or an end takes constant time, however many
messages are in transit.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Protocol

# The kinds of events: processed in this order at the same time. A computation that ends at the time of an update is not
# stopped: the update is later by the time that the lock takes, however short that is.
KINDS = CRASH, BACK, ARRIVE, REPLY, COMPUTED, CANCEL, OVERLAPPED, GRACE, HELD = range(9)

NEVER = 1 << 62  # nanoseconds: 146 years

DUST = 1e-3  # nanoseconds: remainders of a message below this are rounding errors

INSTANTLY = 1e9  # bytes per nanosecond: the largest rate

Act = Callable[[int, int], None]  # called with a worker and the time

NEXT = attrgetter("next")

PROGRESS_EVENTS = 4096  # between two calls of `progress`


class EqualUsers:
    """Users whose rates are always equal.

    Attributes:
        cap: the largest rate of each user.
        rate: the present rate of each user.
        served: bytes that a user in transit since the beginning would have sent by `now`.
        next: time at which the first user ends.
        queue: users in transit, ordered by `served` at their end, then by their beginning.
    """

    def __init__(self, cap: float, region: int):
        self.cap, self.region = cap, region
        self.rate, self.served, self.now, self.next = cap, 0.0, 0, NEVER
        self.queue: deque[tuple[float, int, Any]] = deque()

    def run(self, now: int) -> None:
        """Advance the clock to `now`."""
        self.served += self.rate * (now - self.now)
        self.now = now

    def look_ahead(self) -> None:
        """Set `next` from the present rate."""
        left = (self.queue[0][0] - self.served) / self.rate - DUST
        self.next = self.now + (math.ceil(left) if left > 0 else 0)


class Fair:
    """A resource with max-min fair sharing.

    Args:
        capacity: total rate that all share.
        caps: rate of each worker's own link, [W].
        regions: region of each worker, [W].
        region_caps: rate of each region's link.

    Attributes:
        next: time of the next end of a message in transit, in nanoseconds; `NEVER` if none is in transit.
    """

    def __init__(self, capacity: float, caps: Sequence[float], regions: Sequence[int], region_caps: Sequence[float]):
        groups: dict[tuple[float, int], EqualUsers] = {}
        for cap, region in zip(caps, regions, strict=True):
            groups.setdefault((cap, region), EqualUsers(min(cap, region_caps[region], capacity, INSTANTLY), region))
        self.group = [groups[key] for key in zip(caps, regions, strict=True)]
        self.capacity, self.region_caps = capacity, region_caps
        self.busy: list[EqualUsers] = []
        self.busy_in: list[list[EqualUsers]] = [[] for _ in region_caps]
        self.wanted_in = [0.0] * len(region_caps)  # rate of the users in transit, if each had its cap
        self.demand = [0.0] * len(region_caps)  # that rate, limited by the region's link
        self.wanted = 0.0  # the sum of these
        self.saturated = [False] * len(region_caps)  # True if some user of the region has less than its cap
        self.tight = False  # True if some user has less than its region allows
        self.sent = 0
        self.next = NEVER
        self.first: EqualUsers | None = None  # the group that ends next

    def send(self, now: int, way: int, size: float, payload: Any) -> None:
        """Start a use of `size` by the worker `way`; `pop` returns `payload` at its end."""
        group = self.group[way]
        if group.queue:
            group.run(now)
        else:
            group.served, group.now, group.rate = 0.0, now, group.cap
            self.busy.append(group)
            self.busy_in[group.region].append(group)
        self.sent += 1
        end = group.served + size
        if not group.queue or end >= group.queue[-1][0]:
            group.queue.append((end, self.sent, payload))
        else:
            insort(group.queue, (end, self.sent, payload))
        self._price(group, group.cap, now)

    def pop(self) -> Any:
        """End the use that is complete at `next`, and return its `payload`."""
        group, now = self.first, self.next
        assert group is not None  # noqa: S101
        group.run(now)
        payload = group.queue.popleft()[2]
        if not group.queue:
            self.busy.remove(group)
            self.busy_in[group.region].remove(group)
        self._price(group, -group.cap, now)
        return payload

    def _price(self, changed: EqualUsers, more: float, now: int) -> None:
        """Update rates and the next end after the wanted rate of a group has changed by `more`.

        While all users have what their regions allow, a change in one region does not affect the others; and while the
        region is not saturated either, it changes no rate.
        """
        region = changed.region
        wanted, cap = self.wanted_in[region] + more, self.region_caps[region]
        saturated = wanted > cap
        demand = cap if saturated else wanted
        self.wanted += demand - self.demand[region]
        self.wanted_in[region], self.demand[region] = wanted, demand
        tight = self.wanted > self.capacity
        if tight or self.tight:
            self._fill(self.busy, now)
        elif saturated or self.saturated[region]:
            self._fill(self.busy_in[region], now)
        elif changed.queue:
            changed.look_ahead()
        self.tight, self.saturated[region] = tight, saturated
        self.first = min(self.busy, key=NEXT) if len(self.busy) > 1 else self.busy[0] if self.busy else None
        self.next = self.first.next if self.first else NEVER

    def _fill(self, groups: Sequence[EqualUsers], now: int) -> None:
        """Set each group's rate: the limit of its own link and its region's, up to a level that fills the capacity."""
        if len(groups) == 1:  # the usual case; this branch takes a third of the time
            (group,) = groups
            if group.now != now:
                group.run(now)
            cap = self.region_caps[group.region]
            rate = (self.capacity if self.capacity < cap else cap) / len(group.queue)
            group.rate = rate if rate < group.cap else group.cap
            group.look_ahead()
            return
        users = [(self._in_region(group), len(group.queue)) for group in groups]
        fair = level(self.capacity, users)
        for group, (rate, _) in zip(groups, users, strict=True):
            group.run(now)
            group.rate = min(rate, fair)
            group.look_ahead()

    def _in_region(self, group: EqualUsers) -> float:
        """Return the rate of each user of a group as limited by its own link and its region alone."""
        cap = self.region_caps[group.region]
        if self.wanted_in[group.region] <= cap:
            return group.cap
        if len(self.busy_in[group.region]) == 1:
            return min(group.cap, cap / len(group.queue))
        users = [(other.cap, len(other.queue)) for other in self.busy_in[group.region]]
        return min(group.cap, level(cap, users))


def level(capacity: float, users: Sequence[tuple[float, int]]) -> float:
    """Return the largest rate of a user with which all together use up a capacity (water filling).

    Args:
        capacity: total rate that is shared.
        users: pairs of a cap and the number of users with that cap.
    """
    if len(users) == 1:
        return capacity / users[0][1]
    left, number = capacity, sum(count for _, count in users)
    for cap, count in sorted(users):
        if cap * number >= left:
            return left / number
        left, number = left - cap * count, number - count
    return math.inf


def one_machine(cores: int | None, workers: int) -> Fair | None:
    """Return the cores that all workers share, at most one core each, or None; sizes are in nanoseconds of a core."""
    return Fair(cores, [1.0] * workers, [0] * workers, [math.inf]) if cores else None


class Shared(Protocol):
    """A resource of which each use ends later, the later the more others there are."""

    @property
    def next(self) -> int:
        """Time of the next end of a use, in nanoseconds; `NEVER` if there is none."""
        ...

    def send(self, now: int, way: Any, size: float, payload: Any) -> None:
        """Start a use of `size`, by a worker or on a way; `pop` returns `payload` at its end."""

    def pop(self) -> Any:
        """End the use that is complete at `next`, and return its `payload`."""


def _no_act(worker: int, now: int) -> None:
    raise NotImplementedError("no part of this run has events of this kind")


class EventQueue:
    """A heap of future events, and shared resources, each of which knows its own next event.

    An event belongs to one life of a worker, and is dropped if the worker has crashed since. Events at the same time
    are ordered by kind and worker; those of shared resources are last.

    Args:
        workers: W, and the numbers of others that have events.

    Attributes:
        acts: the function to call for an event, by its kind: `on` sets it.
        shared: the shared resources, in the order of their events at the same time.
        lives: number of lives that each worker has ended, [W].
    """

    def __init__(self, workers: int):
        self.acts: list[Act] = [_no_act] * len(KINDS)
        self.shared: list[Shared] = []
        self.heap: list[tuple[int, int, int, int]] = []
        self.lives = [0] * workers

    def on(self, kind: int, act: Act) -> None:
        """Let events of a kind call this function."""
        self.acts[kind] = act

    def add(self, *shared: Shared | None) -> None:
        """Add shared resources; those that are None are unlimited."""
        self.shared += [resource for resource in shared if resource is not None]

    def at(self, time: int, kind: int, worker: int) -> None:
        """Schedule an event of a worker in its present life."""
        heappush(self.heap, (time, kind, worker, self.lives[worker]))

    def share(self, thing: Shared, now: int, worker: int, size: float, act: Act, way: Any = None) -> None:
        """Start a use of a shared resource in a worker's present life, by it or on a way; call `act` at its end."""
        thing.send(now, worker if way is None else way, size, (act, worker, self.lives[worker]))

    def run(self, progress: Callable[[int], None]) -> None:
        """Process all events in order of time; `progress` receives their number every `PROGRESS_EVENTS` events.

        Raises:
            OverflowError: an event would be later than `NEVER`.
        """
        heap, shared, acts, lives, happened, before = self.heap, self.shared, self.acts, self.lives, 0, -1
        while True:
            now, source = heap[0][0] if heap else NEVER, None
            if now > before:  # else no resource is asked, which would compute rates anew after each beginning
                for thing in shared:
                    if (end := thing.next) < now:
                        now, source = end, thing
            if now >= NEVER:
                break
            before = now
            if source is None:
                _, kind, worker, life = heappop(heap)
                act = acts[kind]
            else:
                act, worker, life = source.pop()
            if life == lives[worker]:
                act(worker, now)
            happened += 1
            if happened % PROGRESS_EVENTS == 0:
                progress(happened)
        if heap or any(thing.next > NEVER for thing in shared):
            raise OverflowError
