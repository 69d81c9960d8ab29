"""What each task of a run does: parameter server, worker, evaluator; and all of them as threads of one process.

A task is given a `Job`, knows its own place, and reports what it sees by calling `report(**event)`. It cannot tell
how the addresses were found.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import secrets
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .cluster import Addresses, Cluster, ps_devices, tower_devices, worker_device
from .data import batches, leaves, num_examples, shard_rows
from .errors import Diverged, UserError, WaitTimeout
from .gates import Alone
from .hooks import STOP, Summaries
from .meeting import meeting
from .models import FlatModel, ModelRecipe
from .record import EVENTS, FLOAT_BYTES, RECORD
from .recovery import REPAIR_WAITS, RETRY_SECONDS, Keeper, Recovery, is_absence, is_refusal
from .scheme import Event, Scheme

Report = Callable[..., None]
CHIEF = 0
POLL_SECONDS = 0.01
DRAIN_SECONDS = 0.5  # between two looks at the record
FOLLOW_SECONDS = 0.05  # a look at the ps costs it about a millisecond
REPORT_SECONDS = 0.1
EVALUATION_SHARE = 10  # evaluations wait so many times as long as they take: a tenth of one core at most
EVALUATION_BATCH = 512
LATER_EVALUATIONS = 60
END_MILLISECONDS = 500
ANSWER_SECONDS = 0.05  # a ps stays so long after its end, for the evaluator to have its answer
CONNECT_SECONDS = 2.0
LOOK_SECONDS = 5.0  # a ps looks so often whether anybody is still there
END_SECONDS = 5.0
ROUNDS_PER_CALL = 8  # a call costs some RPCs of its own; unrolling rounds in it doubles the throughput at period 1
LONG_RUN_ROUNDS = 500  # shorter runs do not earn back the time that the larger graph takes
LONG_ROUND_SECONDS = 0.1  # longer rounds gain nothing from unrolling
SLOW = 10  # times the limit of a wait, for calls that wait for nobody
ENDLESS = 10**9  # steps: a schedule says how many rounds there are
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
    evaluate_seconds: float = 0.1  # between two evaluations of the center
    evaluate_later: bool = False  # only keep the path of the center during the run, and evaluate it afterwards
    schedule: Sequence[int] = ()  # threads only: whose round comes next
    graph_file: Path | None = None  # where the evaluator leaves a graph for the workers of this machine
    clip_norm: float | None = None  # gradients are clipped to this norm of the whole vector
    l2: float = 0.0  # adds l2/2 |x|^2 to the loss
    ema_decay: float | None = None  # an exponential moving average of the center is evaluated instead of the center
    identity: Mapping[str, Any] = field(default_factory=dict)  # what tasks on several machines must have in common
    stop_at_version: int | None = None
    stop_at_accuracy: float | None = None
    tensorboard: bool = False
    legs: Sequence[int] = ()  # steps of the runs that this one goes on from, if they were fewer
    recovery: Recovery = field(default_factory=Recovery)

    @property
    def rounds_per_call(self) -> int:
        """How many rounds a call may hold."""
        short = self.alone or self.schedule or self.steps < LONG_RUN_ROUNDS * self.scheme.period
        return 1 if short or len(self.scheme.events) > 1 else ROUNDS_PER_CALL

    @property
    def shared_graph(self) -> Path | None:
        """Where the workers' graph is, unless each has its own: because of a data function, or to meet without a ps."""
        own = callable(self.train) or not (self.uses_ps or self.alone)
        return None if own else self.graph_file

    @property
    def waits(self) -> bool:
        """True if workers wait for each other at a barrier."""
        return self.scheme.gate.synchronous and not self.alone

    @property
    def alone(self) -> bool:
        """True if one worker is all there is."""
        return isinstance(self.scheme.gate, Alone)

    @property
    def uses_ps(self) -> bool:
        """True if there is a parameter server; without one, worker 0 holds the center and the record."""
        return self.scheme.gate.uses_ps

    @property
    def sparse(self) -> bool:
        """True if workers read and push the coordinates of their batch alone; else vectors are dense."""
        dense = self.l2 or self.clip_norm is not None or self.ema_decay is not None or self.towers > 1
        return self.recipe.sparse and self.scheme.sparse and not dense

    @property
    def recovers(self) -> bool:
        """True if somebody starts dead tasks again."""
        return self.recovery.max_restarts > 0

    @property
    def towers(self) -> int:
        """Devices that share the batches of a worker."""
        return self.cluster.towers or self.scheme.default_towers

    def rounds(self, worker: int) -> Iterator[tuple[int, Event]]:
        """The rounds of a worker: how many local steps, and how each ends."""
        if self.schedule:
            return itertools.islice(self.scheme.rounds(ENDLESS), self.schedule.count(worker))
        legs = itertools.pairwise((0, *self.legs, self.steps))
        return itertools.chain.from_iterable(self._leg(end - start) for start, end in legs)

    def _leg(self, steps: int) -> Iterator[tuple[int, Event]]:
        if self.alone:
            return ((min(ALONE_STEPS, steps - start), "exchange") for start in range(0, steps, ALONE_STEPS))
        return self.scheme.rounds(steps)


