"""Recovery of a worker after a failed call.

Each message is applied exactly once: each slot has an incarnation number (a fencing token), drawn at each join, and the
logged rounds of a slot are counted in the same atomic event as the update. So a worker that comes back, in a new
process or after a failed call, joins, receives the number of its logged rounds, and continues from there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np

from ..cluster.restart_rule import RestartRule
from ..errors import Diverged, TaskFailed, WaitTimeout
from ..lazy import tf
from ..reports import Report
from ..server.failures import failed_step, is_absence, is_refusal, was_repeated
from ..waiting import awake
from .local_state import LocalState
from .progress import Progress
from .worker_calls import Done, WorkerCalls

RETRY_SECONDS = 0.1

ATTEMPTS = 5  # recoveries in the same round, in addition to those that restarts may cause

LOOK_SECONDS = 0.5  # between two polls of the workers that have arrived


class GivenUp(WaitTimeout):
    """A wait that ends the run."""


class BarrierWait:
    """The waits of one worker for the others; the rule of restarts says whether missing ones may be restarted."""

    def __init__(self, calls: WorkerCalls, rule: RestartRule, report: Report):
        self.index, self.calls, self.rule, self.report = calls.index, calls, rule, report
        self.side = SideThread()
        self.note_completed()

    def note_completed(self) -> None:
        """Note that a set was completed: the next one may time out once, while a worker is being restarted."""
        self.may_be_restarted = True

    def handle_timeout(self) -> bool:
        """Evict the absent workers after a timeout, or report them; return True if another wait may help."""
        evicted, arrived, awaited = self.calls.evict_absent(), self.calls.arrived(), self.calls.awaited()
        for k in np.flatnonzero(evicted):
            self.report(event="evicted", worker=int(k))
        if evicted.any() or not arrived[self.index]:  # without its flag this worker was released meanwhile
            return True
        if not (self.rule.recovers and self.may_be_restarted):
            return False
        self.may_be_restarted = False
        for k in np.flatnonzero(awaited):
            self.report(event="silent", worker=int(k))  # for the supervisor, which restarts tasks
        return True

    def later(self, call: Callable[[], Done]) -> Done:
        """Run a call of rounds after the first one, within the time that earlier calls took, and a wait.

        The limit is none of TensorFlow, which counts time in which this process was suspended, and cancels the call:
        in the middle of an update that would leave the center half changed.

        Raises:
            WaitTimeout: the limit has passed; the message names the missing tasks.
        """
        done, began = self.side.begin(call), awake.now()
        while not is_done(done, LOOK_SECONDS):
            if awake.now() - began > self.calls.limit:
                if not (self.is_seen and self.handle_timeout()):
                    raise self.calls.too_late()
                began = awake.now()
        return done.result()

    @property
    def is_seen(self) -> bool:
        """True if the ps knows which workers wait at the barrier."""
        return self.calls.graph.sync.uses_ps and self.calls.graph.sees_waiting

    def first(self, call: Callable[[], Done]) -> Done:
        """Run the first call of rounds without a time limit, as the time of local steps is not known yet.

        Only the wait at the barrier has a limit. For instance worker 0 compiles for 50 s, arrives, and waits 60 s: then
        it names worker 1. A call cannot be cancelled, so giving up ends the run.

        Raises:
            GivenUp: this worker has arrived, and others have not; or the ps does not answer.
        """
        done = self.side.begin(call)
        look, arrived_at, unanswered = min(LOOK_SECONDS, self.calls.wait_seconds / 4), None, 0
        while not is_done(done, look):
            arrived, now = self._arrived(), awake.now()
            if arrived is None:
                unanswered += not self.calls.graph.in_process  # in one process, local steps delay the answer
                if unanswered >= self.rule.patience:
                    raise self._given_up("for the ps")
                continue
            unanswered = 0
            if not arrived[self.index]:
                arrived_at = None
            elif arrived_at is None:
                arrived_at = now
            elif now - arrived_at > self.calls.wait_seconds:
                arrived_at = now
                if not self.handle_timeout():
                    raise self._given_up(f"at the barrier for {self.calls.missing()}")
        return done.result()

    def _arrived(self) -> np.ndarray | None:
        """Return which workers have arrived, [W] booleans; None if the ps has not answered."""
        try:
            return self.calls.arrived()
        except tf.errors.DeadlineExceededError:
            return None

    def _given_up(self, reason: str) -> GivenUp:
        return GivenUp(f"worker {self.index} waited {self.calls.wait_seconds:g} s {reason}")


class SideThread:
    """A thread that runs one call after the other, while the thread that gives the calls polls the ps.

    To start a thread for each call would take about half a millisecond.
    """

    def __init__(self):
        self._last: futures.Future[Any] | None = None
        self._calls: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

    def begin(self, call: Callable[[], Any]) -> futures.Future[Any]:
        """Run a call, and return its future; a call that still runs keeps its thread, and this one gets another."""
        if self._last is None or not self._last.done():
            self.close()
            self._calls = queue.SimpleQueue()
            threading.Thread(target=_run, args=(self._calls,), daemon=True).start()
        self._last = futures.Future()
        self._calls.put((self._last, call))
        return self._last

    def close(self) -> None:
        """End the thread after its present call."""
        self._calls.put(None)


def _run(calls: queue.SimpleQueue[Any]) -> None:
    """Run calls from a queue until it yields None; each future gets the result of its call, or its error."""
    for future, call in iter(calls.get, None):
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)


def is_done(future: futures.Future[Any], seconds: float) -> bool:
    """Block until the call has ended, at most so long; return True if it has, or raise the error of the call."""
    if not futures.wait([future], seconds).done:
        return False
    future.result()
    return True


class WorkerRecovery:
    """The joins of one worker: the first one, and those after failures, as far as the rule of restarts allows."""

    def __init__(
        self,
        calls: WorkerCalls,
        progress: Progress,
        barrier: BarrierWait,
        local: LocalState,
        rule: RestartRule,
        report: Report,
    ):
        self.local = local
        self.index, self.rule, self.report = calls.index, rule, report
        self.calls, self.progress, self.barrier = calls, progress, barrier
        self.recovered_at = -1  # the round of the last recovery ...
        self.repeated = 0  # number of earlier recoveries in that round

    def join(self, recorded: bool = True) -> None:
        """Take the slot, even from another process, and continue after its last logged round."""
        while (joined := self.calls.join(recorded)).waits:  # the last message is in a set that is not complete yet
            try:
                self.calls.await_token()
            except tf.errors.DeadlineExceededError:
                missing = self.calls.missing()
                if not self.barrier.handle_timeout():
                    raise WaitTimeout(
                        f"worker {self.index} waited {self.calls.wait_seconds:g} s at the barrier for {missing}"
                    ) from None
        self.progress.joined(joined)
        self.local.joined(joined.version, joined.copied)

    def persist(self, action: Callable[[], None]) -> None:
        """Run an action that needs the ps, and retry it for a bounded time while the ps may be restarting."""
        deadline = awake.now() + self.rule.repair_seconds
        while True:
            try:
                return action()
            except (tf.errors.OpError, WaitTimeout) as error:
                helps = self.rule.recovers and (is_absence(error) or is_refusal(error))
                if not helps or awake.now() > deadline:
                    self._raise_if_own(error)
                    raise
            time.sleep(RETRY_SECONDS)
            self.calls.reconnect(max(1.0, deadline - awake.now()))

    def recover(self, error: BaseException) -> None:
        """Recover from a failed call, by the first rule that fits.

        | failure                              | reaction of the worker                                       |
        |--------------------------------------|--------------------------------------------------------------|
        | others did not send their message    | evicts or reports them, and joins again, if the run has a ps |
        | refused: the run ends now            | leaves, with its logged rounds                               |
        | refused: its message was not finite  | has its round counted without it, or ends the run            |
        | an operation of the worker failed    | ends the run: a retry would fail again                       |
        | the ps was lost, or was restored     | waits until it is back, and joins, if tasks may be restarted |
        | a call was delivered twice           | joins at once: no task was lost                              |

        Raises:
            BaseException: the error, or its cause in our terms, if no rule fits or the rule ends the run.
        """
        if isinstance(error, GivenUp):
            raise WaitTimeout(str(error)) from None
        if isinstance(error, WaitTimeout) and self.barrier.is_seen and self.barrier.handle_timeout():
            return self.join()
        if is_refusal(error) and (self._has_ended() or self._was_not_finite()):
            return None
        self._raise_if_own(error)
        if self.rule.recovers and (is_refusal(error) or is_absence(error)):
            return self._join_after_loss(error)
        counted = self.calls.graph.sync.uses_ps and not self.calls.graph.sync.in_regions  # there, not at once
        if counted and not self.rule.recovers and was_repeated(error):
            return self._join_at_once(error)
        raise error

    def _raise_if_own(self, error: BaseException) -> None:
        """Raise `TaskFailed` with TensorFlow's reason if an operation of a step failed, whatever the peers do."""
        if why := failed_step(error, self.index):
            raise TaskFailed(why) from error

    def _has_ended(self) -> bool:
        """Return True if a call was refused because the run ends now; the logged rounds then count as done."""
        if not self.calls.stopping():
            return False
        done = self.progress.rounds if self.calls.graph.sync.in_regions else 0  # regions bring their records later
        self.progress.stopped(max(done, int(self.calls.rounds_applied()[self.index])))
        return True

    def _was_not_finite(self) -> bool:
        """Return True if a message was refused for NaN, and drop it; raises `Diverged` if that ends the run."""
        if not self.calls.is_owner():
            return False
        if self.progress.on_nan == "stop":
            drop = "" if self.calls.graph.sync.in_regions else ", or --on-nan drop"  # servers in regions refuse that
            plan = self.progress.plan
            tolerated = plan.scheme.sync.most_left_out(plan.workers)
            left_out = f" ({plan.scheme.name} leaves out {tolerated} of {plan.workers} messages)" if tolerated else ""
            raise Diverged(
                f"worker {self.index} sent a message that is not finite, at version {self.calls.version()} of the "
                f"center, which refused it{left_out}: check the loss, try a smaller learning rate or period{drop}"
            )
        if self.calls.refuse():  # otherwise the slot was taken over, and the next message is refused for that
            self.report(event="refused", worker=self.index)
            self.join()
        return True

    def _join_after_loss(self, error: BaseException) -> None:
        """Retry to join until the chief has restored the state, after the loss of a ps or of a connection."""
        self._pause_if_repeated(error)
        deadline = awake.now() + self.rule.repair_seconds
        while True:
            try:
                if not is_refusal(error):
                    self.calls.reconnect(deadline - awake.now())
                return self._join_again()
            except (tf.errors.OpError, WaitTimeout) as again:
                if not (is_refusal(again) or is_absence(again)):
                    raise
                if awake.now() > deadline:
                    ps_answers = is_refusal(again) or isinstance(again, tf.errors.FailedPreconditionError)
                    goal = "the chief, worker 0, to restore the state" if ps_answers else "the ps to come back"
                    raise WaitTimeout(
                        f"worker {self.index} waited {self.rule.repair_seconds:g} s for {goal} ({type(again).__name__})"
                    ) from None
                error = again
                time.sleep(RETRY_SECONDS)

    def _join_at_once(self, error: BaseException) -> None:
        """Join in the same session, as no task was lost; raise the error if that fails, as after a partial update."""
        self._pause_if_repeated(error)
        try:
            self._join_again()
        except tf.errors.OpError:
            raise error from None

    def _join_again(self) -> None:
        self.join()
        self.report(event="rejoined", worker=self.index, rounds=self.progress.rounds)

    def _pause_if_repeated(self, error: BaseException) -> None:
        """Pause longer before each further recovery in the same round; raise the error after too many."""
        rounds = self.progress.rounds
        self.repeated = self.repeated + 1 if rounds == self.recovered_at else 0
        self.recovered_at = rounds
        if self.repeated > ATTEMPTS + self.rule.max_restarts:
            raise error
        if self.repeated:
            time.sleep(min(RETRY_SECONDS * 2**self.repeated, self.calls.wait_seconds))
