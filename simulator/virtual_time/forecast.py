"""Predicted speed, staleness, waiting and communication of a run, from the simulated order of some rounds."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from ...common.arguments import at_least
from ...common.cluster.platform import Machines, Platform
from ...common.contract.rounds import Rounds
from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from ...common.messages.cut import even_sizes
from ...common.record_format import EVENTS
from ...common.server.trace import ends_round
from ...common.server.traffic import Traffic
from ...common.sync.pairs import Pairs
from .layers import LayeredStep, exchange_of, utilisation
from .reduced import Over, with_reduction
from .schedule import SECOND, EventLoop, EventSchedule

MESSAGES = 3000  # of all workers: enough for means with an error of one or two per cent

LEAST_ROUNDS, MOST_ROUNDS = 9, 60

MOST_TIMES = 16  # times these, of pairs whose workers make very different numbers of rounds

LONG_RUN = 10_000  # rounds of a worker

WARM_UP = 3  # the first 1/3 of the updates is left out: workers that begin together are not stale yet

UNEQUAL = "compute", "step_factors", "cores", "link_sigma", "latency_sigma", "regions", "failures"

SLOWEST = 8  # the most rounds of a fast worker for one of the mean worker


@dataclass(frozen=True)
class Forecast:
    """The predicted figures of a run.

    Attributes:
        updates: updates of the center per second.
        gradients: gradients that are part of an update, per second.
        compute: fraction of the workers' time spent on arithmetic.
        waiting: fraction spent waiting for other workers.
        communication: fraction spent on messages and replies in transit and at the ps.
        staleness: mean staleness of the accepted messages.
        sent: bytes per second that leave a worker, in the mean over the workers.
        received: bytes per second that arrive at a worker.
        joined: number of returns of workers after a crash in the simulated rounds.
    """

    updates: float
    gradients: float
    compute: float
    waiting: float
    communication: float
    staleness: float
    sent: float
    received: float
    joined: int = 0


def forecast(
    scheme: Scheme,
    platform: Platform,
    *,
    workers: int,
    parameters: int,
    ps: int = 1,
    seed: int = 0,
    layers: int | None = None,
    over: Over = "as-here",
) -> Forecast:
    """Predict the figures of a long run in which no worker has finished, and which is past its warm-up.

    A warm-up are rounds that a run makes only at its beginning: the floats of 1-bit Adam, the single steps of
    post-local SGD, the updates of worker 0 alone. If it has more than half of the first 10,000 rounds of a worker, it
    is predicted instead.

    A scheme that exchanges nothing has one worker, on the fastest of the machines; its figures are exact.

    Args:
        scheme: the algorithm.
        platform: the machines.
        workers: W.
        parameters: number of parameters of the model, P.
        ps: number of ps tasks that share the center.
        seed: seed of all random numbers.
        layers: number of layers of the model, each of which is sent as soon as its gradient is known (see `layers`), by
            equal workers that exchange together. By default a vector is sent at once, as in a run, and an algorithm
            whose messages depend on the shapes of the model has `square_layers`.
        over: path of the messages: `collective` is a reduction among the workers in place of parameter servers, for
            algorithms whose updates have a message of every worker; `as-here` is that of the algorithm in this package.

    Example:
        >>> from distsgd import AsyncSGD, Platform, forecast
        >>> run = forecast(AsyncSGD(), Platform(step_ms=20.0), workers=4, parameters=10_000)
        >>> round(run.updates), round(run.staleness)
        (200, 3)

    Raises:
        UserError: a number is impossible, the synchronization rule cannot be simulated, or it cannot run on these
            machines.
    """
    at_least(1, workers=workers, parameters=parameters, ps=ps)
    if not scheme.sync.exchanges:
        steps = SECOND / Machines(platform).expected_steps(workers, seed).min()
        return Forecast(steps, steps, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    if over == "collective":
        scheme = with_reduction(scheme, workers)
    if layers is not None:
        return _layered(scheme, platform, workers, parameters, ps, layers)
    traffic = Traffic(scheme, scheme.codecs()[0], workers, even_sizes(parameters, ps))
    whole = [scheme.rounds(LONG_RUN * scheme.period, 0, worker, seed) for worker in range(workers)]
    before, times = warm_up(whole), 1
    while True:
        rounds = times * _rounds(scheme, workers)
        plans = [Rounds(((tuple(itertools.islice(plan.after(before), rounds * SLOWEST)), 1),)) for plan in whole]
        schedule = EventLoop(
            scheme,
            platform,
            workers=workers,
            rounds=plans,
            before=before,
            seed=seed,
            message_bytes=traffic.vectors,
            reply_bytes=traffic.reply,
            apart=traffic.apart,
            ps=ps,
            stop_at_version=round(rounds * scheme.sync.updates_per_round(workers)),
        ).run()
        # Of pairs half of the workers may only answer, and make any number of rounds for one of the others.
        least = np.bincount(schedule.trace["worker"], minlength=workers).min()
        if not scheme.sync.in_pairs or least >= LEAST_ROUNDS or times > MOST_TIMES:
            return figures(schedule, scheme, traffic, plans)
        times *= 4


def _rounds(scheme: Scheme, workers: int) -> int:
    """Return the rounds of each worker to simulate, a multiple of `WARM_UP`."""
    sends = scheme.sync.traffic(workers)[0] if scheme.sync.gossips else 1
    number = int(MESSAGES / workers / max(1, sends))
    return min(MOST_ROUNDS, max(LEAST_ROUNDS, number)) // WARM_UP * WARM_UP


def warm_up(plans: Sequence[Rounds]) -> int:
    """Return after how many rounds of a worker, one at least, the warm-up of a long run is over; see `forecast`."""
    before = [1]
    for plan in plans:
        lengths = [len(pattern) * times for pattern, times in plan.parts]
        before.append(sum(lengths[: lengths.index(max(lengths))]))
    return max(before)


def _layered(scheme: Scheme, platform: Platform, workers: int, parameters: int, ps: int, layers: int) -> Forecast:
    """Return the figures of a run in which messages of layers travel while others are computed."""
    machines, values, ideal = Machines(platform), platform.described(), Platform().described()
    if unequal := [name for name in UNEQUAL if values[name] != ideal[name]]:
        raise UserError(f"--layers assumes equal workers and links: leave {', '.join(unequal)} out")
    if not scheme.sync.waits:
        raise UserError(
            "--layers is for algorithms whose workers wait for each other: leave it out, or choose another "
            f"algorithm. Received: {scheme.name}"
        )
    step = LayeredStep(layers=layers, seconds=machines.step / SECOND, parameters=parameters)
    exchange = replace(exchange_of(scheme, parameters, workers, layers), latency=machines.latency / SECOND)
    of_ps = machines.ps_link * ps / workers if scheme.sync.uses_ps else math.inf
    computes = utilisation(step, exchange, 8 * SECOND * min(machines.uplink, machines.downlink, of_ps))
    seconds = step.seconds / computes
    sent, received = (moved / (seconds * exchange.period) for moved in exchange.moved(parameters))
    if scheme.sync.is_collective and not scheme.sync.gossips:
        sent = received = sent + received
    updates = scheme.sync.updates_per_round(workers) / (seconds * scheme.period)
    return Forecast(updates, workers / seconds, computes, 0.0, 1 - computes, 0.0, sent, received)


def figures(schedule: EventSchedule, scheme: Scheme, traffic: Traffic, plans: Sequence[Rounds]) -> Forecast:
    """Compute the figures of a recorded run, real or simulated, from the first update after the start-up to the last.

    `plans` are the rounds of each worker, [W].
    """
    trace, times, workers = schedule.trace, schedule.trace["microseconds"], len(plans)
    last, first, begin = int(trace["version"][-1]) + 1, *_start_up(trace)
    measured = times > begin
    if not measured.any():
        raise UserError(f"{scheme.name} takes no microsecond on these machines: give a longer --step-ms")
    seconds = max(1, int(times[-1]) - begin) / 1e6
    counted = measured & (trace["accepted"] == 1)
    lengths, kinds = _rounds_of(trace, plans)
    sent, received = (float(moved / seconds / workers) for moved in _moved(trace, measured, scheme, traffic, kinds))
    waiting, communication = _parts(schedule.rounds, begin)
    return Forecast(
        updates=(last - first) / seconds,
        gradients=int(lengths[counted].sum()) / seconds,
        compute=1 - waiting - communication,
        waiting=waiting,
        communication=communication,
        staleness=steady_staleness(trace) or 0.0,
        sent=sent,
        received=received,
        joined=int((trace["event"] == EVENTS.index("join")).sum()),
    )


def _moved(
    trace: Mapping[str, np.ndarray], measured: np.ndarray, scheme: Scheme, traffic: Traffic, kinds: np.ndarray
) -> tuple[float, float]:
    """Return the bytes that all workers send and receive in the events of a trace that are `measured`, [n].

    `kinds` are the kinds of the rounds that they end, [n].
    """
    workers = traffic.workers
    exchanges = measured & (trace["event"] == EVENTS.index("exchange"))
    events: dict[str, int] = dict(
        zip(EVENTS, np.bincount(trace["event"][measured], minlength=len(EVENTS)).tolist(), strict=True)
    )
    if scheme.sends_in_turn:  # then events do not tell the kinds of rounds
        events = Counter(kinds[measured & ends_round(trace["event"])].tolist()) | {"join": events["join"]}
    if scheme.sync.in_pairs and workers > 1:
        # `Pairs.traffic` is the mean over workers with equal numbers of rounds; only some of them begin averages.
        begins = cast(Pairs, scheme.sync).peers(workers)[0] != np.arange(workers)
        events["exchange"] = begins[trace["worker"][exchanges]].sum() / begins.mean()
    up, down = traffic.moved(events)
    if scheme.sync.is_collective and (scheme.sync.in_pairs or not scheme.sync.gossips):
        return up + down, up + down  # what one worker gets, another one sends
    return up, down


def _start_up(trace: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Return the version at the end of the start-up, the first third of the updates, and its microseconds."""
    versions = trace["version"]
    first = max(1, (int(versions[-1]) + 1) // WARM_UP)
    # The last event at an older version has made version `first`.
    return first, int(trace["microseconds"][np.searchsorted(versions, first) - 1])


def steady_staleness(trace: Mapping[str, np.ndarray]) -> float | None:
    """Return the mean staleness of accepted messages without the first third of the updates; None without messages.

    Workers that begin together are not stale yet: the first messages of W of them are 0, 1, ... W - 1 updates old.
    """
    if not len(trace["version"]):
        return None
    counted = (trace["microseconds"] > _start_up(trace)[1]) & (trace["accepted"] == 1)
    return float(trace["staleness"][counted].mean()) if counted.any() else None


def _rounds_of(trace: Mapping[str, np.ndarray], plans: Sequence[Rounds]) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and kind of the round that each event ends, [n] each; 0 and no kind for an event that ends none."""
    steps, kinds = np.zeros(len(trace["worker"]), np.int64), np.full(len(trace["worker"]), "", object)
    for rows, plan in zip(rows_of_rounds(trace, len(plans)), plans, strict=True):
        if len(rows):
            steps[rows], kinds[rows] = zip(*itertools.islice(plan, len(rows)), strict=True)
    return steps, kinds


def rows_of_rounds(trace: Mapping[str, np.ndarray], workers: int) -> list[np.ndarray]:
    """Return for each worker the rows of the events that end its rounds, in order."""
    ends = np.flatnonzero(ends_round(trace["event"]))
    worker = trace["worker"][ends]
    bounds = np.cumsum(np.bincount(worker, minlength=workers))[:-1]
    return np.split(ends[np.argsort(worker, kind="stable")], bounds)


def _parts(rounds: np.ndarray, begin: int) -> tuple[float, float]:
    """Return the fractions of the workers' time spent waiting and communicating, in rounds that end after `begin`.

    Steps that a worker makes after its message are computing: only what comes after them is waiting or communicating.
    """
    rounds = rounds[(rounds >= 0).all(axis=1) & (rounds[:, -1] > begin)]
    worker, _, begun, _, computed, arrived, released, replied = rounds.T
    arrived, released = np.maximum(arrived, computed), np.maximum(released, computed)
    by_worker = np.lexsort((replied, worker))
    edge = np.flatnonzero(np.diff(worker[by_worker])) + 1
    firsts, lasts = by_worker[np.r_[0, edge]], by_worker[np.r_[edge, len(by_worker)] - 1]
    total = max(1, (replied[lasts] - begun[firsts]).sum())
    communication = (arrived - computed + replied - released).sum()
    return float((released - arrived).sum() / total), float(communication / total)
