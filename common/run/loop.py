"""The rounds of one worker, whatever happens to the others meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..contract.rounds import Event
from ..engine.failures import is_absence, is_own, is_refusal, was_repeated
from ..errors import Diverged, TaskFailed, WaitTimeout
from ..reports import Report
from ..waiting import absent, paced, wait_for, wait_until
from .graph import TaskGraph
from .job import CHIEF, REPAIR_WAITS, plan, shard
from .state_keeper import RETRY_SECONDS, Keeper

REPORT_SECONDS = 0.1  # between two reports at first ...

LONGEST_REPORT_SECONDS = 2.0  # ... and in a long run

LONG_ROUND_SECONDS = 0.1  # longer rounds gain nothing from unrolling

ATTEMPTS = 5  # to recover in the same round, apart from those that restarts may cause

LOOK_SECONDS = 0.5  # between two looks at who has arrived

SLOW = 10  # times the limit of a wait, for calls that wait for nobody


class GivenUp(WaitTimeout):
    """A wait that ends the run."""


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
        self.recovered_at, self.in_vain = -1, 0  # the round of the last recovery; how many were in that one before
        self.losses: list[float] = []  # since the last report
        self.started = self.ended = self.reported = time.monotonic()  # the first two of the rounds: see `run`
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
        fed = {f"data_{i}": array for i, array in enumerate(shard(self.job, self.index))}
        fed |= {f"frozen_{i}": array for i, array in enumerate(self.graph.frozen)}
        mine = self.graph.worker_ops[self.index]
        self._run(mine["initialize"], {mine[name]: array for name, array in fed.items()})
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

        deadline = time.monotonic() + self.job.repair_seconds
        while True:
            try:
                return action()
            except (tf.errors.OpError, WaitTimeout) as error:
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

        self.started = self.ended = time.monotonic()
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
        save = self.keeper.end() if self.keeper is not None else lambda: None
        with contextlib.suppress(tf.errors.OpError):  # the ps may be gone already
            self._run("leave" if self.keeper is None else "chief_leaves")
        save()

    @property
    def saving_seconds(self) -> float:
        """How long the last checkpoint may take; 0 if there is none."""
        return self.keeper.saving_seconds if self.keeper is not None else 0.0

    def _rounds(self, turn: Callable[[], None]) -> None:
        """The rounds that are left."""
        rounds = plan(self.job, self.index, self.rounds)
        first = self.rounds
        count = 1  # the first two calls are single: one warms up, one tells how long a round takes
        while chunk := list(itertools.islice(rounds, count)):
            turn()
            if self.rounds == 0 and self.index != CHIEF and self.job.scheme.warmup_updates:
                self._await_warmup()
            began = time.monotonic()
            batches, (event, *_) = zip(*chunk, strict=True)
            if len(chunk) == count and len(set(map(len, batches))) == 1:
                self._did(batches, *self.call[event, count](np.stack(batches)))
            else:
                for rows in batches:
                    self._did([rows], *self.call[event, 1](rows[None]))
            if self.rounds == 1:
                self.report(event="first_update", worker=self.index)
            elif self.rounds == first + 2 and time.monotonic() - began < LONG_ROUND_SECONDS:
                count = self.job.rounds_per_call
            if self.keeper is not None and self.keeper.failure is not None:
                raise self.keeper.failure

    def _finish(self) -> None:
        self._run("set_finished")
        if self.job.sees_waiting and not self.job.options.schedule and not self.stopping:
            self._run("retire")
        self._progress()
        self.report(
            event="finished",
            worker=self.index,
            steps=self.steps,
            rounds=self.rounds,
            started=self.started,
            ended=self.ended,
            sent=time.monotonic(),
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
                missing = self._awaited()
                if not self._press_the_absent():
                    raise WaitTimeout(
                        f"worker {self.index} waited {self.wait_seconds:g} s at the barrier for {missing}"
                    ) from None
        rounds = int(joined["folded"])
        if rounds < self.rounds:  # acknowledged, and then lost with a ps
            lost, before = self.rounds - rounds, self.restoration
            together = (
                self.job.scheme.gate.updates_per_round(self.job.cluster.workers) == 1
            )  # all lost the same updates
            self.report(event="lost", worker=self.index, rounds=lost, together=together, before=before)
        self.rounds, self.restoration, self.stopping = rounds, int(joined["restored"]), bool(joined["stopping"])
        self.steps = self.job.rounds(self.index).steps(rounds)
        if self.job.scheme.scheduled or not self.job.uses_ps:
            self._run("set_clock", {self.ops["steps_done"]: self.steps})

    def _recover(self, error: BaseException) -> None:
        """Get back to work after a call that failed, or raise what cannot be helped."""
        import tensorflow as tf

        if isinstance(error, GivenUp):
            raise WaitTimeout(str(error)) from None
        if isinstance(error, WaitTimeout) and self.job.sees_waiting and self._press_the_absent():
            self._rejoin()
            return
        if is_refusal(error):
            self.stopping = bool(self._run("stopping"))
            if self.stopping:
                self._take_stock()
                return
            if self._was_not_finite():
                return
        if is_own(error):
            what = str(error).partition("From /job:worker")[2].splitlines()[1]
            raise TaskFailed(f"an operation of the worker itself failed: {what} ({type(error).__name__})") from error
        if was_repeated(error) and self.job.uses_ps and not self.job.recovers:
            self._go_on_after(error)
            return
        if not self.job.recovers or not (is_refusal(error) or is_absence(error)):
            raise error
        self._pause_in_vain(error)
        deadline = time.monotonic() + self.job.repair_seconds
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
                    there = is_refusal(again) or isinstance(again, tf.errors.FailedPreconditionError)
                    what = "the chief, worker 0, to restore the state" if there else "the ps to come back"
                    raise WaitTimeout(
                        f"worker {self.index} waited {self.job.repair_seconds:g} s for {what} ({type(again).__name__})"
                    ) from None
                error = again
                time.sleep(RETRY_SECONDS)

    def _go_on_after(self, error: BaseException) -> None:
        """Join again, with the same session: nobody is gone. If an update was cut in the middle, that is no help."""
        import tensorflow as tf

        self._pause_in_vain(error)
        try:
            self._rejoin()
        except tf.errors.OpError:
            raise error from None
        self.report(event="rejoined", worker=self.index, rounds=self.rounds)

    def _pause_in_vain(self, error: BaseException) -> None:
        """Recovering again and again without a round in between: wait longer each time, and give up in the end."""
        self.in_vain = self.in_vain + 1 if self.rounds == self.recovered_at else 0
        self.recovered_at = self.rounds
        if self.in_vain > ATTEMPTS + self.job.recovery.max_restarts:
            raise error
        if self.in_vain:
            time.sleep(min(RETRY_SECONDS * 2**self.in_vain, self.wait_seconds))

    def _take_stock(self) -> None:
        """The run ended in the middle of a call: those of its rounds count that are on record."""
        rounds = int(self._run("folded")[self.index])
        if rounds > self.rounds:
            self.ended = time.monotonic()
        self.rounds, self.steps = rounds, self.job.rounds(self.index).steps(rounds)

    def _was_not_finite(self) -> bool:
        """After a refusal: True if it was because of NaN and is settled; raises `Diverged` if that ends the run."""
        import tensorflow as tf

        standing = self._run("standing")
        if standing[self.index] != self.passport[0] or standing[-1] != 1:
            return False
        if self.job.recovery.on_nan == "stop":
            raise Diverged(
                f"worker {self.index} sent a message that is not finite, at version {self._run('version')} of the "
                "center, which refused it: try a smaller learning rate or period, or --on-nan drop"
            )
        try:
            self._run("refuse")
        except tf.errors.InvalidArgumentError as again:
            if not is_refusal(again):
                raise
            return True  # the run ended, or another took the seat, in this very moment: the next message is told so
        self.report(event="refused", worker=self.index)
        self._rejoin()
        return True

    def _awaited(self) -> str:
        """The names of those for whom workers wait at the gate."""
        return absent(~self._run("awaited"))

    def _press_the_absent(self) -> bool:
        """At a barrier that nobody completes: True if others were expelled, or may still come."""
        expelled = np.flatnonzero(self._run("expel"))
        arrived, awaited = self._run("arrived"), self._run("awaited")
        for k in expelled:
            self.report(event="expelled", worker=int(k))
        if len(expelled) or not arrived[self.index]:  # if not, the set has been completed in this very moment
            return True
        if self.job.recovers and self.patience:
            self.patience -= 1  # whoever starts tasks again may have to be told
            for k in np.flatnonzero(awaited):
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
        """A function that runs `count` rounds in one call and returns losses and steps that count, [2, rounds]."""
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
                if self.job.sees_waiting and not self.longest:
                    options.timeout_in_ms = 0
                    return self._first(lambda: run(batches, self.index, self.passport, options=options).T)
                return run(batches, self.index, self.passport, options=options).T
            except tf.errors.DeadlineExceededError:
                missing = self._awaited() if self.job.sees_waiting else ""
                where = "at the barrier " if self.job.waits else ""
                missing = missing or ("the ps" if self.job.uses_ps else "another worker")
                raise WaitTimeout(f"worker {self.index} waited {limit:.0f} s {where}for {missing}") from None
            finally:
                self.longest = max(self.longest, time.monotonic() - began)

        return call

    def _first(self, call: Callable[[], np.ndarray]) -> np.ndarray:
        """A first call to a barrier: it is not known yet how long local steps take, so only waiting has a limit.

        It begins when the message of this worker has arrived. A call cannot be cancelled: giving up ends the run.
        """
        import tensorflow as tf

        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def work() -> None:
            try:
                answer.put((call(), None))
            except Exception as error:
                answer.put((None, error))

        threading.Thread(target=work, daemon=True).start()
        look, arrived_at, unanswered = min(LOOK_SECONDS, self.wait_seconds / 4), None, 0
        while True:
            with contextlib.suppress(queue.Empty):
                losses, error = answer.get(timeout=look)
                if error is not None:
                    raise error
                return losses
            try:
                arrived, now = self._run("arrived"), time.monotonic()
                unanswered = 0
            except tf.errors.DeadlineExceededError:
                unanswered += self.job.cluster.backend != "threads"  # there, the local steps are in the way
                if unanswered >= (REPAIR_WAITS if self.job.recovers else 1):
                    raise GivenUp(f"worker {self.index} waited {self.wait_seconds:g} s for the ps") from None
                continue
            if not arrived[self.index]:
                arrived_at = None
            elif arrived_at is None:
                arrived_at = now
            elif now - arrived_at > self.wait_seconds:
                arrived_at = now
                if not self._press_the_absent():
                    where = f"at the barrier for {self._awaited()}"
                    raise GivenUp(f"worker {self.index} waited {self.wait_seconds:g} s {where}")

    def _did(self, chunk: Sequence[np.ndarray], losses: np.ndarray, steps: np.ndarray) -> None:
        """Count the rounds of a call, look at their losses, report now and then."""
        self.ended = time.monotonic()
        self.rounds += len(chunk)
        self.steps += sum(map(len, chunk))
        self.patience = 1
        fine = np.isfinite(losses)
        left_out = np.array(list(map(len, chunk))) - steps
        if not fine.all() or left_out.any():
            self._was_left_out(losses, left_out)
        self.losses.extend(losses[fine].tolist())
        now = time.monotonic()
        if now - self.reported > max(REPORT_SECONDS, paced(now - self.started, LONGEST_REPORT_SECONDS)):
            self._progress()

    def _was_left_out(self, losses: np.ndarray, left_out: np.ndarray) -> None:
        """Rounds had a loss that is not finite, or steps that do not count: the end, or something to report."""
        if self.job.recovery.on_nan == "stop":
            bad = int(np.flatnonzero(~np.isfinite(losses) | (left_out > 0))[0])
            loss = losses[bad]
            who = f"worker {self.index}"
            what = f"a gradient of {who} was not finite" if np.isfinite(loss) else f"the loss of {who} became {loss}"
            raise Diverged(
                f"{what} in its round {self.rounds - len(losses) + bad}, at version {self._run('version')} of the "
                "center: try a smaller learning rate or period"
            )
        if number := int(left_out.sum()):
            self.report(event="refused", worker=self.index, number=number)

    def _progress(self) -> None:
        if self.losses:
            loss = float(np.mean(self.losses))
            self.report(event="worker", worker=self.index, steps=self.steps, loss=loss)
        self.losses, self.reported = [], time.monotonic()