class TaskGraph:
    """The graph of one task: the global variables, and the workers that live in it.

    `ops` names everything that a session ever runs or feeds; what belongs to a worker is in `worker_ops[k]`.
    """

    def __init__(self, job: Job, workers: Sequence[int] = (), model: FlatModel | None = None):
        import tensorflow as tf

        from .parameter_server import ParameterServer

        self.job = job
        self.model = model or FlatModel(job.recipe.build())
        self.initial = self.model.pack(), self.model.pack_state()
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ps = ParameterServer(
                job.scheme,
                size=self.model.size,
                state_size=self.model.state_size,
                num_workers=job.cluster.workers,
                devices=ps_devices(job.cluster, job.uses_ps),
                last_version=-(-job.steps // job.scheme.period),
                ema_decay=job.ema_decay,
                in_process=job.cluster.backend == "threads",
                min_workers=job.recovery.min_workers,
            )
            self.ops = self._global_ops()
            gradient = tf.function(self.model.gradient, reduce_retracing=True, autograph=False)
            self.worker_ops = {k: self._worker_ops(k, gradient) for k in workers}

    def _global_ops(self) -> dict[str, Any]:
        import tensorflow as tf

        from .parameter_server import turnstile

        ps = self.ps
        with tf.device(ps.devices[0]):
            # Fed with every call: it goes along with the call, where a constant of each worker's own graph would
            # mean that no worker can use another's.
            self.index = tf.compat.v1.placeholder_with_default(-1, [], name="index")
            set_finished = tf.raw_ops.ResourceScatterUpdate(
                resource=ps.finished.handle, indices=self.index, updates=True
            )
            absent = tf.equal(tf.range(ps.num_workers), self.index)
            gone = ps.active.assign(ps.active & ~absent)
            with tf.control_dependencies([gone]):
                dismiss = ps.revoke(absent).op
            drained_now = tf.compat.v1.placeholder(tf.int64, [], name="drained_now")
        ops = {
            "index": self.index,
            "initial_center": ps.initial_center,
            "initial_state": ps.initial_state,
            "initialize": ps.initialize,
            "passport": ps.passport,
            # Who comes through puts the token back for the next one, or for himself should he come back.
            "announce": ps.initialized.enqueue(True),
            "await_initialized": turnstile(ps.initialized),
            "go": ps.go.enqueue(True),
            "await_go": turnstile(ps.go),
            "set_finished": set_finished,
            "ready": ps.ready.read_value(),
            "finished": ps.finished.read_value(),
            "active": ps.active.read_value(),
            "active_now": ps.count(ps.active | ps.finished),
            "dismiss": dismiss,
            "standing": tf.function(ps.standing, autograph=False)(),
            "restoration_now": ps.restored[0],
            "folded": ps.folded.read_value(),
            "refused": ps.refused.read_value(),
            "version": ps.read_version(),
            "recorded": ps.records.size(),
            "drained": ps.drained.read_value(),
            "drained_now": drained_now,
            "set_drained": ps.drained.assign(drained_now).op,
            "whole": tf.function(ps.whole, autograph=False)(),
            "stop": tf.function(ps.stop, autograph=False)(),
            "wake": tf.group(*self.job.scheme.gate.recall(ps)),
            "stopping": ps.stopping.read_value(),
            **{f"drain_{name}": op for name, op in tf.function(ps.drain, autograph=False)().items()},
            "over": ps.over.enqueue_many([tf.ones([ps.num_workers], tf.bool)]),
            "await_over": ps.over.dequeue(),
            "leave": ps.left.enqueue(True),
            "left": ps.left.size(),
            "end": tf.group(*(queue.enqueue(True) for queue in ps.ends)),
            "await_end": ps.ends[0].dequeue(),
            **{f"saved/{name}": op for name, op in tf.function(ps.values, autograph=False)().items()},
            **ps.restoring(),
            **tf.function(ps.snapshot, autograph=False)(),
        }
        if hasattr(ps, "arrived"):
            ops["arrived"] = ps.arrived.read_value()
        return ops

    def _worker_ops(self, k: int, gradient: Any) -> dict[str, Any]:
        import tensorflow as tf

        from .sparse import SparseWorker
        from .worker import Worker

        job = self.job
        devices = tower_devices(worker_device(job.cluster, k), job.towers)
        with tf.device(devices[0]):
            source, structure = _source(job, k)
        seat = self.ps.seat(k, k if job.shared_graph is None else self.index)
        if job.sparse:
            worker = SparseWorker(job, self.ps, seat, devices[0], source)
        else:
            worker = Worker(job, self.model, gradient, self.ps, seat, f"worker_{k}", devices, source, structure)
        with tf.device(self.ps.devices[0]):
            recorded = tf.compat.v1.placeholder_with_default(True, [])
        with tf.device(devices[0]):
            steps_done = tf.compat.v1.placeholder(tf.float32, [])
        ops = {
            "initialize": worker.initialize,
            "recorded_join": recorded,
            "steps_done": steps_done,
            "set_clock": worker.clock.assign(steps_done).op if isinstance(worker, Worker) else tf.no_op(),
            "refuse": tf.function(self.ps.refuse, autograph=False)(seat),
        }
        ops |= {f"join_{name}": op for name, op in tf.function(worker.start, autograph=False)(recorded).items()}
        if hasattr(self.ps, "arrived"):
            gate: Any = job.scheme.gate
            ops["expel"], ops["retire"] = (
                tf.function(f, autograph=False)(self.ps, seat) for f in (gate.expel, gate.leave)
            )
            ops["await_token"] = seat.tokens.dequeue()
        ops |= {f"data_{i}": fed for i, fed in enumerate(source.fed)}
        for count in sorted({1, job.rounds_per_call}):
            rows = tf.compat.v1.placeholder(tf.int32, [count, None, job.batch_size])
            ops[f"rows_{count}"] = rows
            for event in sorted(job.scheme.events):
                ops[f"{event}_{count}"] = tf.function(worker.rounds, autograph=False)(rows, event)
        return ops

    # A graph that one task has built serves all workers: building takes longer than everything else at the start.

    def export(self, path: Path) -> None:
        """Write the graph of worker 0 for `TaskGraph.load`."""
        names = [{key: op.name for key, op in ops.items()} for ops in (self.ops, self.worker_ops[CHIEF])]
        content = (self.graph.as_graph_def().SerializeToString(), names, self.initial)
        path.with_suffix(".part").write_bytes(pickle.dumps(content))
        path.with_suffix(".part").rename(path)

    @classmethod
    def load(cls, job: Job, worker: int, path: Path) -> TaskGraph:
        """The graph of a worker, from what `export` has written for worker 0."""
        import tensorflow as tf

        serialized, names, initial = pickle.loads(path.read_bytes())
        definition = tf.compat.v1.GraphDef.FromString(serialized)
        chief, own = (worker_device(job.cluster, k) for k in (CHIEF, worker))
        for function in [definition, *definition.library.function]:
            for node in function.node if function is definition else function.node_def:
                node.device = node.device.replace(chief, own)
                if node.name == "own_tokens":
                    node.attr["shared_name"].s = f"token_{worker}".encode()
        self = cls.__new__(cls)
        self.job, self.initial, self.graph = job, initial, tf.Graph()
        with self.graph.as_default():
            tf.import_graph_def(definition, name="")
            self.ops, mine = ({key: self.graph.as_graph_element(name) for key, name in part.items()} for part in names)
        self.worker_ops = {worker: mine}
        return self


def _source(job: Job, worker: int) -> tuple[Any, Any]:
    """The batches of a worker in the current graph, and how x and y are nested."""
    import tensorflow as tf

    from .worker import Shard, Stream

    if callable(job.train):
        dataset: Any = job.train(tf.distribute.InputContext(job.cluster.workers, worker, job.cluster.workers))
        return Stream(dataset.repeat()), dataset.element_spec
    return Shard(shard(job, worker), f"worker_{worker}"), job.train


def shard(job: Job, worker: int) -> list[np.ndarray]:
    """The arrays that a worker trains on."""
    if callable(job.train):
        return []
    rows = shard_rows(num_examples(job.train), worker, job.cluster.workers, job.seed)
    return [array[rows] for array in leaves(job.train)]


def plan(job: Job, worker: int) -> Iterator[tuple[np.ndarray, Event]]:
    """The rounds of a worker: their batches, [steps, batch size] row numbers, and how each ends."""
    if callable(job.train):
        stream: Iterator[np.ndarray] = itertools.repeat(np.zeros(job.batch_size, np.int32))
    else:
        stream = batches(num_examples(job.train) // job.cluster.workers, job.batch_size, worker, job.seed)
    for steps, event in job.rounds(worker):
        yield np.stack(list(itertools.islice(stream, steps))), event


def wait_until(condition: Callable[[], bool], seconds: float, missing: Callable[[], str]) -> None:
    """Poll until the condition holds; `WaitTimeout` with what is missing after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise WaitTimeout(f"waited {seconds:g} s for {missing()}")
        time.sleep(POLL_SECONDS)


def wait_for(session: Any, blocking: Any, seconds: float, missing: Callable[[], str]) -> None:
    """Run an operation that blocks; `WaitTimeout` with what is missing after so many seconds."""
    import tensorflow as tf

    try:
        session.run(blocking, options=tf.compat.v1.RunOptions(timeout_in_ms=round(seconds * 1000)))
    except tf.errors.DeadlineExceededError:
        raise WaitTimeout(f"waited {seconds:g} s for {missing()}") from None


def absent(flags: np.ndarray) -> str:
    """The workers whose flag is not set, by name."""
    return ", ".join(f"worker {k}" for k in np.flatnonzero(~np.asarray(flags)))


class WorkerLoop:
    """Runs the rounds of one worker in a session.

    Args:
        session: where the graph runs.
        graph: with this worker in it.
        index: of the worker.
        report: where events go.
        connect: a new session, given the seconds that it may take; the same one in a process that has them all.
    """

    def __init__(
        self,
        session: Any,
        graph: TaskGraph,
        index: int,
        report: Report,
        connect: Callable[[float], Any] | None = None,
    ):
        self.graph, self.index, self.report = graph, index, report
        self.job, self.ops = graph.job, graph.ops | graph.worker_ops[index]
        self.wait_seconds = self.job.cluster.wait_seconds
        self.connect = connect or (lambda seconds: session)
        self.passport = np.zeros(2, np.int64)  # given by joining, as is
        self.restoration = 0  # of the state that was joined
        self.stopping = False  # the run is to end now
        self.steps = self.rounds = 0
        self.losses: list[float] = []  # since the last report
        self.reported = time.monotonic()
        self.longest = 0.0  # seconds of the longest call
        self.patience = 1  # times that a barrier may wait in vain for somebody who is being started again
        self.keeper = Keeper(self.job, graph, self.connect, report) if index == CHIEF else None
        self._use(session)

    def _use(self, session: Any) -> None:
        self.session = session
        self.call = {
            (event, count): self._callable(event, count)
            for event in self.job.scheme.events
            for count in {1, self.job.rounds_per_call}
        }

    def prepare(self) -> None:
        """Local variables; then the chief sees to the global ones, and everybody takes a seat."""
        arrays = {self.ops[f"data_{i}"]: array for i, array in enumerate(shard(self.job, self.index))}
        self._run(self.graph.worker_ops[self.index]["initialize"], arrays)
        self._persist(self._take_part)
        if self.keeper is not None:
            self.keeper.start()

    def _take_part(self) -> None:
        if self.keeper is not None:
            self.keeper.claim(self.session)
        wait_for(self.session, self.ops["await_initialized"], self.wait_seconds, lambda: "the chief, worker 0")
        self._rejoin()

    def _persist(self, action: Callable[[], None]) -> None:
        """Do something that needs the ps, again and again while it may be coming back, for a bounded time."""
        import tensorflow as tf

        deadline = time.monotonic() + REPAIR_WAITS * self.wait_seconds
        while True:
            try:
                return action()
            except tf.errors.OpError as error:
                hopeless = not (is_absence(error) or is_refusal(error))
                if not self.job.recovers or hopeless or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)
            self._use(self.connect(max(1.0, deadline - time.monotonic())))

    def await_others(self) -> None:
        """All workers start together, so that examples per second mean something: the chief says when."""
        self._persist(self._await_others)

    def _await_others(self) -> None:
        if self.index == CHIEF:
            wait_until(lambda: self._run("ready").all(), self.wait_seconds, lambda: absent(self._run("ready")))
            self._run("go")
        else:
            wait_for(self.session, self.ops["await_go"], self.wait_seconds, lambda: absent(self._run("ready")))

    def _run(self, fetch: Any, feed: dict[Any, Any] | None = None) -> Any:
        """Run one operation of the graph as this worker."""
        import tensorflow as tf

        fetch = self.ops[fetch] if isinstance(fetch, str) else fetch
        mine = {self.ops["index"]: self.index, self.ops["passport"]: self.passport}
        options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * self.wait_seconds))
        return self.session.run(fetch, {**mine, **(feed or {})}, options=options)

    def run(self, turn: Callable[[], None] = lambda: None) -> None:
        """All rounds, whatever happens to others meanwhile; before each call, `turn()` may wait."""
        import tensorflow as tf

        self.started = time.monotonic()
        over = False
        while not over:
            try:
                if not self.stopping:
                    self._rounds(turn)
                self._finish()
                over = self._await_over()
                if not over:
                    self._rejoin()
            except (tf.errors.OpError, WaitTimeout) as error:
                self._recover(error)
        with contextlib.suppress(tf.errors.OpError):  # the ps may be gone already
            if self.keeper is not None:
                self.keeper.end(save=True)
            self._run("leave")

    def _rounds(self, turn: Callable[[], None]) -> None:
        """The rounds that are left."""
        rounds = itertools.islice(plan(self.job, self.index), self.rounds, None)
        first = self.rounds
        count = 1  # the first two calls are single: one warms up, one tells how long a round takes
        while chunk := list(itertools.islice(rounds, count)):
            turn()
            if self.rounds == 0 and self.index != CHIEF and self.job.scheme.warmup_updates:
                self._await_warmup()
            began = time.monotonic()
            batches, (event, *_) = zip(*chunk, strict=True)
            if len(chunk) == count and len(batches[-1]) == len(batches[0]):
                self._did(batches, self.call[event, count](np.stack(batches)))
            else:
                for rows in batches:
                    self._did([rows], self.call[event, 1](rows[None]))
            if self.rounds == 1:
                self.report(event="first_update", worker=self.index)
            elif self.rounds == first + 2 and time.monotonic() - began < LONG_ROUND_SECONDS:
                count = self.job.rounds_per_call
            if self.keeper is not None and self.keeper.failure is not None:
                raise self.keeper.failure

    def _finish(self) -> None:
        self._run("set_finished")
        if "retire" in self.ops and not self.job.schedule and not self.stopping:
            self._run("retire")
        self._progress()
        self.report(
            event="finished",
            worker=self.index,
            steps=self.steps,
            rounds=self.rounds,
            started=self.started,
            ended=time.monotonic(),
        )

    def _await_over(self) -> bool:
        """Stay until the evaluator has the result; False if the state was restored and there is more to do."""
        import tensorflow as tf

        options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * self.wait_seconds))
        while True:
            try:
                if self.session.run(self.ops["await_over"], options=options):
                    return True
                if self._run("restoration_now") != self.restoration:  # else the token is from before this worker joined
                    return False
            except tf.errors.DeadlineExceededError:
                self._run("version")  # is the ps still there?

    def _rejoin(self, recorded: bool = True) -> None:
        """Take the seat, whoever may sit there, and go on after its last round on record."""
        import tensorflow as tf

        while True:
            self.passport = np.array([secrets.randbits(62) + 2, 1], np.int64)
            names = {name: self.ops[f"join_{name}"] for name in ("folded", "waits", "restored", "stopping")}
            joined = self._run(names, {self.ops["recorded_join"]: recorded})
            if not joined["waits"]:
                break
            # The last message of this seat is in a set that is not complete yet.
            try:
                self._run("await_token")
            except tf.errors.DeadlineExceededError:
                missing = absent(self._run("arrived"))
                if not self._press_the_absent():
                    raise WaitTimeout(
                        f"worker {self.index} waited {self.wait_seconds:g} s at the barrier for {missing}"
                    ) from None
        rounds = int(joined["folded"])
        if rounds < self.rounds:  # acknowledged, and then lost with a ps
            self.report(event="lost", worker=self.index, rounds=self.rounds - rounds, together=self.job.waits)
        self.rounds, self.restoration, self.stopping = rounds, int(joined["restored"]), bool(joined["stopping"])
        self.steps = sum(steps for steps, _ in itertools.islice(self.job.rounds(self.index), rounds))
        if self.job.scheme.scheduled:
            self._run("set_clock", {self.ops["steps_done"]: float(self.steps)})

    def _recover(self, error: BaseException) -> None:
        """Get back to work after a call that failed, or raise what cannot be helped."""
        import tensorflow as tf

        if isinstance(error, WaitTimeout) and "arrived" in self.ops and self._press_the_absent():
            self._rejoin()
            return
        if is_refusal(error):
            self.stopping = bool(self._run("stopping"))
            if self.stopping or self._was_not_finite():
                return
        if not self.job.recovers or not (is_refusal(error) or is_absence(error)):
            raise error
        deadline = time.monotonic() + REPAIR_WAITS * self.wait_seconds
        while True:
            try:
                if not is_refusal(error):
                    self._use(self.connect(deadline - time.monotonic()))
                self._rejoin()
                self.report(event="rejoined", worker=self.index, rounds=self.rounds)
                return
            except (tf.errors.OpError, WaitTimeout) as again:
                if not (is_refusal(again) or is_absence(again)):
                    raise
                if time.monotonic() > deadline:
                    seconds = REPAIR_WAITS * self.wait_seconds
                    raise WaitTimeout(
                        f"worker {self.index} waited {seconds:g} s for the ps to come back: {error}"
                    ) from None
                error = again
                time.sleep(RETRY_SECONDS)

    def _was_not_finite(self) -> bool:
        """After a refusal: True if it was because of NaN and is settled; raises `Diverged` if that ends the run."""
        standing = self._run("standing")
        if standing[self.index] != self.passport[0] or standing[-1] != 1:
            return False
        if self.job.recovery.on_nan == "stop":
            raise Diverged(
                f"worker {self.index} sent a message that is not finite, at version {self._run('version')} of the "
                "center, which refused it: try a smaller learning rate or period, or --on-nan drop"
            )
        self._run("refuse")
        self.report(event="refused", worker=self.index)
        self._rejoin()
        return True

    def _press_the_absent(self) -> bool:
        """At a barrier that nobody completes: True if others were expelled, or may still come."""
        expelled = np.flatnonzero(self._run("expel"))
        arrived, active = self._run("arrived"), self._run("active")
        for k in expelled:
            self.report(event="expelled", worker=int(k))
        if len(expelled) or not arrived[self.index]:  # if not, the set has been completed in this very moment
            return True
        if self.job.recovers and self.patience:
            self.patience -= 1  # whoever starts tasks again may have to be told
            for k in np.flatnonzero(active & ~arrived):
                self.report(event="silent", worker=int(k))
            return True
        return False

    def _await_warmup(self) -> None:
        """Wait while worker 0 trains alone, then start from what it has reached."""

        def over() -> bool:
            return self._run("version") >= self.job.scheme.warmup_updates or self._run("finished")[CHIEF]

        def progress() -> bool:
            return over() or self._run("version") > seen

        seen = -1
        while not over():  # each update of worker 0 earns it more time
            seen = self._run("version")
            wait_until(progress, self.wait_seconds, lambda: "worker 0, which warms up")
        self._rejoin(recorded=False)

    def _callable(self, event: Event, count: int) -> Callable[[np.ndarray], np.ndarray]:
        """A function that runs `count` rounds in one call and returns their losses."""
        import tensorflow as tf

        rows, losses = self.ops[f"rows_{count}"], self.ops[f"{event}_{count}"]
        feeds = [rows, self.ops["index"], self.ops["passport"]]
        run = self.session.make_callable(losses, feeds, accept_options=True)

        def call(batches: np.ndarray) -> np.ndarray:
            # Others decide how long a barrier takes; a call that waits for nobody may be slow, but not for ever.
            patience = self.wait_seconds + 2 * self.longest
            limit = patience if self.job.waits else SLOW * patience
            options = tf.compat.v1.RunOptions(timeout_in_ms=round(limit * 1000))
            options.experimental.collective_graph_key = 0 if self.job.uses_ps else 1
            began = time.monotonic()
            try:
                return run(batches, self.index, self.passport, options=options)
            except tf.errors.DeadlineExceededError:
                missing = absent(self._run("arrived")) if "arrived" in self.ops else "another worker"
                where = "at the barrier " if self.job.waits else ""
                raise WaitTimeout(
                    f"worker {self.index} waited {limit:.0f} s {where}for {missing or 'the ps'}"
                ) from None
            finally:
                self.longest = max(self.longest, time.monotonic() - began)

        return call

    def _did(self, chunk: Sequence[np.ndarray], losses: np.ndarray) -> None:
        """Count the rounds of a call, look at their losses, report now and then."""
        self.rounds += len(chunk)
        self.steps += sum(map(len, chunk))
        self.patience = 1
        if not np.isfinite(losses).all() and self.job.recovery.on_nan == "stop":
            version = self._run("version")
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

    def __init__(self, session: Any, graph: TaskGraph, report: Report, connect: Callable[[float], Any] | None = None):
        self.session, self.graph, self.report, self.job = session, graph, report, graph.job
        self.connect = connect or (lambda seconds: session)
        self.wait_seconds = self.job.cluster.wait_seconds
        self.log = EventLog(self.job.run_dir)
        self.test = (self.job.test(),) if callable(self.job.test) else self.job.test
        self._forget()
        self._count(self.log.events())
        self.path: list[tuple[float, dict[str, Any], dict[str, Any]]] = []  # when, figures, center: not evaluated yet
        self.stopped: str | None = None  # why the run was ended early
        self.chief_is_late = False
        self.told_to_stop = 0  # workers that are not counted on any more, and still have to leave
        self.metrics: dict[str, Any] = {}
        self.summaries = Summaries(self.job.run_dir / "tb") if self.job.tensorboard and self.job.run_dir else None
        self.presence = Presence(self.job.cluster.workers, self.wait_seconds)
        self._evaluate()  # the first time is slow, and belongs before the training

    def _forget(self) -> None:
        """Nothing has been counted."""
        self.staleness: Counter[int] = Counter()
        self.dropped = 0
        self.rounds = [0] * self.job.cluster.workers
        self.steps = 0  # of all workers, in the recorded rounds
        self.left = [self.job.rounds(k) for k in range(self.job.cluster.workers)]
        self.vectors = np.array([0, self.job.cluster.workers if self.job.uses_ps else 0], float)  # pushed, pulled

    def follow(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Evaluate now and then until all workers have finished (or `stopped()`), and once more then."""
        import tensorflow as tf

        ops = self.graph.ops
        wait_for(self.session, ops["await_initialized"], self.wait_seconds, lambda: "the chief, worker 0")
        if self.job.evaluate_later:  # workers may be under way already: the path begins with what they began with
            center, state = self.graph.initial
            origin = {"version": 0, "examples": 0, "bytes_pushed": 0, "bytes_pulled": 0}
            self.path.append((time.monotonic(), origin, {"center": center, "state": state}))
        due, cost, failing = 0.0, float("inf"), None  # the first look is at where it starts, and slow
        while not stopped():
            try:
                if self._finished():
                    self._finish(self._observe(last=True))
                    return
                if time.monotonic() >= due:
                    began = time.monotonic()
                    self._observe()
                    now = time.monotonic()
                    cost = min(cost, now - began) if due else cost
                    pause = EVALUATION_SHARE * cost if cost < float("inf") else 0
                    due = now + (0 if self.job.evaluate_later else max(self.job.evaluate_seconds, pause))
                elif self.log.old:
                    self._drain()
                self._look_for_the_silent()
                self._stop_if_wanted()
                failing, self.chief_is_late = None, False
            except (tf.errors.OpError, WaitTimeout) as error:
                failing = failing or time.monotonic()
                self._recover(error, failing)
            time.sleep(FOLLOW_SECONDS)

    def _stop_if_wanted(self) -> None:
        """End the run early: the workers are refused, ask why, and leave."""
        if self.stopped or not self.job.uses_ps:
            return
        job, metrics = self.job, self.metrics
        accuracy = next((v for k, v in metrics.items() if k.startswith("test_") and k.endswith("accuracy")), None)
        reasons = {
            f"version {job.stop_at_version}": job.stop_at_version is not None
            and int(self._run("version")) >= job.stop_at_version,
            f"accuracy {job.stop_at_accuracy}": job.stop_at_accuracy is not None
            and accuracy is not None
            and accuracy >= job.stop_at_accuracy,
            "a callback": job.run_dir is not None and (job.run_dir / STOP).exists(),
        }
        self.stopped = next((reason for reason, met in reasons.items() if met), None)
        if self.stopped:
            self.told_to_stop = int(self._run("active_now"))
            self._run("stop")
            self._run("wake")
            self.report(event="stopped", reason=self.stopped)

    def _finished(self) -> bool:
        """True if everybody who is counted on has done all rounds."""
        state = self._run({name: self.graph.ops[name] for name in ("finished", "active")})
        return bool((state["finished"] | ~state["active"]).all())

    def _run(self, fetch: Any, feed: Any = None) -> Any:
        import tensorflow as tf

        options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * self.wait_seconds))
        return self.session.run(self.graph.ops[fetch] if isinstance(fetch, str) else fetch, feed, options=options)

    def _recover(self, error: BaseException, since: float) -> None:
        """Wait for state that is being restored; raise what cannot be helped."""
        now, deadline = time.monotonic(), since + REPAIR_WAITS * self.wait_seconds
        hopeless = isinstance(error, WaitTimeout) or not (is_refusal(error) or is_absence(error))
        if not self.job.recovers or now > deadline or hopeless:
            raise error
        if now - since > self.wait_seconds and not self.chief_is_late:
            self.chief_is_late = True
            self.report(event="silent", worker=CHIEF)  # it restores the state, unless it has been stopped itself
        if not is_refusal(error):
            self.session = self.connect(max(1.0, deadline - now))

    def _look_for_the_silent(self) -> None:
        """Somebody who has sent nothing for very long: expelled if enough are left, started again if somebody does."""
        if self.job.waits:  # those who wait at the barrier see to it
            return
        state = None
        for k in self.presence.silent():
            if self.presence.gaps[k] is None and self.job.scheme.warmup_updates:
                continue  # waits for worker 0
            state = state or self._run({name: self.graph.ops[name] for name in ("finished", "active")})
            if state["finished"][k] or not state["active"][k]:
                continue
            self.report(event="silent", worker=k)
            left = int(state["active"].sum()) - 1
            if left >= max(1, self.job.recovery.min_workers or self.job.cluster.workers):
                self._run("dismiss", {self.graph.ops["index"]: k})
                self.report(event="expelled", worker=k)
            elif not self.job.recovers or self.presence.warned(k):
                raise WaitTimeout(f"worker {k} has sent nothing for {self.presence.seconds(k):.0f} s")

    def _drain(self) -> None:
        """Take over the record of new events; forget those that a restoration has undone."""
        ops = self.graph.ops
        names = ("events", "restored", "recorded")
        new = self._run({name: ops[f"drain_{name}"] for name in names})
        which, length = (int(n) for n in new["restored"])
        if which != self.log.restoration:
            undone = self.log.truncate(which, length)
            self._forget()
            self._count(self.log.events())
            if undone:
                self.report(event="undone", updates=undone)
        self.log.append(new["events"])
        self._count(new["events"])
        self.presence.note(new["events"])
        if len(new["events"]) or which:
            self._run("set_drained", {ops["drained_now"]: int(new["recorded"])})

    def _observe(self, last: bool = False) -> dict[str, Any]:
        """Read center and record; evaluate and report, now or at the end."""
        ops = self.graph.ops
        names = [name for name in ("at", "center", "average", "state", "refused") if name in ops]
        snapshot = self._run({name: ops[name] for name in names})
        self._drain()
        total = sum(self.staleness.values())
        figures = {
            "version": int(snapshot["at"]),
            "examples": self._examples(),
            **self._bytes(),
            "staleness_mean": sum(t * n for t, n in self.staleness.items()) / max(1, total),
            "staleness_max": max(self.staleness, default=0),
        }
        self.path.append((time.monotonic(), figures, snapshot))
        if last or not self.job.evaluate_later:
            self._catch_up()
        return snapshot

    def _catch_up(self) -> None:
        """Evaluate and report what has been seen, or an even choice if it is much; the last is always among it."""
        step = -(-len(self.path) // LATER_EVALUATIONS)
        for when, figures, snapshot in self.path[::-1][::step][::-1]:
            self.metrics = figures | self._evaluate(snapshot)
            self.report(event="center", when=when, **self.metrics)
            if self.summaries:
                self.summaries.write(self.metrics)
        self.path.clear()

    def _evaluate(self, snapshot: dict[str, Any] | None = None) -> dict[str, float]:
        """Keras' metrics of the center on the test data."""
        if self.test is None:
            return {}
        if snapshot is not None:
            self._load(snapshot)
        size = None if callable(self.job.test) else EVALUATION_BATCH
        logs = self.graph.model.model.evaluate(*self.test, batch_size=size, verbose=0, return_dict=True)
        return {f"test_{name}": float(value) for name, value in logs.items()}

    def _count(self, events: np.ndarray) -> None:
        up, down = self.job.scheme.gate.traffic(self.job.cluster.workers)
        traffic = {"exchange": (up, down), "push": (up, 0), "pull": (0, down), "join": (0, down)}
        for _, worker, staleness, accepted, _, kind in events:
            event = EVENTS[kind]
            self.vectors += traffic[event]
            if event != "join":
                self.rounds[worker] += 1
                self.steps += next(self.left[worker])[0]
            if accepted:
                self.staleness[int(staleness)] += 1
            elif event not in ("pull", "join"):
                self.dropped += 1

    def _examples(self) -> int:
        """Examples that went into the recorded rounds."""
        return self.job.batch_size * self.steps

    def _bytes(self) -> dict[str, int]:
        """What has travelled to the center and back so far."""
        if self.job.sparse:  # up: the coordinates to read, then coordinates and gradient; down: values
            entries = FLOAT_BYTES * self.job.batch_size * self.job.train[0][0].shape[1] * sum(self.rounds)
            return {"bytes_pushed": 3 * entries, "bytes_pulled": entries}
        vector, state = FLOAT_BYTES * self.graph.model.size, FLOAT_BYTES * self.graph.model.state_size
        pushed, pulled = self.vectors
        return {"bytes_pushed": int(pushed * (vector + state)), "bytes_pulled": int(pulled * vector)}

    def _load(self, snapshot: dict[str, Any]) -> None:
        """Put what is evaluated into the Keras model: the average of the center if there is one."""
        self.graph.model.load(snapshot.get("average", snapshot["center"]), snapshot["state"])

    def _finish(self, snapshot: dict[str, Any]) -> None:
        """Save what the run produced, and end the ps tasks."""
        import tensorflow as tf

        refused = snapshot.pop("refused")
        saved = {name: value for name, value in snapshot.items() if name != "at"}
        self.trace = self.log.events()
        if self.job.run_dir:
            np.savez(self.job.run_dir / "center.npz", **saved)
            np.savez(self.job.run_dir / "trace.npz", **dict(zip(RECORD, self.trace.T, strict=True)))
            self._load(snapshot)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of lambdas, which a loader must allow
                self.graph.model.model.save(self.job.run_dir / "model.keras")
        self._dismiss_workers()
        self.report(
            event="result",
            updates=self.metrics["version"],
            dropped=self.dropped,
            refused={str(k): int(n) for k, n in enumerate(refused) if n},
            staleness_histogram={str(t): n for t, n in sorted(self.staleness.items())},
            **self.metrics,
        )
        with contextlib.suppress(tf.errors.OpError):  # a ps may leave before it has answered
            self.session.run(self.graph.ops["end"], options=tf.compat.v1.RunOptions(timeout_in_ms=END_MILLISECONDS))

    def _dismiss_workers(self) -> None:
        """The result is safe: the workers may go. A restoration in this very moment would have called them back."""
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError, WaitTimeout):
            here = int(self._run({name: self.graph.ops[name] for name in ("over", "active_now")})["active_now"])
            here = max(here, self.told_to_stop)
            deadline = time.monotonic() + END_SECONDS
            while int(self._run("left")) < here and time.monotonic() < deadline:
                self._drain()  # the chief's last checkpoint waits for that
                time.sleep(POLL_SECONDS)


