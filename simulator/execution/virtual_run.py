"""A simulated run: the times of its events are virtual, its arithmetic is real.

Phase 1 computes the order of the events from the machines and the size of the model. Phase 2 executes them with the
modules of the algorithm, and evaluates the center at evenly spaced virtual times, or exactly at each multiple of
`evaluate_every` updates. The run directory is like that of any run; its seconds are virtual.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...common.cluster.platform import Platform
from ...common.record.event_log import KIND, MICROSECONDS, VERSION, WORKER
from ...common.record.round_log import FILE as ROUNDS
from ...common.record.round_log import NUMBER, TimeTotals, save_rounds
from ...common.record_format import RECORD
from ...common.reports import Report
from ...common.server.trace import ROW, UNKNOWN, ends_round
from ...common.tasks.curvature import probe
from ...common.tasks.interruption import Interruption, reason_to_stop
from ...common.tasks.job import Job
from ...common.tasks.observer import Evaluation, Figures, distance_of
from ...common.tasks.precision import arithmetic, precision
from ...common.tasks.results import (
    check_finite,
    hand_over,
    result_of,
    unwritten,
    write_center,
    write_initial,
    write_model,
)
from ...common.worker.flat_model import FlatModel
from ..virtual_time.forecast import steady_staleness
from ..virtual_time.schedule import EventLoop, EventSchedule
from .arithmetic import Arithmetic

EVALUATIONS = 40  # evaluations of the center between the start and the end

REPORT_SECONDS = 0.1  # between two reports of the first phase


def simulate(job: Job, report: Report, model: FlatModel | None = None) -> None:
    """Run a job in virtual time.

    Args:
        job: the job, on a cluster of described machines.
        report: receives the events.
        model: receives the evaluated weights; a new model if None.

    Raises:
        Diverged: a loss or the center is not finite.
        UserError: the scheme's synchronization rule cannot be simulated.
    """
    with precision(job):
        report(event="arithmetic", **arithmetic(job))
        SimulatedRun(job, report, model or job.recipe.flat()).run()


class SimulatedRun:
    """A run in virtual time: its order, its arithmetic, its evaluations and its files.

    Attributes:
        metrics: the metrics of the newest evaluation.
    """

    def __init__(self, job: Job, report: Report, model: FlatModel):
        self.job, self.report, self.model = job, report, model
        self.figures = Figures(job.plan, job.traffic(model))
        self.initial = model.pack()
        self.log = job.event_log()
        self.log.truncate(0, 0)  # remove the events of an unfinished run
        self.interruption = Interruption(job, report)
        accuracy = job.options.stop_at_accuracy is not None
        self.evaluation = Evaluation(model, job.test, accuracy, self.interruption.ends_evaluations)
        self.summaries = job.summaries()
        self.metrics: dict[str, Any] = {}

    def run(self) -> None:
        """Run both phases, and write the results."""
        schedule = self._order()
        began = time.monotonic()
        arithmetic = Arithmetic(self.job, schedule.trace, schedule.actions, self.model)
        try:
            self._follow(schedule, arithmetic)
            self._finish(schedule, arithmetic.snapshot(), time.monotonic() - began)
        finally:
            arithmetic.close()

    def _follow(self, schedule: EventSchedule, arithmetic: Arithmetic) -> None:
        """Run phase 2, from evaluation to evaluation, until the end or a reason to stop."""
        recorded = np.stack([schedule.trace[name] for name in RECORD], 1)
        # The times of rounds are known to the schedule, which writes them at the end.
        events = np.pad(recorded, ((0, 0), (0, len(ROW) - len(RECORD))), constant_values=UNKNOWN)
        self._evaluate(arithmetic.snapshot(), 0.0, {})
        probe(self.job, self.model, self.report)
        reason, every, reached = self._reason_to_stop(), self.job.options.evaluate_every, 0.0
        if reason is not None:
            points = ()
        elif every is None:
            points = evaluation_points(events, schedule.seconds, EVALUATIONS)
        else:
            points = points_by_updates(events, schedule.seconds, every)
        for until, seconds in points:
            if (done := arithmetic.run(until, self.interruption.noticed)) < until:
                until, seconds = done, max(reached, _seconds(events[done - 1]))
            reached = seconds
            if not len(self.log):
                self._first_update(events)
            losses = arithmetic.losses[len(self.log) : until]
            measured = losses[~np.isnan(losses)]
            self.log.append(events[len(self.log) : until])
            self._evaluate(arithmetic.snapshot(), seconds, {"loss": float(measured.mean())} if len(measured) else {})
            if reason := self._reason_to_stop():
                break
        if reason is not None:
            self.report(event="stopped", reason=reason)
        for worker in np.flatnonzero(arithmetic.left_out):
            self.report(event="left_out", worker=int(worker), number=int(arithmetic.left_out[worker]))

    def _order(self) -> EventSchedule:
        """Run phase 1: compute and report the order of the events."""
        job, traffic = self.job, self.figures.traffic
        workers, rounds = job.cluster.workers, job.plan.all_rounds
        began = reported = time.monotonic()

        def progress(events: int) -> None:
            nonlocal reported
            if time.monotonic() > reported + REPORT_SECONDS:
                reported = time.monotonic()
                self.report(event="ordering", events=events, of=2 * sum(map(len, rounds)))  # each round has two events

        schedule = EventLoop(
            job.scheme,
            job.cluster.simulated or Platform(),
            workers=workers,
            rounds=rounds,
            seed=job.options.seed,
            message_bytes=traffic.vectors,
            reply_bytes=traffic.codec.reads[1] if traffic.codec.reads else traffic.reply,
            apart=traffic.apart,
            ps=job.cluster.ps,
            stop_at_version=job.options.stop_at_version,
        ).run(progress)
        took = {"virtual": schedule.seconds, "order_seconds": time.monotonic() - began}
        self.report(event="ordered", events=len(schedule.trace["version"]), **took)
        return schedule

    def _first_update(self, events: np.ndarray) -> None:
        first = np.searchsorted(events[:, VERSION], 0, "right") - 1  # the last event at the initial center
        self.report(event="first_update", worker=int(events[first, WORKER]), virtual=_seconds(events[first]))

    def _evaluate(self, snapshot: Mapping[str, Any], seconds: float, more: Mapping[str, float]) -> None:
        """Evaluate the center, and report."""
        tally = self.log.tally
        steps = self.figures.steps(tally.rounds)
        version = int(snapshot["at"])
        self.metrics = {"version": version, **self.figures.of(tally, version), "steps": steps, **more}
        self.metrics |= distance_of(snapshot) | self.evaluation(snapshot)
        event = {"event": "center", "virtual": seconds, **self.metrics}
        shown = self.job.run_dir if self.job.shows_centers else None
        hand_over(shown, _vectors(snapshot), self.report, self.interruption.noticed, **event)
        if self.summaries:
            self.summaries.write(self.metrics)

    def _reason_to_stop(self) -> str | None:
        return reason_to_stop(self.job, lambda: self.metrics["version"], self.metrics)

    def _finish(self, schedule: EventSchedule, snapshot: Mapping[str, Any], seconds: float) -> None:
        """Write the files of the run, and report the result."""
        job, run_dir, tally = self.job, self.job.run_dir, self.log.tally
        check_finite(snapshot["center"], snapshot["at"])
        arrays = _vectors(snapshot)
        rounds = schedule.rounds[schedule.rounds[:, NUMBER] < tally.rounds[schedule.rounds[:, 0]]]
        spent = TimeTotals(rounds)
        writes = [lambda: write_center(run_dir, arrays), lambda: write_model(run_dir, self.model, arrays)]
        if job.options.every_round:
            writes += [lambda: self.log.save(run_dir / "trace.npz"), lambda: save_rounds(run_dir / ROUNDS, rounds)]
            writes += [lambda: write_initial(run_dir, self.initial)]
        self.report(
            event="result",
            staleness_steady=steady_staleness(
                {name: column[: len(self.log)] for name, column in schedule.trace.items()}
            ),
            arithmetic_seconds=seconds,
            **result_of(tally, spent, unwritten(writes), self.metrics),
        )


def _vectors(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in snapshot.items() if name not in ("at", "consensus")}


def evaluation_points(events: np.ndarray, seconds: float, number: int) -> Iterator[tuple[int, float]]:
    """Yield the number of events before each evaluation, and its virtual time: evenly in time, never within an update.

    Args:
        events: events of the whole run, [n, len(ROW)].
        seconds: virtual time of the end.
        number: number of points, the last at the end; those without new events are left out.
    """
    versions, times = events[:, VERSION], events[:, MICROSECONDS]
    before = 0
    for i in range(1, number + 1):
        moment = seconds * i / number
        until = int(np.searchsorted(times, 1e6 * moment, "right"))
        if i == number:
            until = len(events)
        elif until < len(events):
            until = int(np.searchsorted(versions, versions[until]))  # leave out messages of an unfinished update
        if until > before or i == number:
            yield until, moment
        before = max(until, before)


def points_by_updates(events: np.ndarray, seconds: float, every: int) -> Iterator[tuple[int, float]]:
    """Yield a point, see `evaluation_points`, right after each multiple of `every` updates, and one at the end.

    Args:
        events: events of the whole run, [n, len(ROW)].
        seconds: virtual time of the end.
        every: number of updates between two points.
    """
    versions = events[:, VERSION]  # the version before each event
    last = int(versions[ends_round(events[:, KIND])][-1])  # messages between servers may follow the last update
    for version in range(every, last + 1, every):
        until = int(np.searchsorted(versions, version))
        yield until, _seconds(events[until - 1])
    yield len(events), seconds


def _seconds(event: np.ndarray) -> float:
    return int(event[MICROSECONDS]) / 1e6
