"""What each task of a run does: parameter server, worker, evaluator; and all of them as threads of one process.

A task is given a `Job`, knows its own place, and reports what it sees by calling `report(**event)`. It cannot tell
how the addresses were found.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .cluster import Addresses, Cluster, ps_devices, worker_device
from .data import batches, leaves, num_examples, shard_rows
from .errors import Diverged, WaitTimeout
from .gates import Alone
from .models import FlatModel, ModelRecipe
from .scheme import Scheme

Report = Callable[..., None]
CHIEF = 0
POLL_SECONDS = 0.01
REPORT_SECONDS = 0.1
END_MILLISECONDS = 500
ROUNDS_PER_CALL = 8  # a call costs some RPCs of its own; unrolling rounds in it doubles the throughput at period 1
LONG_ROUND_SECONDS = 0.1  # longer rounds gain nothing from unrolling
ALONE_STEPS = 64  # steps of a call without a ps


@dataclass
class Job:
    """A run, as every task sees it."""

    scheme: Scheme
    recipe: ModelRecipe
    train: Any  # nested arrays, or a function of a tf.distribute.InputContext that returns a tf.data.Dataset
    test: Any
    cluster: Cluster
    batch_size: int
    seed: int
    steps: int  # local steps of each worker
    run_dir: Path | None = None
    evaluate_seconds: float = 0.2  # between two evaluations of the center
    schedule: Sequence[int] = ()  # threads only: whose round comes next

    @property
    def alone(self) -> bool:
        """True if there is no parameter server."""
        return isinstance(self.scheme.gate, Alone)


class TaskGraph:
    """The graph of one task: the global variables and the workers that live in it."""

    def __init__(self, job: Job, workers: list[int], model: FlatModel | None = None):
        import tensorflow as tf

        from .parameter_server import ParameterServer
        from .worker import Worker

        self.job = job
        self.model = model or FlatModel(job.recipe.build())
        self.graph = tf.Graph()
        gradient = tf.function(self.model.gradient, reduce_retracing=True)
        with self.graph.as_default():
            self.ps = ParameterServer(
                job.scheme,
                size=self.model.size,
                state_size=self.model.state_size,
                num_workers=job.cluster.workers,
                devices=ps_devices(job.cluster, job.alone),
                last_version=-(-job.steps // job.scheme.period),
            )
            self.workers: dict[int, Worker] = {}
            for k in workers:
                device = worker_device(job.cluster, k)
                with tf.device(device):
                    source, structure = _source(job, k)
                self.workers[k] = Worker(
                    job.scheme, self.model, gradient, self.ps, k, device, source, structure
                )
            self._build()

    def _build(self) -> None:
        """Everything that will ever be called: a graph cannot grow once sessions use it."""
        import tensorflow as tf

        def built(function: Callable[..., Any], *arguments: Any) -> Any:
            return tf.function(function, autograph=False)(*arguments)

        self.snapshot = built(self.ps.snapshot)
        self.drain = built(self.ps.drain)
        self.recorded = self.ps.records.size()
        self.end = [queue.enqueue(True) for queue in self.ps.ends]
        self.await_end = self.ps.ends[0].dequeue()
        self.version = self.ps.read_version()
        self.flag = tf.compat.v1.placeholder(tf.int32, [], name="flag")
        with tf.device(self.ps.devices[0]):
            self.set_ready, self.set_finished = (
                tf.raw_ops.ResourceScatterUpdate(resource=v.handle, indices=self.flag, updates=True)
                for v in (self.ps.ready, self.ps.finished)
            )
        self.starts = {k: built(worker.start) for k, worker in self.workers.items()}
        self.rounds: dict[tuple[int, int], tuple[Any, Any]] = {}
        counts = (1,) if self.job.alone else (1, ROUNDS_PER_CALL)
        for (k, worker), count in itertools.product(self.workers.items(), counts):
            rows = tf.compat.v1.placeholder(tf.int32, [count, None, self.job.batch_size])
            self.rounds[k, count] = rows, built(worker.rounds, rows)


def _source(job: Job, worker: int) -> tuple[Any, Any]:
    """The batches of a worker in the current graph, and how x and y are nested."""
    import tensorflow as tf

    from .worker import Shard, Stream

    if callable(job.train):
        dataset = job.train(tf.distribute.InputContext(job.cluster.workers, worker, job.cluster.workers))
        return Stream(dataset.repeat()), dataset.element_spec
    rows = shard_rows(num_examples(job.train), worker, job.cluster.workers, job.seed)
    return Shard([np.asarray(a)[rows] for a in leaves(job.train)], f"worker_{worker}"), job.train


def plan(job: Job, worker: int) -> Iterator[np.ndarray]:
    """The batches of each round of a worker, [steps, batch size] row numbers; the last round may be shorter."""
    period = ALONE_STEPS if job.alone else job.scheme.period
    if callable(job.train):
        stream: Iterator[np.ndarray] = itertools.repeat(np.zeros(job.batch_size, np.int32))
    else:
        shard = num_examples(job.train) // job.cluster.workers
        stream = batches(shard, job.batch_size, worker, job.seed)
    steps = job.schedule.count(worker) * period if job.schedule else job.steps
    for start in range(0, steps, period):
        yield np.stack(list(itertools.islice(stream, min(period, steps - start))))


def wait_until(condition: Callable[[], bool], seconds: float, missing: Callable[[], str]) -> None:
    """Poll until the condition holds; `WaitTimeout` with what is missing after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise WaitTimeout(f"waited {seconds:g} s for {missing()}")
        time.sleep(POLL_SECONDS)


