"""Rounds whose lengths follow a rule, and rates that follow a schedule, as config.json has them: NumPy alone."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator

from ..arguments import at_least
from ..errors import UserError
from ..record_format import short
from .recorded import Hyperparameters, RecordedRun
from .reference.inner_steps import Period
from .reference.inner_steps import lengths as lengths_of

ROUNDING = 1e-6  # relative, of the rates of a schedule in float32

LAST = 0.01  # share of the rate at the end of an exponential schedule

SCHEDULE = re.compile(r"Schedule\(shape='(\w+)', initial=([-+.\de]+), steps=(\d+)\)")

RULE = re.compile(r"(post-local|qsr|adacomm):([-+.\de]+),(\d+)")


def rate_of(run: RecordedRun, scheme: Hyperparameters) -> float | Callable[[int], float]:
    """Return η of a run, or η(t) if the run has a schedule that has a name."""
    if isinstance(scheme.learning_rate, float | int):
        return scheme.learning_rate
    if (found := SCHEDULE.fullmatch(str(scheme.learning_rate))) is None:
        raise UserError(f"the reference knows no schedule of this kind. Received: learning_rate={scheme.learning_rate}")
    shape, initial, steps = found[1], float(found[2]), int(found[3])
    shapes: dict[str, Callable[[float], float]] = {
        "linear": lambda done: 1 - min(done, 1.0),
        "cosine": lambda done: (1 + math.cos(math.pi * min(done, 1.0))) / 2,
        "exponential": lambda done: LAST**done,
    }
    return lambda t: initial * shapes[shape](t / steps)


def period_of(run: RecordedRun, scheme: Hyperparameters) -> Period:
    """Return H, or H(t) of the round that begins with step t: max(H, ⌊(α/η)²⌋), or 1 in the first steps."""
    period, fragments = scheme.get("communication_period", 1), scheme.get("fragments", 1)
    if not isinstance(period, str):
        at_least(1, communication_period=period, fragments=fragments)
        return max(1, period // fragments)
    if (found := RULE.fullmatch(period)) is None:
        raise UserError(f"the reference knows no such rule. Received: communication_period={period}")
    value, least = float(found[2]), int(found[3])
    if found[1] == "post-local":
        return lambda t: 1 if t < value else least
    if found[1] == "adacomm":
        return _adapted(run, int(value), least).__getitem__
    rate = rate_of(run, scheme)
    eta = rate if callable(rate) else lambda t: rate

    def qsr(t: int) -> int:
        now, after = eta(t), eta(t + 1)
        if after > now:
            return least
        return max(least, math.floor((value / now) ** 2 * (1 + ROUNDING))) if now > 0 else run.steps

    return qsr


def _adapted(run: RecordedRun, block: int, first: int) -> dict[int, int]:
    """Return the length of each round by its first step, from the losses that the run has used (AdaComm).

    τ₀ = H;  after each block of N rounds τ ← ⌈τ₀ √(F/F₀)⌉, or ⌈τ/2⌉ if that is not smaller, with the mean loss F of
    the block, and F₀ of the first round.
    """
    losses = run.result.get("losses", [])
    if not isinstance(losses, list) or not all(isinstance(loss, int | float) for loss in losses):
        raise UserError(f"result.json is damaged: losses must be a list of numbers. Received: {short(losses)}")
    initial, *of_blocks = losses or [math.nan]
    lengths, t, period = {}, 0, first
    for target in (*run.earlier_step_targets, run.steps):
        while t < target:
            if len(lengths) % block == 0 and 0 < len(lengths) // block <= len(of_blocks):
                loss = of_blocks[len(lengths) // block - 1]
                shorter = math.ceil(first * math.sqrt(loss / initial)) if 0 <= loss < initial else first
                period = max(1, shorter) if shorter < period else math.ceil(period / 2)
            lengths[t] = min(period, target - t)
            t += lengths[t]
    return lengths


def ends(run: RecordedRun, steps: int) -> Iterator[int]:
    """Return an iterator of the steps after each round of a run of so many steps."""
    return itertools.accumulate(length for _, length in lengths_of(period_of(run, run.hyperparameters), steps))
