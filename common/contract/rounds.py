"""The rounds of a worker, and their kinds: what a worker and the server exchange at the end of a round.

The rounds of a run are kept in compact form: a repeated pattern is stored once, whatever the length of the run.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..messages.codec import Codec
from ..sync.store import Event
from .seeded import OF_ROUNDS, uniform_numbers

COINS = 1 << 16  # coins of a run that differ

ENDLESS = 2 * 10**12  # local steps of a worker whose last step is not known: more than any run may have

Round = tuple[int, str]  # local steps, and the kind by its name


def coins_of(seed: int, probability: float) -> np.ndarray:
    """Return the coins of a run, which all its workers have: [`COINS`] booleans, True with this probability."""
    return uniform_numbers(seed, COINS, OF_ROUNDS) < probability


@dataclass(frozen=True)
class Kind:
    """What a worker and the server exchange at the end of a round, see `Scheme.kinds`.

    Attributes:
        sends: False if the worker sends no message, and asks for the center alone.
        answered: False if the worker waits for no reply, but for the acknowledgement alone.
        codec: encoding of the message, or of message and reply; as `Scheme.codec` says if not given.
    """

    sends: bool = True
    answered: bool = True
    codec: Codec | tuple[Codec, Codec] | None = None

    @property
    def event(self) -> Event:
        """The event on the server, as the record names it."""
        return ("exchange" if self.answered else "push") if self.sends else "pull"


# The kinds with these names send the same message; one of any other name has a message of its own.
USUAL = {"exchange": Kind(), "push": Kind(answered=False), "pull": Kind(sends=False)}


@dataclass(frozen=True)
class Rounds:
    """A sequence of rounds. Its length, its sum of steps and a start in the middle are found without iterating over it.

    Attributes:
        parts: patterns of consecutive rounds, each with its number of repetitions.
    """

    parts: tuple[tuple[Sequence[Round], int], ...] = ()

    @classmethod
    def even(cls, steps: int, period: int, kind: str = "exchange") -> Rounds:
        """Build rounds of one kind, of one period each; the last is shorter if the steps are no multiple."""
        whole, remainder = divmod(steps, period)
        return cls(((((period, kind),), whole),)) + cls(((((remainder, kind),), min(remainder, 1)),))

    @classmethod
    def even_share(cls, steps: int, period: int, share: float) -> Rounds:
        """Build rounds as `even` does, of which a worker makes a share of the steps, at least one."""
        length, last = (max(1, round(share * number)) for number in (period, steps % period))
        return cls.even(steps // period * length, length) + cls.even(last if steps % period else 0, last)

    @classmethod
    def ending_at(cls, period: int, steps: int, done: int = 0) -> Rounds:
        """Build rounds that end with the steps 0, H, 2H, ..., period H; the steps after the last of these are left out.

        Args:
            period: H.
            steps: local steps of the run.
            done: local steps of the run that this one resumes.
        """
        before, number = (-(-end // period) for end in (done, done + steps))
        first = cls.even(min(1, number), 1) if not before else cls()
        return first + cls.even((number - before - len(first)) * period, period)

    @classmethod
    def drawn(cls, probability: float, seed: int, steps: int, done: int = 0) -> Rounds:
        """Build rounds each step of which is the last with a probability, by a coin that is the same on all workers.

        The coins repeat after `COINS` steps. The last round ends with the run.

        Args:
            probability: that of a step to be the last of its round, above 0.
            seed: that of the run.
            steps: local steps of the run.
            done: local steps of the run that this one resumes.
        """
        lasts = np.flatnonzero(coins_of(seed, probability))
        ends = np.sort((lasts - done) % COINS) + 1 if len(lasts) else np.array([COINS])
        ends = np.append(ends, ends[0] + COINS)  # a whole cycle after the first round

        def cycle(length: int, _: bool) -> Iterable[Round]:
            lengths = np.diff(np.minimum(ends - ends[0], length)).tolist()
            return [(steps, "exchange") for steps in lengths if steps]

        first = min(steps, int(ends[0]))
        return cls.even(first, max(1, first)) + cls.repeating(cycle, steps - first, COINS)

    @classmethod
    def repeating(cls, rounds: Callable[[int, bool], Iterable[Round]], steps: int, *periods: int) -> Rounds:
        """Build rounds whose pattern repeats after the least common multiple of the periods.

        Args:
            rounds: returns the rounds of a number of steps; the flag is True for the last cycle of the run.
            steps: steps of the run; its last cycle, which may be incomplete, is never a repetition.
            periods: periods, in steps, of all that recurs in the rounds.
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
    def longest(self) -> int:
        """Local steps of the longest round, or 0."""
        return max((steps for pattern, times in self.parts if times for steps, _ in pattern), default=0)

    def kinds(self, done: float = math.inf) -> Counter[str]:
        """Return the number of rounds of each kind among the first `done`, or among all."""
        found: Counter[str] = Counter()
        for pattern, cycles, more in self._first(done):
            for length, times in ((len(pattern), cycles), (more, 1)):
                found.update({kind: times * number for kind, number in Counter(k for _, k in pattern[:length]).items()})
        return +found

    def first(self, number: int) -> Rounds:
        """Return the first `number` rounds."""
        return Rounds(((tuple(itertools.islice(self, number)), 1),))

    def after(self, done: int) -> Iterator[Round]:
        """Yield the rounds after the first `done`."""
        for pattern, times in self.parts:
            number = len(pattern) * times
            for i in range(min(done, number), number):
                yield pattern[i % len(pattern)]
            done = max(0, done - number)

    def steps(self, done: float = math.inf) -> int:
        """Return the local steps of the first `done` rounds, or of all."""
        total = 0
        for pattern, cycles, more in self._first(done):
            total += cycles * sum(steps for steps, _ in pattern) + sum(steps for steps, _ in pattern[:more])
        return total

    def _first(self, done: float) -> Iterator[tuple[Sequence[Round], int, int]]:
        """Yield for each pattern how often the first `done` rounds have it, and how many more of its rounds."""
        for pattern, times in self.parts:
            part_rounds = int(min(done, len(pattern) * times))
            done -= part_rounds
            cycles, more = divmod(part_rounds, len(pattern)) if pattern else (0, 0)
            yield pattern, cycles, more