def absent(flags: np.ndarray) -> str:
    """The workers whose flag is not set, by name."""
    return ", ".join(f"worker {k}" for k in np.flatnonzero(~np.asarray(flags)))


class WorkerLoop:
    """Runs the rounds of one worker in a session."""

    def __init__(self, session: Any, graph: TaskGraph, index: int, report: Report):
        self.session, self.graph, self.index, self.report = session, graph, index, report
        self.job, self.worker = graph.job, graph.workers[index]
        self.wait_seconds = self.job.cluster.wait_seconds
        self.steps = self.rounds = 0
        self.losses: list[float] = []  # since the last report
        self.reported = time.monotonic()
        self.longest = 0.0  # seconds of the longest call
        self.several = 1 if self.job.alone or self.job.schedule else ROUNDS_PER_CALL
        self.call = {count: self._callable(count) for count in {1, self.several}}

    def prepare(self) -> None:
        """Local variables; then the chief makes the global ones, and everybody pulls."""
        session, ps = self.session, self.graph.ps
        session.run(self.worker.initialize, self.worker.source.feed)
        if self.index == CHIEF:
            model = self.graph.model
            feed = {ps.initial_center: model.pack(), ps.initial_state: model.pack_state()}
            session.run(ps.initialize, feed)
        wait_until(lambda: session.run(ps.is_initialized), self.wait_seconds, lambda: "the chief, worker 0")
        session.run(self.graph.starts[self.index])
        session.run(self.graph.set_ready, {self.graph.flag: self.index})

    def await_others(self) -> None:
        """All workers start together, so that examples per second mean something."""

        def ready() -> np.ndarray:
            return self.session.run(self.graph.ps.ready)

        wait_until(lambda: bool(ready().all()), self.wait_seconds, lambda: absent(ready()))

    def run(self, turn: Callable[[], None] = lambda: None) -> None:
        """All rounds; before each call, `turn()` may wait."""
        self.started = time.monotonic()
        rounds = plan(self.job, self.index)
        count = 1  # the first two calls are single: one warms up, one tells how long a round takes
        while chunk := list(itertools.islice(rounds, count)):
            turn()
            began = time.monotonic()
            if len(chunk) == count and len(chunk[-1]) == len(chunk[0]):
                self._did(chunk, self.call[count](np.stack(chunk)))
            else:
                for rows in chunk:
                    self._did([rows], self.call[1](rows[None]))
            if self.rounds == 1:
                self.report(event="first_update", worker=self.index)
            elif self.rounds == 2 and time.monotonic() - began < LONG_ROUND_SECONDS:
                count = self.several
        self.session.run(self.graph.set_finished, {self.graph.flag: self.index})
        self._progress()
        self.report(
            event="finished",
            worker=self.index,
            steps=self.steps,
            rounds=self.rounds,
            started=self.started,
            ended=time.monotonic(),
        )

    def _callable(self, count: int) -> Callable[[np.ndarray], np.ndarray]:
        """A function that runs `count` rounds in one call and returns their losses."""
        import tensorflow as tf

        rows, losses = self.graph.rounds[self.index, count]
        run = self.session.make_callable(losses, [rows], accept_options=True)
        waits = self.job.scheme.gate.synchronous and not self.job.alone

        def call(batches: np.ndarray) -> np.ndarray:
            limit = self.wait_seconds + 2 * self.longest
            options = tf.compat.v1.RunOptions(timeout_in_ms=round(limit * 1000)) if waits else None
            began = time.monotonic()
            try:
                return run(batches, options=options)
            except tf.errors.DeadlineExceededError:
                missing = absent(self.session.run(self.graph.ps.arrived))
                raise WaitTimeout(
                    f"worker {self.index} waited {limit:.0f} s at the barrier for {missing or 'the ps'}"
                ) from None
            finally:
                self.longest = max(self.longest, time.monotonic() - began)

        return call

    def _did(self, chunk: Sequence[np.ndarray], losses: np.ndarray) -> None:
        """Count the rounds of a call, look at their losses, report now and then."""
        self.rounds += len(chunk)
        self.steps += sum(map(len, chunk))
        if not np.isfinite(losses).all():
            version = self.session.run(self.graph.version)
            bad = self.rounds - len(chunk) + int(np.flatnonzero(~np.isfinite(losses))[0])
            raise Diverged(
                f"the loss of worker {self.index} became {losses[~np.isfinite(losses)][0]} in its round {bad}, "
                f"at version {version} of the center: try a smaller learning rate or period"
            )
        self.losses.extend(losses.tolist())
        if time.monotonic() - self.reported > REPORT_SECONDS:
            self._progress()

    def _progress(self) -> None:
        if self.losses:
            loss = float(np.mean(self.losses))
            self.report(event="worker", worker=self.index, steps=self.steps, loss=loss)
        self.losses, self.reported = [], time.monotonic()


