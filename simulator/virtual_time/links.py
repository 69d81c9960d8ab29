"""Links between any two machines, each of which several messages share in different company.

A message has a way: the links that it takes at once, all of which it occupies at its one rate. With fair sharing rates
are max-min fair: no message could have more without taking from one that has no more. The link whose share is least
sets the rate of its messages, then the others divide what is left. First come, first served, a message has what those
before it leave on each of its links.

`resources.Fair` is the special case of one card that all share, in which a beginning or an end takes constant time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .resources import DUST, INSTANTLY, NEVER

FREE = -1  # in place of a link, at the end of a way


class SharedLinks:
    """Messages on their ways.

    Args:
        rates: rate of each link, in bytes per nanosecond.
        way: returns the links of a message, given that with which it is sent; at most `longest` of them are limited.
        longest: the most limited links of a way.
        fifo: True if messages share a link one after the other.

    Attributes:
        now: the time up to which messages have moved.
        ended: messages that have ended by then and are not taken.
        payloads: the messages that move, in the order of their beginnings, [n].
        ways: their links, [longest, n].
        left: their bytes that are not sent, [n].
        speed: their rates, [n].
        new: messages that have begun at `now`.
        changed: True if messages have begun or ended since the rates were computed.
    """

    def __init__(self, rates: Sequence[float], way: Callable[[Any], Sequence[int]], longest: int, fifo: bool):
        self.rates = np.array([*rates, math.inf])  # the last stands for `FREE`
        self.limited = np.isfinite(self.rates).tolist()
        self.way, self.longest, self.fifo = way, longest, fifo
        self.now, self.end = 0, NEVER
        self.ended: list[Any] = []
        self.payloads: list[Any] = []
        self.ways = np.empty((longest, 0), np.int64)
        self.left, self.speed = np.empty(0), np.empty(0)
        self.new: list[tuple[Any, float, list[int]]] = []
        self.changed = False

    @property
    def next(self) -> int:
        """Time of the next end of a message, in nanoseconds; `NEVER` if none moves."""
        if self.ended:
            return self.now
        if self.changed:
            self._share()
        return self.end

    def send(self, now: int, way: Any, size: float, payload: Any) -> None:
        """Start a message of so many bytes; `pop` returns `payload` at its end."""
        self._move(now)
        links = [link for link in self.way(way) if self.limited[link]]
        self.new.append((payload, size, links + [FREE] * (self.longest - len(links))))
        self.changed = True

    def pop(self) -> Any:
        """End the message that is complete at `next`, and return its `payload`."""
        if not self.ended:
            self._move(self.end)
            over = self.left <= self.speed * DUST
            if not over.any():  # rounding has left more than dust of gigabytes: the message nearest to its end is over
                times = np.divide(self.left, self.speed, out=np.full_like(self.left, np.inf), where=self.speed > 0)
                over[np.argmin(times)] = True
            places = np.flatnonzero(over).tolist()
            self.ended = [self.payloads[i] for i in places]
            for i in reversed(places):
                del self.payloads[i]
            self.ways, self.left, self.speed = self.ways[:, ~over], self.left[~over], self.speed[~over]
            self.changed = True
        return self.ended.pop(0)

    def _move(self, now: int) -> None:
        """Let the messages move until `now`."""
        if now > self.now:
            if self.changed:
                self._share()
            self.left = self.left - self.speed * (now - self.now)
            self.now = now

    def _share(self) -> None:
        """Set the rates of all messages, and the next end."""
        if self.new:
            payloads, sizes, ways = zip(*self.new, strict=True)
            self.payloads += payloads
            self.ways = np.concatenate([self.ways, np.array(ways, np.int64).T % len(self.rates)], 1)
            self.left = np.concatenate([self.left, sizes])
            self.new = []
        self.speed = one_by_one(self.rates, self.ways) if self.fifo else max_min(self.rates, self.ways)
        ends = self.left[self.speed > 0] / self.speed[self.speed > 0]
        self.end = self.now + max(0, math.ceil(ends.min() - DUST)) if len(ends) else NEVER
        self.changed = False


def max_min(rates: np.ndarray, ways: np.ndarray) -> np.ndarray:
    """Return the max-min fair rate of each message, [n], given the rates of the links, [L], and the ways, [longest, n].

    The last link is unlimited.
    """
    found, left = np.full(ways.shape[1], INSTANTLY), rates.copy()
    number = np.arange(len(found))
    while ways.size:
        share = left / np.maximum(np.bincount(ways.ravel(), minlength=len(rates)), 1)
        of_links = share[ways]
        bound = np.minimum(of_links.min(0), INSTANTLY)
        held = np.bincount(ways.ravel(), (bound < of_links).ravel(), len(rates))  # messages that another link holds up
        done = (held[ways] == 0).any(0) | (bound == INSTANTLY)
        found[number[done]] = bound[done]
        left -= np.bincount(ways[:, done].ravel(), np.tile(bound[done], len(ways)), len(rates))
        np.maximum(left, 0, out=left)
        ways, number = ways[:, ~done], number[~done]
    return found


def one_by_one(rates: np.ndarray, ways: np.ndarray) -> np.ndarray:
    """Return the rates, see `max_min`, if each message has what those before it leave on its links."""
    left, found = rates.tolist(), np.zeros(ways.shape[1])
    shared = [link for link in ways[:, :1].ravel().tolist() if (ways == link).any(0).all()]
    for i, way in enumerate(ways.T.tolist()):
        rate = found[i] = min(min(left[link] for link in way), INSTANTLY)
        for link in way:
            left[link] -= rate
        if any(left[link] <= 0 for link in shared):  # of all: nothing is left for those that follow
            break
    return found
