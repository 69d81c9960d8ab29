"""The rounds that a worker does, written short: what repeats is there once, whatever the length of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..gates.store import Event

Round = tuple[int, Event]  # local steps, and how it ends


@dataclass(frozen=True)
class Rounds:
    """Rounds, one after the other. To count them, to add up their steps and to begin in the middle costs nothing.

    Attributes:
        parts: rounds that follow each other, and how many times they do.
    """

    parts: tuple[tuple[Sequence[Round], int], ...] = ()

    @classmethod
    def even(cls, steps: int, period: int) -> Rounds:
        """Exchanges after each period; the last round is shorter if the period does not divide the steps."""
        whole, rest = divmod(steps, period)
        return cls(((((period, "exchange"),), whole),)) + cls(((((rest, "exchange"),), min(rest, 1)),))

    @classmethod
    def repeating(cls, rounds: Callable[[int, bool], Iterable[Round]], steps: int, *periods: int) -> Rounds:
        """Rounds that repeat when all periods end together.

        Args:
            rounds: those of that number of steps, which are the last ones of the run or not.
            steps: of the run; its last cycle, perhaps a part of one, is never a repetition.
            periods: of what happens in a round.
        """
        cycle = math.lcm(*periods)
        cycles = max(0, steps - 1) // cycle
        pattern = tuple(rounds(cycle, False)) if cycles else ()
        return cls(((pattern, cycles), (tuple(rounds(steps - cycles * cycle, True)), 1)))

    def __add__(self, other: Rounds) -> Rounds:
        return Rounds(self.parts + other.parts)

    def __iter__(self) -> Iterator[Round]:
        return self.after(0)

    def __len__(self) -> int:
        return sum(len(pattern) * times for pattern, times in self.parts)

    @property
    def messages(self) -> int:
        """Rounds that end with a message."""
        return sum(sum(event != "pull" for _, event in pattern) * times for pattern, times in self.parts)

    @property
    def longest(self) -> int:
        """Local steps of the longest round, or 0."""
        return max((steps for pattern, times in self.parts if times for steps, _ in pattern), default=0)

    def first(self, number: int) -> Rounds:
        """The first `number` rounds."""
        return Rounds(((tuple(itertools.islice(self, number)), 1),))

    def after(self, done: int) -> Iterator[Round]:
        """The rounds that are left when `done` are done."""
        for pattern, times in self.parts:
            number = len(pattern) * times
            for i in range(min(done, number), number):
                yield pattern[i % len(pattern)]
            done = max(0, done - number)

    def steps(self, done: float = math.inf) -> int:
        """Local steps of the first `done` rounds, or of all."""
        total = 0
        for pattern, times in self.parts:
            here = int(min(done, len(pattern) * times))
            done -= here
            cycles, more = divmod(here, len(pattern)) if pattern else (0, 0)
            total += cycles * sum(steps for steps, _ in pattern) + sum(steps for steps, _ in pattern[:more])
        return total