class Evaluator:
    """Follows the center: drains the record, evaluates, and has the last word on the run."""

    def __init__(self, session: Any, graph: TaskGraph, report: Report):
        self.session, self.graph, self.report, self.job = session, graph, report, graph.job
        self.events: list[np.ndarray] = []
        self.staleness: Counter[int] = Counter()
        self.dropped = 0
        self.rounds = [0] * self.job.cluster.workers

    def follow(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Evaluate now and then until all workers have finished (or `stopped()`), and once more then."""
        ps, job = self.graph.ps, self.job
        while not (self.session.run(ps.is_initialized) or stopped()):
            time.sleep(POLL_SECONDS)
        due = 0.0
        while not stopped():
            finished = bool(self.session.run(ps.finished).all())
            if finished or time.monotonic() >= due:
                began = time.monotonic()
                snapshot = self._observe()
                now = time.monotonic()
                due = now + max(job.evaluate_seconds, 10 * (now - began))  # 10 % of one core at most
            if finished:
                self._finish(snapshot)
                return
            time.sleep(POLL_SECONDS)

    def _observe(self) -> dict[str, Any]:
        """Read center and record, evaluate, report."""
        snapshot = self.session.run(self.graph.snapshot)
        self._count(self.session.run(self.graph.drain))
        metrics: dict[str, float] = {}
        if self.job.test is not None:
            model = self.graph.model
            model.load(snapshot["center"], snapshot["state"])
            test = self.job.test if isinstance(self.job.test, tuple) else (self.job.test,)
            logs = model.model.evaluate(*test, batch_size=None, verbose=0, return_dict=True)
            metrics = {f"test_{name}": float(value) for name, value in logs.items()}
        total = sum(self.staleness.values())
        self.metrics = {
            "version": int(snapshot["version"]),
            "examples": self._examples(),
            "staleness_mean": sum(t * n for t, n in self.staleness.items()) / max(1, total),
            "staleness_max": max(self.staleness, default=0),
            **metrics,
        }
        self.report(event="center", **self.metrics)
        return snapshot

    def _count(self, events: np.ndarray) -> None:
        self.events.append(events)
        for _, worker, staleness, accepted, _ in events:
            self.rounds[worker] += 1
            if accepted:
                self.staleness[int(staleness)] += 1
            else:
                self.dropped += 1

    def _examples(self) -> int:
        """Examples that went into the recorded messages."""
        job = self.job
        period = ALONE_STEPS if job.alone else job.scheme.period
        limit = [job.schedule.count(k) * period if job.schedule else job.steps for k in range(len(self.rounds))]
        return job.batch_size * sum(min(n * period, m) for n, m in zip(self.rounds, limit, strict=True))

    def _finish(self, snapshot: dict[str, Any]) -> None:
        """Save what the run produced, and end the ps tasks."""
        import tensorflow as tf

        from .parameter_server import RECORD

        self.center, self.state = snapshot["center"], snapshot["state"]
        self.trace = np.concatenate(self.events) if self.events else np.zeros((0, len(RECORD)), np.int64)
        if self.job.run_dir:
            np.savez(self.job.run_dir / "center.npz", center=self.center, state=self.state)
            np.savez(self.job.run_dir / "trace.npz", **dict(zip(RECORD, self.trace.T, strict=True)))
            self.graph.model.load(self.center, self.state)
            self.graph.model.model.save(self.job.run_dir / "model.keras")
        self.report(
            event="result",
            updates=self.metrics["version"],
            dropped=self.dropped,
            staleness_histogram={str(t): n for t, n in sorted(self.staleness.items())},
            parameters=self.graph.model.size,
            state=self.graph.model.state_size,
            **self.metrics,
        )
        with contextlib.suppress(tf.errors.OpError):  # a ps may leave before it has answered
            self.session.run(self.graph.end, options=tf.compat.v1.RunOptions(timeout_in_ms=END_MILLISECONDS))


# Processes: one task each.

_open: list[Any] = []  # sessions are left, never closed: closing waits for peers that may have gone already


def _session(target: str, graph: Any, config: Any) -> Any:
    import tensorflow as tf

    _open.append(tf.compat.v1.Session(target, graph=graph, config=config))
    return _open[-1]


def _config(job: Job, inter_op: int) -> Any:
    """Thread pools of one task, so that the tasks of one machine share its cores."""
    import tensorflow as tf

    cores = len(os.sched_getaffinity(0))
    return tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=max(1, cores // job.cluster.workers),
        inter_op_parallelism_threads=inter_op,
        allow_soft_placement=True,
    )


def run_ps(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Serve until the evaluator says that the run has ended."""
    import tensorflow as tf

    from .parameter_server import end_queue

    server = tf.distribute.Server(addresses.as_dict(), "ps", index, config=_config(job, 4))
    report(event="listening")
    with tf.Graph().as_default() as graph, tf.device(f"/job:ps/task:{index}/device:CPU:0"):
        end = end_queue(index).dequeue()
    filters = tf.compat.v1.ConfigProto(device_filters=[f"/job:ps/task:{index}"])
    _session(server.target, graph, filters).run(end)


def run_worker(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Build the graph of one worker, meet the others, run all rounds."""
    import tensorflow as tf

    server = tf.distribute.Server(addresses.as_dict(), "worker", index, config=_config(job, 2))
    graph = TaskGraph(job, [index])
    config = _config(job, 2)
    config.device_filters.extend(["/job:ps", f"/job:worker/task:{index}"])
    session = _session(server.target, graph.graph, config)
    loop = WorkerLoop(session, graph, index, report)
    loop.prepare()
    report(event="ready")
    loop.await_others()
    loop.run()
    if job.alone:  # this task is its own ps
        session.run(graph.await_end)


def run_evaluator(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Follow the center from outside the cluster, as a client of the first ps."""
    import tensorflow as tf

    graph = TaskGraph(job, [])
    host = addresses.ps[0] if not job.alone else addresses.worker[0]
    config = tf.compat.v1.ConfigProto(device_filters=["/job:worker/task:0" if job.alone else "/job:ps"])
    session = _session(f"grpc://{host}", graph.graph, config)
    Evaluator(session, graph, report).follow()


TASKS = {"ps": run_ps, "worker": run_worker, "evaluator": run_evaluator}


# Threads: all tasks in one process.


def run_threads(job: Job, report: Report, model: FlatModel | None = None) -> Evaluator:
    """Workers as threads of this process, on one direct session; returns the evaluator at the end."""
    import tensorflow as tf

    workers = list(range(job.cluster.workers))
    graph = TaskGraph(job, workers, model)
    config = _config(job, max(2, len(workers)))
    session = tf.compat.v1.Session(graph=graph.graph, config=config)
    loops = [WorkerLoop(session, graph, k, report) for k in workers]
    for loop in loops:
        loop.prepare()
        report(event="ready", task=f"worker-{loop.index}")
    failures: list[BaseException] = []
    turns = [threading.Semaphore(0) for _ in workers]

    def run(loop: WorkerLoop) -> None:
        try:
            loop.run(turns[loop.index].acquire if job.schedule else lambda: None)  # type: ignore[arg-type]
        except BaseException as error:  # handed to the caller below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    evaluator = Evaluator(session, graph, report)
    for done, worker in enumerate(job.schedule, 1):
        turns[worker].release()
        wait_until(
            lambda: bool(failures) or session.run(graph.recorded) >= done,
            job.cluster.wait_seconds,
            lambda: f"worker {worker}, turn {done} of the schedule",
        )
    evaluator.follow(stopped=lambda: bool(failures))
    if failures:
        raise failures[0]
    for thread in threads:
        thread.join()
    return evaluator


def run_all_as_threads(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """The threads back end as the one task of a run started from the command line."""
    del addresses, index
    run_threads(job, report)


TASKS["threads"] = run_all_as_threads
