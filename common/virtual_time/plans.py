"""The rounds of each worker, and their durations: workers with the same rounds share a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.rounds import Event, Rounds
from .durations import Durations
from .platform import Machines


@dataclass(frozen=True)
class WorkerPlan:
    """The rounds of some workers.

    Attributes:
        steps: local steps of each round.
        events: the event that ends each round.
        durations: durations of the rounds of these workers.
    """

    steps: Sequence[int]
    events: Sequence[Event]
    durations: Durations


def plans_of(
    machines: Machines, rounds: Rounds | Sequence[Rounds], workers: int, seed: int, exchange_first: bool
) -> list[WorkerPlan]:
    """Return the plan of each worker, [W], from its rounds, or from the rounds that all share."""

    def plan(own: Rounds, members: Sequence[int]) -> WorkerPlan:
        steps, events = zip(*own, strict=True) if len(own) else ((), ())
        return WorkerPlan(steps, events, Durations(machines, own, workers, seed, exchange_first, members))

    if isinstance(rounds, Rounds):
        return [plan(rounds, range(workers))] * workers
    kinds: list[tuple[Rounds, list[int]]] = []
    for worker, own in enumerate(rounds):
        members = next((members for known, members in kinds if known is own or known == own), None)
        if members is None:
            kinds.append((own, members := []))
        members.append(worker)
    plan_of = {worker: made for own, members in kinds for made in [plan(own, members)] for worker in members}
    return [plan_of[worker] for worker in range(workers)]
