"""The order of events in virtual time, and when each of them is."""

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

MOST_LIVES = 4.0  # mean times between crashes that a round may take: one of e⁴ gets through


def check(scheme: Scheme, machines: Machines, workers: int) -> None:
    """Raise `UserError` if virtual time does not know the gate, or workers fail without a ps, or all the time."""
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
    """What happens in a run, and when.

    Attributes:
        trace: the events on the ps in order: for each name of `RECORD` a column of integers, [n]; see `server.trace`.
            Microseconds are of virtual time, since the start.
        rounds: of all workers in the order of their ends, [m, len(ROUND)], in microseconds of virtual time; a reply
            that a crashed worker has not seen is unknown, and rounds that the end of the run has cut are not there.
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
    """The order of the events of a run.

    Args:
        scheme: the algorithm; asked for its gate, what it accepts, how long it warms up, and if it exchanges first.
        platform: the machines, described or in numbers.
        workers: W.
        rounds: of each worker; or one for all of them.
        seed: of all that is drawn.
        message_bytes: of a message.
        reply_bytes: of a reply, and of the center where a worker pulls it or joins.
        ps: tasks that share the center.
        stop_at_version: ends the run with this update of the center.
        progress: is told now and then how many events have happened.

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
