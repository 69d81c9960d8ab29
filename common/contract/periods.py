"""Rules by which the local steps of a round change over a run: the text of a `Period`, as in "qsr:0.0175,4"."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from ..arguments import at_least
from ..errors import UserError
from ..lazy import tf
from .rounds import ENDLESS, Rounds

MOST_ROUNDS = 1 << 14  # of a run without an end, after which its period is that of the last one

ROUNDING = 1e-6  # relative; 0.3/0.1 is less than three, and schedules compute in float32

Kept = TypeVar("Kept")

Rate = float | Callable[[Any], Any]


@dataclass(frozen=True)
class PeriodRule:
    """How the period of a run follows from its step, its rate or its loss.

    Attributes:
        kind: `post-local` makes rounds of one step at first; `qsr` makes rounds of max(H, ⌊(α/η)²⌋) steps, with the
            rate η at the first step of each round, and of H steps while the rate rises; `adacomm` makes rounds that
            become shorter as the loss falls, see `periods`.
        value: number of steps at first, α, or the number of rounds after which the period follows the loss.
        period: H, local steps.
    """

    kind: Literal["post-local", "qsr", "adacomm"]
    value: float
    period: int

    def __str__(self) -> str:
        value = self.value if self.value % 1 else int(self.value)
        return f"{self.kind}:{value},{self.period}"

    @property
    def least(self) -> int:
        """A period of more than one step: rounds of one step are rounds of several, too."""
        return max(2, self.period)

    @property
    def adapts(self) -> bool:
        """True if the rounds follow from the losses of the run, and are not known before it."""
        return self.kind == "adacomm"

    def periods(self, losses: Sequence[float]) -> list[int]:
        """Return the period of each block of rounds up to the first whose end is not known: AdaComm.

        It is H at first, then ⌈H √(F/F₀)⌉, or half of the one before if that is not smaller (Wang and Joshi, *Adaptive
        Communication Strategies to Achieve the Best Error-Runtime Trade-off in Local-Update SGD*, SysML 2019,
        arXiv:1810.08313, which asks anew after a time; here it is a number of rounds).

        Args:
            losses: F₀, the mean loss of the first round, then F of each block; the period remains after the last.
        """
        found = [self.period]
        for loss in losses[1:]:
            falls = 0 <= loss < losses[0]  # not if one of them is no number
            wanted = math.ceil(self.period * math.sqrt(loss / losses[0])) if falls else self.period
            found.append(max(1, wanted) if wanted < found[-1] else -(-found[-1] // 2))
        return found

    def adapted(self, targets: Sequence[int], losses: Sequence[float]) -> Rounds:
        """Build the rounds of a run that follow from its losses so far; those after them have the last period.

        Args:
            targets: local steps of the runs that it resumes, and its own: the last round of each may be shorter.
            losses: those of `periods`.
        """
        rounds, number, step, periods = Rounds(), 0, 0, self.periods(losses)
        for target in targets:
            while step < target:
                block = min(number // int(self.value), len(periods) - 1)
                period, is_last = periods[block], block == len(periods) - 1
                whole = (target - step) // period
                if not is_last:
                    whole = min(whole, (block + 1) * int(self.value) - number)
                part = Rounds.even(whole * period, period) if whole else Rounds.even(target - step, target - step)
                rounds, number, step = rounds + part, number + len(part), step + part.steps()
        return rounds

    def rounds(self, rate: Rate | None, steps: int, done: int = 0) -> Rounds:
        """Build the rounds of a run of `steps` local steps after `done` earlier ones.

        Args:
            rate: η, or a schedule of local steps; a run without an end follows it for `MOST_ROUNDS` rounds.
            steps: local steps of the run.
            done: local steps of the run that this one resumes.
        """
        if self.kind == "post-local":
            single = min(steps, max(0, int(self.value) - done))
            return Rounds.even(single, 1) + Rounds.even(steps - single, self.period)
        if self.adapts:
            return self.adapted([steps], ())
        if not callable(rate):
            return Rounds.even(steps, self._at(float(rate or 0), steps))
        return _rounds_at(self, Same(rate), steps, done)

    def lengths(self, rate: Callable[[Any], Any], steps: int, done: int) -> Iterator[int]:
        """Yield the local steps of each round, which follow the schedule of the rate."""
        t = done
        while t < done + steps:
            eta, after = (_number(rate, t + i) for i in (0, 1))
            length = min(self.period if after > eta else self._at(eta, steps), done + steps - t)
            yield length
            t += length

    def _at(self, rate: float, most: int) -> int:
        steps = (self.value / rate) ** 2 if rate > 0 else math.inf
        return max(self.period, math.floor(min(steps, most) * (1 + ROUNDING)))


class Same(Generic[Kept]):
    """An object as a key of a cache, by its identity: a user's schedule, and a scheme that has it, may have no hash."""

    def __init__(self, value: Kept):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


