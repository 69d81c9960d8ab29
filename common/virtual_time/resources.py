"""What many use at once: a network card, a link, the cores of a machine.

Fair sharing is max-min fair: all that are on their way get the same, but nobody more than its own link takes, nor all
of a region more than the link of that region. It is worked out anew when one begins or ends, for groups of users that
always get the same (same link, same region): each group has a clock that runs at their rate (virtual service time), so
what is left of a message is never written down. Those of a group are in the order of their ends: messages of the same
size end as they began, so that one that begins or ends takes the same time, however many are on their way.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

NEVER = 1 << 62  # nanoseconds: 146 years

DUST = 1e-3  # nanoseconds: what rounding leaves of a message

INSTANTLY = 1e9  # bytes per nanosecond


class Shared(Protocol):
    """Something that is shared.

    Attributes:
        next: when the next of those on their way has got through, in nanoseconds; `NEVER` if there is none.
    """

    next: int

    def send(self, now: int, worker: int, size: float, what: Any) -> None:
        """A worker begins; `what` is handed back at the end."""
        ...

    def pop(self) -> Any:
        """What gets through at `next`."""
        ...


class Group:
    """Those that always get the same.

    Attributes:
        cap: the most that each can have.
        rate: that each has now.
        served: how much each would have had by `now` that was there from the beginning.
        next: when the first of them ends.
        queue: of those on their way, by `served` at their end, and by who began first.
    """

    def __init__(self, cap: float, region: int):
        self.cap, self.region = cap, region
        self.rate, self.served, self.now, self.next = cap, 0.0, 0, NEVER
        self.queue: deque[tuple[float, int, Any]] = deque()

    def run(self, now: int) -> None:
        """Bring the clock up to date."""
        self.served += self.rate * (now - self.now)
        self.now = now

    def look_ahead(self) -> None:
        """When the first of them ends, at this rate."""
        left = (self.queue[0][0] - self.served) / self.rate - DUST
        self.next = self.now + (math.ceil(left) if left > 0 else 0)


class Fair:
    """Max-min fair sharing.

    Args:
        capacity: of what all share.
        caps: of each worker's own link, [W].
        regions: of each worker, [W].
        region_caps: of each region's link.
    """

    def __init__(self, capacity: float, caps: Sequence[float], regions: Sequence[int], region_caps: Sequence[float]):
        made: dict[tuple[float, int], Group] = {}
        for cap, region in zip(caps, regions, strict=True):
            made.setdefault((cap, region), Group(min(cap, region_caps[region], capacity, INSTANTLY), region))
        self.group = [made[key] for key in zip(caps, regions, strict=True)]
        self.capacity, self.region_caps = capacity, region_caps
        self.busy: list[Group] = []
        self.busy_in: list[list[Group]] = [[] for _ in region_caps]
        self.wanted_in = [0.0] * len(region_caps)  # by those on their way, if each had its cap
        self.demand = [0.0] * len(region_caps)  # what of that the region's link lets through
        self.wanted = 0.0  # the sum of these
        self.crowded = [False] * len(region_caps)  # True if not everybody in the region has its cap
        self.tight = False  # True if not everybody has what its region leaves
        self.sent = 0
        self.next = NEVER
        self.first: Group | None = None  # whose head is next

    def send(self, now: int, worker: int, size: float, what: Any) -> None:
        """See `Shared`."""
        group = self.group[worker]
        if group.queue:
            group.run(now)
        else:
            group.served, group.now, group.rate = 0.0, now, group.cap
            self.busy.append(group)
            self.busy_in[group.region].append(group)
        self.sent += 1
        end = group.served + size
        if not group.queue or end >= group.queue[-1][0]:
            group.queue.append((end, self.sent, what))
        else:
            insort(group.queue, (end, self.sent, what))
        self._price(group, group.cap, now)

    def pop(self) -> Any:
        """See `Shared`."""
        group, now = self.first, self.next
        assert group is not None  # noqa: S101
        group.run(now)
        what = group.queue.popleft()[2]
        if not group.queue:
            self.busy.remove(group)
            self.busy_in[group.region].remove(group)
        self._price(group, -group.cap, now)
        return what

    def _price(self, changed: Group, more: float, now: int) -> None:
        """The rates from now on, where so much more is wanted, and who is next.

        While all have what their regions leave, what changes in one region is nothing to the others; and while there is
        enough in that region, too, nobody's rate changes.
        """
        region = changed.region
        wanted, cap = self.wanted_in[region] + more, self.region_caps[region]
        crowded = wanted > cap
        demand = cap if crowded else wanted
        self.wanted += demand - self.demand[region]
        self.wanted_in[region], self.demand[region] = wanted, demand
        tight = self.wanted > self.capacity
        if tight or self.tight:
            self._fill(self.busy, now)
        elif crowded or self.crowded[region]:
            self._fill(self.busy_in[region], now)
        elif changed.queue:
            changed.look_ahead()
        self.tight, self.crowded[region] = tight, crowded
        self.first = min(self.busy, key=_next) if len(self.busy) > 1 else self.busy[0] if self.busy else None
        self.next = self.first.next if self.first else NEVER

    def _fill(self, groups: Sequence[Group], now: int) -> None:
        """Each has what its own link and its region's leave, up to a level that fills what all share."""
        if len(groups) == 1:  # the usual case, in a third of the time
            (group,) = groups
            if group.now != now:
                group.run(now)
            least = self.region_caps[group.region]
            rate = (self.capacity if self.capacity < least else least) / len(group.queue)
            group.rate = rate if rate < group.cap else group.cap
            group.look_ahead()
            return
        users = [(self._in_region(group), len(group.queue)) for group in groups]
        most = level(self.capacity, users)
        for group, (rate, _) in zip(groups, users, strict=True):
            group.run(now)
            group.rate = min(rate, most)
            group.look_ahead()

    def _in_region(self, group: Group) -> float:
        """What each of a group has if its region is all there is."""
        cap = self.region_caps[group.region]
        if self.wanted_in[group.region] <= cap:
            return group.cap
        if len(self.busy_in[group.region]) == 1:
            return min(group.cap, cap / len(group.queue))
        here = [(other.cap, len(other.queue)) for other in self.busy_in[group.region]]
        return min(group.cap, level(cap, here))


