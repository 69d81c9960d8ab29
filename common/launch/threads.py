"""The threads back end: all workers of a run as threads of one process, free or in a scripted order."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..lazy import tf
from ..reports import Report
from ..tasks.ending import END_SECONDS
from ..tasks.evaluator import Evaluator
from ..tasks.graph import TaskGraph
from ..tasks.interruption import interruption
from ..tasks.job import Job
from ..tasks.precision import arithmetic, precision
from ..tasks.worker_loop import WorkerLoop
from ..waiting import awake, wait_until
from ..worker.flat_model import FlatModel
from .gpus import report_devices
from .sessions import session_config

TURN_SECONDS = 0.0005  # between two polls in a scripted interleaving: a turn takes about a millisecond


def run_threads(job: Job, report: Report, model: FlatModel | None = None) -> Evaluator:
    """Run the workers as threads of this process, on one direct session; returns the evaluator at the end."""
    with precision(job), awake.looking():
        report(event="arithmetic", **arithmetic(job))
        return _run(job, report, model)


def _run(job: Job, report: Report, model: FlatModel | None) -> Evaluator:
    workers = range(job.cluster.workers)
    for worker in workers:
        report_devices(job, worker, report, before=worker)
    graph = TaskGraph(job, workers, model)
    # One more than the workers: a round of many steps keeps its thread, and the evaluator would wait for its end.
    config = session_config(job.cluster, job.devices_per_worker, 1 + max(2, len(workers)))
    config.graph_options.place_pruned_graph = True  # each call prepares its own part only: a third of the start-up
    session = tf.compat.v1.Session(graph=graph.graph, config=config)
    loops = [WorkerLoop(job, session, graph, k, report) for k in workers]
    threads = WorkerThreads(loops, scripted=bool(job.options.schedule))
    try:
        threads.start()
        for number, worker in enumerate(job.options.schedule, 1):
            if interruption(job):
                break
            threads.give_turn(worker, number)
        evaluator = Evaluator(job, session, graph, report)
        evaluator.follow(stopped=lambda: bool(threads.failures))
    finally:
        threads.end()
    return evaluator


class WorkerThreads:
    """The threads of all workers, running freely or, if scripted, each only in its turns."""

    def __init__(self, loops: Sequence[WorkerLoop], scripted: bool):
        self.loops, self.scripted = loops, scripted
        self.failures: list[BaseException] = []
        self.turns = [threading.Semaphore(0) for _ in loops]
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        """Prepare all workers, then start their threads."""
        for loop in self.loops:
            loop.prepare()
        self.threads = [threading.Thread(target=self._run, args=(loop,), daemon=True) for loop in self.loops]
        for thread in self.threads:
            thread.start()

    def _run(self, loop: WorkerLoop) -> None:
        def turn() -> None:
            if self.scripted:
                self.turns[loop.index].acquire()
            if self.failures:
                raise self.failures[0]

        try:
            loop.join()
            loop.await_others()
            loop.run(turn)
        except BaseException as error:  # raised again in the thread that started this one
            self.failures.append(error)

    def give_turn(self, worker: int, number: int) -> None:
        """Let a worker do one round; returns when its message, the `number`-th of all, is recorded."""
        first = self.loops[0]
        self.turns[worker].release()
        wait_until(
            lambda: bool(self.failures) or first.calls.recorded() >= number,
            first.calls.wait_seconds,
            lambda: f"worker {worker}, turn {number} of the schedule",
            TURN_SECONDS,
        )

    def end(self) -> None:
        """End the session, wait for the threads; raises the failure of a thread before that."""
        failed = list(self.failures)
        # End the chief's thread that saves the state. After a failure it would keep the graph of this run in memory,
        # until its next checkpoint is due.
        if (state := self.loops[0].state) is not None:
            state.over.set()
            if not failed:
                state.await_interrupted()
        # Closing the session wakes workers that wait at a barrier. Copy the failures before: theirs must not count.
        self.loops[0].calls.session.close()
        if self.scripted:
            for turn in self.turns:
                turn.release()
        for thread, loop in zip(self.threads, self.loops, strict=False):  # no threads if `start` failed before them
            thread.join(max(END_SECONDS, loop.saving_seconds))
            if thread.is_alive() and loop.saving_seconds:
                loop.report(event="warning", message="no checkpoint of the end: it could not be written to its end")
        if failed:
            raise failed[0]