@functools.lru_cache(maxsize=16)  # all workers have the same
def _rounds_at(rule: PeriodRule, rate: Same[Callable[[Any], Any]], steps: int, done: int) -> Rounds:
    most = None if steps < ENDLESS else MOST_ROUNDS
    lengths = [*itertools.islice(rule.lengths(rate.value, steps, done), most)]
    last = lengths[-1] if lengths else rule.period
    return Rounds(((tuple((length, "exchange") for length in lengths), 1),)) + Rounds.even(steps - sum(lengths), last)


def _number(rate: Callable[[Any], Any], step: int) -> float:
    """Return the rate after `step` local steps, as a number."""
    from .schedules import Schedule  # not at the top: it needs the scheme, which has this module's rules

    if isinstance(rate, Schedule):
        return rate.value(step)
    with tf.init_scope():
        return float(rate(tf.constant(step, tf.float32)))


@functools.lru_cache(maxsize=64)
def rule_of(text: str, period: int | None = None) -> PeriodRule:
    """Return the rule that a text such as `post-local:1000,10` names, with the period that it leaves out.

    Raises:
        UserError: the text names no rule, or its numbers are out of range.
    """
    kind, _, rest = text.partition(":")
    value, _, last = rest.partition(",")
    try:
        number, whole = float(value), int(last) if last or period is None else period
    except ValueError:
        number, whole = math.nan, 0
    fits = 0 < number < math.inf and (kind == "qsr" or number % 1 == 0)
    if kind not in ("post-local", "qsr", "adacomm") or not fits:
        raise UserError(
            "the period follows post-local:N,H (rounds of one step in the first N steps, then of H), qsr:ALPHA,H "
            "(rounds of (ALPHA/rate)^2 steps, at least H) or adacomm:N,H (rounds of H steps, and of fewer after each N "
            f"rounds, as the loss falls), as in qsr:0.0175,4. Received: {text!r}"
        )
    at_least(1, communication_period=whole)
    return PeriodRule(kind, number, whole)  # pyright: ignore[reportArgumentType]


def check_period(**given: Any) -> None:
    """Raise `UserError` for a period that is neither a number of local steps, from one, nor a rule."""
    ((name, value),) = given.items()
    if isinstance(value, str):
        rule_of(value)
    else:
        at_least(1, **{name: value})


def steps_after(rounds: Rounds) -> Callable[[Any], Any]:
    """Return the function from a number of rounds, a float scalar, to the local steps that they have."""
    lengths = np.array([steps for steps, _ in itertools.islice(rounds, MOST_ROUNDS)] or [1], np.float32)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.float32)

    def steps(number: Any) -> Any:
        whole = tf.minimum(tf.cast(number, tf.int32), len(lengths))
        within = tf.gather(tf.constant(lengths), tf.minimum(whole, len(lengths) - 1))
        return tf.gather(tf.constant(ends), whole) + (number - tf.cast(whole, tf.float32)) * within

    return steps


@functools.lru_cache(maxsize=16)
def _clock(scheme: Same[Any]) -> Callable[[Any], Any]:
    return steps_after(scheme.value.rounds(ENDLESS))


def steps_at(scheme: Any, version: Any, workers: int) -> Any:
    """Return the local steps of an average worker at a version, a float scalar, in a run without an end."""
    updates = scheme.sync.updates_per_round(workers)
    if scheme.period_rule is not None:
        return _clock(Same(scheme))(version / updates)
    return version / (updates / scheme.period)
