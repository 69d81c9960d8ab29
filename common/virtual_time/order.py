"""The order and times of the events of a run in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..contract.rounds import Rounds
from ..contract.scheme import Scheme
from ..errors import UserError
from .platform import Machines, Platform
from .release import waiting_at
from .schedule import Course

MOST_LIVES = 4.0  # the longest round, in mean times between crashes: one round of e⁴ completes


def check(scheme: Scheme, machines: Machines, workers: int) -> None:
    """Raise `UserError` if the gate cannot be simulated, or workers crash without a ps or in nearly every round."""
    waiting_at(scheme.gate, workers)
    if machines.failures and not (scheme.gate.exchanges and scheme.gate.uses_ps):
        raise UserError(f"{scheme.name} has no parameter server, to which a worker could come back: leave failures out")
    takes = scheme.period * machines.step + 2 * machines.latency
    if machines.failures and takes > MOST_LIVES * machines.failures[0]:
        raise UserError(
            f"hardly a round of {scheme.name} ends between two crashes: let them be rarer. Received: crashes every "
            f"{machines.failures[0] / 1e6:.3g} ms, rounds of {takes / 1e6:.3g} ms"
        )


@dataclass(frozen=True)
class Order:
    """The events of a run and their times.

    Attributes:
        trace: the events on the ps in order: for each name of `RECORD` a column of integers, [n]; see `server.trace`.
            Microseconds are of virtual time, since the start.
        rounds: rounds of all workers in the order of their ends, [m, len(ROUND)], in microseconds of virtual time; a
            reply that a crashed worker did not receive is `UNKNOWN`; rounds that the end of the run cut are missing.
        seconds: the virtual time of the end.
    """

    trace: Mapping[str, np.ndarray]
    rounds: np.ndarray
    seconds: float


def order(
    scheme: Scheme,
    platform: Platform | Machines,
    *,
    workers: int,
    rounds: Rounds | Sequence[Rounds],
    seed: int,
    message_bytes: float,
    reply_bytes: float,
    ps: int = 1,
    stop_at_version: int | None = None,
    progress: Callable[[int], None] = lambda events: None,
) -> Order:
    """Compute the order of the events of a run.

    Args:
        scheme: the algorithm; its gate, `accepts`, warm-up and `exchange_first` are used.
        platform: the machines, described or in numbers.
        workers: W.
        rounds: the rounds of each worker, or those that all share.
        seed: seed of all random numbers.
        message_bytes: size of a message.
        reply_bytes: size of a reply, and of the center that a worker pulls or joins with.
        ps: number of ps tasks that share the center.
        stop_at_version: version of the center that ends the run.
        progress: receives the number of processed events now and then.

    Raises:
        UserError: see `check`; or the run takes more than a century, or hardly a round ends between two crashes.
    """
    machines = platform if isinstance(platform, Machines) else Machines.of(platform)
    check(scheme, machines, workers)
    course = Course(scheme, machines, workers, rounds, seed, ps, (message_bytes, reply_bytes), stop_at_version)
    try:
        course.run(progress)
    except OverflowError:
        raise UserError(f"{scheme.name} takes more than a century on these machines: give faster ones") from None
    return Order(course.books.trace(), course.stamps.rounds(), course.seconds)