def _next(group: Group) -> int:
    return group.next


def level(capacity: float, users: Sequence[tuple[float, int]]) -> float:
    """What nobody gets more of, so that all together use up a capacity: water poured over caps.

    Args:
        capacity: of what is shared.
        users: a cap, and how many have that one.
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
    """The cores that all workers share, each of them one at most, if they do; sizes are in nanoseconds of a core."""
    return Fair(cores, [1.0] * workers, [0] * workers, [math.inf]) if cores else None


class OneByOne:
    """First come, first served: each has what its own link takes of what those before it leave.

    Args:
        capacity: of what all share.
        caps: of each worker's own link, [W].
        regions: of each worker, [W].
        region_caps: of each region's link.
    """

    def __init__(self, capacity: float, caps: Sequence[float], regions: Sequence[int], region_caps: Sequence[float]):
        self.capacity, self.caps, self.regions, self.region_caps = capacity, caps, regions, region_caps
        self.queue: list[Turn] = []
        self.moving: list[Turn] = []
        self.now, self.next = 0, NEVER

    def send(self, now: int, worker: int, size: float, what: Any) -> None:
        """See `Shared`."""
        self.queue.append(Turn(worker, size, what))
        self._share(now)

    def pop(self) -> Any:
        """See `Shared`."""
        first = min(self.moving, key=lambda turn: turn.left / turn.rate)
        self.queue.remove(first)
        self._share(self.next)
        return first.what

    def _share(self, now: int) -> None:
        """What each has from now on."""
        for turn in self.moving:
            turn.left -= turn.rate * (now - self.now)
        self.now, self.moving = now, []
        left, left_in = self.capacity, list(self.region_caps)
        for turn in self.queue:
            region = self.regions[turn.worker]
            turn.rate = min(self.caps[turn.worker], left_in[region], left, INSTANTLY)
            left, left_in[region] = left - turn.rate, left_in[region] - turn.rate
            if turn.rate > 0:
                self.moving.append(turn)
            if left <= 0:
                break
        ends = [turn.left / turn.rate for turn in self.moving]
        self.next = now + max(0, math.ceil(min(ends) - DUST)) if ends else NEVER


@dataclass(eq=False)
class Turn:
    """A message in a queue: bytes that are left, and what it has of the link now."""

    worker: int
    left: float
    what: Any
    rate: float = 0.0