class EventLog:
    """The record as it has been drained: in memory, and in a file that outlives this process.

    The first row of the file says which restoration of the run it belongs to.
    """

    def __init__(self, run_dir: Path | None):
        self.path = run_dir / "events.bin" if run_dir else None
        self.restoration = 0
        self.parts: list[np.ndarray] = []
        self.written = time.monotonic()
        if self.path and self.path.exists():
            rows = np.fromfile(self.path, np.int64)
            rows = rows[: len(rows) // len(RECORD) * len(RECORD)].reshape(-1, len(RECORD))
            if len(rows):
                self.restoration = int(rows[0, 0])
                self.parts = [rows[1:]]
        self._rewrite()

    @property
    def old(self) -> bool:
        """True if it is time to look for new events."""
        return time.monotonic() - self.written > DRAIN_SECONDS

    def events(self) -> np.ndarray:
        """All events, [n, len(RECORD)]."""
        return np.concatenate([np.zeros((0, len(RECORD)), np.int64), *self.parts])

    def append(self, events: np.ndarray) -> None:
        """Add new events."""
        self.written = time.monotonic()
        if len(events):
            self.parts.append(events)
            if self.path:
                with self.path.open("ab") as file:
                    events.tofile(file)

    def truncate(self, restoration: int, length: int) -> int:
        """Keep the first `length` events only; returns how many updates that undoes."""
        events = self.events()
        self.restoration, self.parts = restoration, [events[:length]]
        self._rewrite()
        versions = events[:, RECORD.index("version")]
        return int(versions.max(initial=-1) - versions[:length].max(initial=-1))

    def _rewrite(self) -> None:
        if self.path:
            head = np.array([[self.restoration, *[0] * (len(RECORD) - 1)]], np.int64)
            np.concatenate([head, self.events()]).tofile(self.path)


class Presence:
    """When each worker has sent something last, in the evaluator's own time."""

    def __init__(self, workers: int, wait_seconds: float):
        self.wait_seconds = wait_seconds
        self.last = [time.monotonic()] * workers
        self.gaps: list[float | None] = [None] * workers  # the longest silence so far
        self.warnings = [0] * workers

    def note(self, events: np.ndarray) -> None:
        """New events."""
        now = time.monotonic()
        for k in {int(k) for k in events[:, RECORD.index("worker")]}:
            self.gaps[k] = max(self.gaps[k] or 0.0, now - self.last[k])
            self.last[k], self.warnings[k] = now, 0

    def seconds(self, k: int) -> float:
        """How long that worker has been silent."""
        return time.monotonic() - self.last[k]

    def silent(self) -> list[int]:
        """Workers that have been silent for much longer than they ever were; a first round may be slow."""
        return [k for k in range(len(self.last)) if self.seconds(k) > self._limit(k) * (1 + self.warnings[k])]

    def _limit(self, k: int) -> float:
        gap = self.gaps[k]
        return self.wait_seconds + (SLOW * self.wait_seconds if gap is None else 2 * gap)

    def warned(self, k: int) -> bool:
        """Count a warning; True if it is not the first."""
        self.warnings[k] += 1
        return self.warnings[k] > 1


# Processes: one task each.

_open: list[Any] = []  # sessions are left, never closed: closing waits for peers that may have gone already


def _session(target: str, graph: Any, config: Any) -> Any:
    import tensorflow as tf

    _open.append(tf.compat.v1.Session(target, graph=graph, config=config))
    return _open[-1]


def _connector(target: str, graph: Any, config: Any, hosts: Sequence[str]) -> Callable[[float], Any]:
    """A function that makes a session, given how long to wait for the hosts that it needs."""

    def connect(seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        for host in hosts:
            wait_until(lambda host=host: reachable(host), max(0.0, deadline - time.monotonic()), lambda h=host: h)
        made: list[Any] = []
        # Making a session waits for ever if a host goes away now.
        maker = threading.Thread(target=lambda: made.append(_session(target, graph, config)), daemon=True)
        maker.start()
        maker.join(max(1.0, deadline - time.monotonic()))
        if not made:
            raise WaitTimeout(f"waited {seconds:g} s for a session with {', '.join(hosts)}")
        return made[0]

    return connect


def reachable(host: str) -> bool:
    """True if somebody listens at `host:port`."""
    name, port = host.rsplit(":", 1)
    try:
        socket.create_connection((name.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _config(job: Job, inter_op: int) -> Any:
    """Thread pools of one task, so that the tasks of one machine share its cores."""
    import tensorflow as tf

    cores = len(os.sched_getaffinity(0))
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": job.towers},
        intra_op_parallelism_threads=max(1, cores // job.cluster.workers_here),
        inter_op_parallelism_threads=inter_op,
        allow_soft_placement=True,
    )
    if not job.uses_ps:
        config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    config.experimental.disable_thread_spinning = True  # an idle task leaves the core to those that work
    return config


def _server(job: Job, addresses: Addresses, job_name: str, index: int, inter_op: int) -> Any:
    """The server of a task, on its port of all interfaces."""
    import tensorflow as tf

    try:
        return tf.distribute.Server(addresses.as_dict(), job_name, index, config=_config(job, inter_op))
    except tf.errors.UnknownError as error:
        address = addresses.of(job_name, index)
        raise UserError(
            f"{job_name} {index} cannot listen on the port of {address}: is it taken by another program, or is this "
            f"task running already? ({str(error).splitlines()[0]})"
        ) from None


def run_ps(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Serve until the evaluator says that the run has ended, or no worker has been there for long."""
    import tensorflow as tf

    from .parameter_server import end_queue

    server = _server(job, addresses, "ps", index, 4)
    report(event="listening")
    with meeting(job, ("ps", index), report):
        if job.cluster.place is not None:
            return  # the end of the meeting is the end of the run
        with tf.Graph().as_default() as graph, tf.device(f"/job:ps/task:{index}/device:CPU:0"):
            end = end_queue(index).dequeue()
        filters = tf.compat.v1.ConfigProto(device_filters=[f"/job:ps/task:{index}"])
        session = _session(server.target, graph, filters)
        seen = time.monotonic()
        while True:
            with contextlib.suppress(tf.errors.DeadlineExceededError):
                session.run(end, options=tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * LOOK_SECONDS)))
                time.sleep(ANSWER_SECONDS)
                return
            if any(reachable(host) for host in addresses.worker):
                seen = time.monotonic()
            elif time.monotonic() - seen > job.cluster.wait_seconds:
                raise WaitTimeout(f"no worker has been reachable for {job.cluster.wait_seconds:g} s")


def run_worker(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Build the graph of one worker, meet the others, run all rounds."""
    server = _server(job, addresses, "worker", index, 2)
    with meeting(job, ("worker", index), report) as report:
        graph = _worker_graph(job, index)
        config = _config(job, 2)
        first = "/job:ps" if job.uses_ps else "/job:worker/task:0"
        config.device_filters.extend([first, f"/job:worker/task:{index}"])
        hosts = addresses.ps if job.uses_ps else addresses.worker[:1]
        connect = _connector(server.target, graph.graph, config, hosts)
        loop = WorkerLoop(connect(job.cluster.wait_seconds), graph, index, report, connect)
        loop.prepare()
        report(event="ready")
        loop.await_others()
        loop.run()
        if not job.uses_ps and index == CHIEF:  # this task is the ps of its bookkeeping
            loop.session.run(graph.ops["await_end"])


def _worker_graph(job: Job, index: int) -> TaskGraph:
    """Taken over from the evaluator, or built here where there is nothing to take over."""
    path = job.shared_graph
    if path is None:
        return TaskGraph(job, [index])
    wait_until(path.exists, job.cluster.wait_seconds, lambda: "the graph that the evaluator builds")
    return TaskGraph.load(job, index, path)


def run_evaluator(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Follow the center from outside the cluster, as a client of the first ps."""
    import tensorflow as tf

    with meeting(job, ("evaluator", index), report) as report:
        model = FlatModel(job.recipe.build())
        if job.shared_graph is not None:  # the evaluator has the Keras model anyway; the workers can do without
            TaskGraph(job, [CHIEF], model).export(job.shared_graph)
        graph = TaskGraph(job, model=model)
        host = addresses.ps[0] if job.uses_ps else addresses.worker[0]
        config = tf.compat.v1.ConfigProto(device_filters=["/job:ps" if job.uses_ps else "/job:worker/task:0"])
        connect = _connector(f"grpc://{host}", graph.graph, config, addresses.ps if job.uses_ps else [host])
        Evaluator(connect(job.cluster.wait_seconds), graph, report, connect).follow()


TASKS = {"ps": run_ps, "worker": run_worker, "evaluator": run_evaluator}


# Threads: all tasks in one process.


def run_threads(job: Job, report: Report, model: FlatModel | None = None) -> Evaluator:
    """Workers as threads of this process, on one direct session; returns the evaluator at the end."""
    import tensorflow as tf

    workers = range(job.cluster.workers)
    graph = TaskGraph(job, workers, model)
    config = _config(job, max(2, len(workers)))
    config.graph_options.place_pruned_graph = True  # each call prepares only what it runs: a third of the start-up
    session = tf.compat.v1.Session(graph=graph.graph, config=config)
    loops = [WorkerLoop(session, graph, k, report) for k in workers]
    for loop in loops:
        loop.prepare()
    crew = Crew(loops, scripted=bool(job.schedule))
    try:
        for number, worker in enumerate(job.schedule, 1):
            crew.give_turn(worker, number)
        evaluator = Evaluator(session, graph, report)
        evaluator.follow(stopped=lambda: bool(crew.failures))
    finally:
        crew.leave()
    return evaluator


class Crew:
    """The threads of all workers, running freely or, if scripted, each only when it is given a turn."""

    def __init__(self, loops: Sequence[WorkerLoop], scripted: bool):
        self.loops, self.scripted = loops, scripted
        self.failures: list[BaseException] = []
        self.turns = [threading.Semaphore(0) for _ in loops]
        self.threads = [threading.Thread(target=self._run, args=(loop,), daemon=True) for loop in loops]
        for thread in self.threads:
            thread.start()

    def _run(self, loop: WorkerLoop) -> None:
        def turn() -> None:
            if self.scripted:
                self.turns[loop.index].acquire()
            if self.failures:
                raise self.failures[0]

        try:
            loop.run(turn)
        except BaseException as error:  # raised again in the thread that made the crew
            self.failures.append(error)

    def give_turn(self, worker: int, number: int) -> None:
        """Let a worker do one round; returns when its message, the `number`-th of all, is on the ps."""
        first = self.loops[0]
        self.turns[worker].release()
        wait_until(
            lambda: bool(self.failures) or first.session.run(first.ops["recorded"]) >= number,
            first.wait_seconds,
            lambda: f"worker {worker}, turn {number} of the schedule",
        )

    def leave(self) -> None:
        """End the session, wait for the threads; raise what went wrong in one of them before that."""
        failed = list(self.failures)
        self.loops[0].session.close()  # wakes those that wait at a barrier; their complaints come too late to count
        if self.scripted and failed:
            for turn in self.turns:
                turn.release()
        for thread in self.threads:
            thread.join(END_SECONDS)
        if failed:
            raise failed[0]


def run_all_as_threads(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """The threads back end as the one task of a run started from the command line."""
    del addresses, index
    run_threads(job, report)


TASKS["threads"] = run_all_as_threads
