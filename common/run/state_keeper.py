"""Recovery: what survives a fault, and who repairs what.

* A message counts once. Each seat has a pass, given by joining; a message whose pass is not that of its seat is
  refused, and what a seat has on record is counted in the same atomic event that folds. So whoever comes back, a new
  process or the old one after a broken call, joins, is told how far its seat is, and goes on from there.
* An event that is cut in the middle leaves a mark, and nobody is admitted until the chief has restored the last
  checkpoint. So has a ps that comes back empty.
* The chief adopts what is alive and whole, restores what is not, and only initialises where nothing has ever been.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.failures import is_absence, is_late, is_refusal
from ..errors import TaskLost, UserError, WaitTimeout
from ..record import checkpoint
from ..reports import Report
from .graph import TaskGraph
from .job import Job

WATCH_SECONDS = 0.25

RETRY_SECONDS = 0.1

# How long the end of a run waits for the last checkpoint: much longer than the longest so far has taken, and at least
FIRST_SAVE_SECONDS = 60.0

SAVE_PATIENCE = 10

SLOW_DISK = 1e6  # bytes per second

STATE_WAITS = 2  # times the limit of an ordinary wait, to read all of the state


class Keeper:
    """The chief's care for the global state: makes it, saves it now and then, restores it.

    Args:
        job: the run.
        graph: of the chief.
        connect: a new session, given the seconds that it may take.
        report: where events go.
    """

    def __init__(self, job: Job, graph: TaskGraph, connect: Callable[[float], Any], report: Report):
        self.job, self.graph, self.ops, self.connect, self.report = job, graph, graph.ops, connect, report
        self.recovery = job.recovery
        self.run_dir: Path = job.run_dir or Path()
        self.limit_ms = round(1000 * job.cluster.wait_seconds)
        self.claimed = False
        self.saved: tuple[float, int] = (time.monotonic(), -1)  # when, and at which version
        self.saving_seconds = 0.0  # how long the last checkpoint may take
        self.longest = 0.0  # seconds that a checkpoint has taken to be written
        self.restorations = 0  # what was read before the last one is not to be published
        self.publishing = threading.Lock()  # no restoration meanwhile
        self.writer: threading.Thread | None = None  # writes a checkpoint; there is one at a time
        self.complained = False  # that the last one failed
        self.session: Any = None
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    # What the chief does when it starts, and when something has died.

    def claim(self, session: Any) -> None:
        """Adopt the global state if it is alive and whole; else restore it, or make it where nothing ever was."""
        alive = self._run(session, "alive")
        if alive.all() and self._is_whole(session):
            self.claimed = True
        else:
            with self.publishing:
                self.restorations += 1
            last = checkpoint.newest(self.run_dir, self._pass_over)
            if last is not None:
                self._restore(session, last, again=self.claimed or alive.any())
            elif alive.any() or self.claimed:
                lost = ", ".join(f"ps {i}" for i in np.flatnonzero(~alive)) or "an update in the middle"
                raise TaskLost(f"state was lost ({lost}), and there is no checkpoint to restore it from")
            else:
                center, state = self.graph.initial
                feed = {self.ops["initial_center"]: center, self.ops["initial_state"]: state}
                feed |= {self.ops["restoration"]: np.array([time.time_ns(), 0])}
                self._run(session, "initialize", feed)
                if self.recovery.max_restarts:
                    self._save(session)
                    if self.writer is not None:  # somebody may die at once; but a slow disk holds up nobody for long
                        self.writer.join(self.job.cluster.wait_seconds / 2)
            self.claimed = True
        self._run(session, "announce")

    def _pass_over(self, path: Path, problem: checkpoint.Damaged) -> None:
        self.report(event="warning", message=checkpoint.set_aside(path, problem))

    def _restore(self, session: Any, last: checkpoint.Checkpoint, again: bool) -> None:
        """Put a checkpoint in place, `again` in the middle of a run, or for the first time because it is resumed."""
        check_fits(last, self.job, self.graph)
        arrays = dict(last.arrays)
        if not again:  # who had finished may have more to do now
            arrays["finished"] = arrays["ready"] = np.zeros_like(arrays["finished"])
            arrays["active"] = np.ones_like(arrays["active"])
        self._run(session, "shut")
        number = time.time_ns()
        feed: dict[Any, Any] = {self.ops["restoration"]: np.array([number, last.events])}
        for name, array in arrays.items():
            places = [op for key, op in self.ops.items() if key.startswith(f"new/{name}/")]
            parts = checkpoint.sliced(array, [int(p.shape[-1]) if p.shape.rank else 0 for p in places])
            feed |= dict(zip(places, parts, strict=True))
        self._run(session, "restore", feed)
        # Whoever waits is woken, and joins once the state is open; joining voids what is left of this. Also when a run
        # is resumed: from here, that looks the same as a run whose chief and ps were all lost at once.
        self._run(session, "recall")
        self._run(session, "open")
        self.saved = time.monotonic(), last.version
        self.report(event="restored" if again else "resumed", version=last.version, restoration=number)

    # What it does meanwhile, in a thread of its own.

    def start(self) -> None:
        """Watch and save from now on."""
        self._thread.start()

    def end(self) -> Callable[[], None]:
        """No more of it; returns how to write a last checkpoint, if there is to be one. That needs no ps any more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self.job.cluster.wait_seconds)
        asked = self.recovery.checkpoint_seconds is not None or self.recovery.checkpoint_steps is not None
        if not asked and self.saved[1] < 0:
            return lambda: None
        try:
            session = self.session or self.connect(self.job.cluster.wait_seconds)
            state = self._state(session)
            self._await_record(session, state.events)
        except Exception as error:
            self._complain("the end", error)
            return lambda: None
        size = sum(array.nbytes for array in state.arrays.values())
        seconds = max(FIRST_SAVE_SECONDS, SAVE_PATIENCE * self.longest, size / SLOW_DISK)
        busy = self.writer is not None and self.writer.is_alive()
        self.saving_seconds = seconds * (1 + busy)
        self.report(event="saving", version=state.version, seconds=self.saving_seconds)

        def write() -> None:
            if self.writer is not None:
                self.writer.join()
            self._write(state)

        return write

    def _watch(self) -> None:
        failing: float | None = None
        while not self._stop.wait(WATCH_SECONDS):
            try:
                self._attempt(self._look_after)
                failing = None
            except Exception as error:
                self.session = None
                failing = failing or time.monotonic()
                if not is_absence(error) or time.monotonic() - failing > self.job.repair_seconds:
                    self.failure = error
                    return

    def _attempt(self, action: Callable[[Any], None]) -> None:
        if self.session is None:
            self.session = self.connect(self.job.cluster.wait_seconds)
        action(self.session)

    def _look_after(self, session: Any) -> None:
        if self.job.recovers and not (self._run(session, "alive").all() and self._is_whole(session)):
            self.claim(session)
        when, version = self.saved
        by_time = time.monotonic() - when >= self.recovery.seconds
        if not by_time and self.recovery.checkpoint_steps is None:
            return
        if self.writer is not None and self.writer.is_alive():
            return
        now = int(self._run(session, "version"))
        if now > version and (by_time or now >= max(version, 0) + (self.recovery.checkpoint_steps or now)):
            self._save(session)

    def _save(self, session: Any) -> None:
        """Save the state of this moment; the slow part of it is left to a thread. If it fails, the run goes on."""
        before, self.saved = self.saved, (time.monotonic(), self.saved[1])
        number = self.restorations
        try:
            state = self._state(session)
        except Exception as error:
            if is_absence(error) and not is_late(error):
                raise
            return self._complain(f"a version after {max(before[1], 0)}", error)
        self.saved = time.monotonic(), state.version
        self.writer = threading.Thread(target=self._write, args=(state, session, number), daemon=True)
        self.writer.start()

    def _state(self, session: Any) -> checkpoint.Checkpoint:
        """All that a checkpoint keeps, at this moment."""
        prefix = "saved/"
        fetches = {key.removeprefix(prefix): op for key, op in self.ops.items() if key.startswith(prefix)}
        arrays = checkpoint.whole(self._run(session, fetches, limit_ms=STATE_WAITS * self.limit_ms))
        return checkpoint.Checkpoint(arrays, identity(self.job, self.graph))

    def _write(self, state: checkpoint.Checkpoint, session: Any = None, restorations: int | None = None) -> None:
        """Write a checkpoint; with a session, it counts only if its record is safe and no restoration has undone it."""
        began = time.monotonic()
        part = None
        try:
            part = checkpoint.write(self.run_dir, state)
            self.longest = max(self.longest, time.monotonic() - began)
            counts = session is None or self._await_record(session, state.events)
            with self.publishing:  # now no restoration begins
                if not counts or restorations not in (None, self.restorations):
                    return checkpoint.discard(part)
                checkpoint.publish(part, self.recovery.keep_checkpoints)
        except Exception as error:  # a full disk ends no run
            if part is not None:
                checkpoint.discard(part)
            return self._complain(f"version {state.version}", error)
        self.complained = False
        self.report(event="checkpoint", version=state.version)

    def _complain(self, which: str, error: Exception) -> None:
        """Say that there is no checkpoint, unless the one before failed, too; a lost peer is a matter of others."""
        lost = is_refusal(error) or (is_absence(error) and not is_late(error))
        if not (self.complained or lost):
            self.complained = True
            why = (str(error).splitlines() or [type(error).__name__])[0]
            self.report(event="warning", message=f"no checkpoint of {which}: {why}")

    def _await_record(self, session: Any, events: int) -> bool:
        """True once the evaluator has so many events; False if the state is not alive any more."""
        deadline = time.monotonic() + self.job.cluster.wait_seconds
        while int(self._run(session, "drained")) < events:
            if not self._run(session, "alive").all():
                return False
            if time.monotonic() > deadline:
                raise WaitTimeout(f"the evaluator has not put it on record for {self.job.cluster.wait_seconds:g} s")
            time.sleep(RETRY_SECONDS / 5)
        return True

    def _is_whole(self, session: Any) -> bool:
        try:
            self._run(session, "whole")
        except Exception as error:
            if is_refusal(error):
                return False
            raise
        return True

    def _run(self, session: Any, fetch: Any, feed: Any = None, limit_ms: int | None = None) -> Any:
        import tensorflow as tf

        fetch = self.ops[fetch] if isinstance(fetch, str) else fetch
        return session.run(fetch, feed, options=tf.compat.v1.RunOptions(timeout_in_ms=limit_ms or self.limit_ms))


def identity(job: Job, graph: TaskGraph) -> dict[str, Any]:
    """What must be the same in a run that goes on from a checkpoint."""
    center, state = graph.initial
    return {
        "algorithm": job.scheme.name,
        "parameters": len(center),
        "state": len(state),
        "workers": job.cluster.workers,
        "batch_size": job.batch_size,
        "seed": job.seed,
    }


def check_fits(last: checkpoint.Checkpoint, job: Job, graph: TaskGraph) -> None:
    """Raise `UserError` if a checkpoint is of another kind of run."""
    for name, value in identity(job, graph).items():
        if last.about.get(name) != value:
            raise UserError(
                f"the checkpoint in {job.run_dir} is of a run with {name}={last.about.get(name)!r}: it cannot go on "
                f"with another. Received: {name}={value!r}"
            )
    wanted = {key.split("/")[1] for key in graph.ops if key.startswith("new/")}
    if wanted != set(last.arrays):
        differ = ", ".join(sorted(wanted ^ set(last.arrays)))
        raise UserError(f"the checkpoint in {job.run_dir} is of a run with other hyperparameters (variables: {differ})")
