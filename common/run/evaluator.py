"""The evaluator: follows the center from outside, keeps the record, and has the last word on the run."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.failures import is_absence, is_refusal, was_repeated
from ..engine.trace import EVENTS, FLOAT_BYTES
from ..errors import CannotWrite, Diverged, WaitTimeout
from ..files import PART, replacing, writing
from ..problems.models import batched
from ..record.callbacks import STOP
from ..record.event_log import Tally
from ..record.tensorboard import Summaries
from ..reports import Report
from ..waiting import POLL_SECONDS, paced, wait_for
from .graph import TaskGraph
from .job import CHIEF
from .liveness import Presence
from .record_reader import Reader

FOLLOW_SECONDS = 0.05  # a look at the ps costs it about a millisecond

EVALUATION_SHARE = 10  # evaluations wait so many times as long as they take: a tenth of one core at most

EVALUATION_BATCH = 512

LONGEST_PAUSE_SECONDS = 30.0  # between two evaluations of a long run that could do more

LATER_EVALUATIONS = 60

END_MILLISECONDS = 500

END_SECONDS = 5.0

CHIEF_WAITS = 3  # times the limit of a wait: to read the last state (two), and to see that it is on record


class Evaluator:
    """Follows the center: evaluates it, and has the last word on the run; its reader keeps the record meanwhile."""

    def __init__(self, session: Any, graph: TaskGraph, report: Report, connect: Callable[[float], Any] | None = None):
        self.session, self.graph, self.report, self.job = session, graph, report, graph.job
        self.connect = connect or (lambda seconds: session)
        self.wait_seconds = self.job.cluster.wait_seconds
        self.test = self.job.test  # as a data set of batches
        if self.test is not None:
            self.test = self.test() if callable(self.test) else batched(self.test, EVALUATION_BATCH)
        self.path: list[tuple[float, dict[str, Any], dict[str, Any]]] = []  # when, figures, center: not evaluated yet
        self.stopped: str | None = None  # why the run was ended early
        self.gap = FOLLOW_SECONDS  # between two looks that are evaluated later
        self.plans = [self.job.rounds(k) for k in range(self.job.cluster.workers)]
        self.seen = Tally(self.job.cluster.workers)
        self.unrestored: float | None = None  # since when the ps answers that its state is not whole
        self.chief_is_late = False
        self.told_to_stop = 0  # workers that are not counted on any more, and still have to leave
        self.metrics: dict[str, Any] = {}
        self.summaries = Summaries(self.job.run_dir / "tb") if self.job.options.tensorboard else None
        self.presence = Presence(self.job.cluster.workers, self.wait_seconds)
        self.reader = Reader(self.job, graph.ops, self._run, report, self.presence.note)

    def follow(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Evaluate now and then until all workers have finished (or `stopped()`), and once more then."""
        with self.reader:
            self._evaluate()  # the first time is slow, and belongs before the training
            self._follow(stopped)

    def _follow(self, stopped: Callable[[], bool]) -> None:
        import tensorflow as tf

        began = time.monotonic()
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
                    looked = time.monotonic()
                    self._observe()
                    now = time.monotonic()
                    cost = min(cost, now - looked) if due else cost
                    due = now + self._pause(now - began, cost)
                elif self.reader.late:
                    self.reader.drain()  # or learn why it cannot be done
                self._look_for_the_silent()
                self._stop_if_wanted()
                failing, self.unrestored, self.chief_is_late = None, None, False
            except (tf.errors.OpError, WaitTimeout) as error:
                failing = failing or time.monotonic()
                self._recover(error, failing)
            time.sleep(FOLLOW_SECONDS)

    def _pause(self, elapsed: float, cost: float) -> float:
        """Seconds to the next evaluation: the longer the run, the rarer, so that a long one has not too many."""
        if self.job.evaluate_later:
            return self.gap
        share = EVALUATION_SHARE * cost if cost < float("inf") else 0
        return max(self.job.evaluate_seconds, share, paced(elapsed, LONGEST_PAUSE_SECONDS))

    def _stop_if_wanted(self) -> None:
        """End the run early: the workers are refused, ask why, and leave."""
        if self.stopped or not self.job.uses_ps:
            return
        job, metrics = self.job, self.metrics
        accuracy = next((v for k, v in metrics.items() if k.startswith("test_") and k.endswith("accuracy")), None)
        reasons = {
            f"version {job.options.stop_at_version}": job.options.stop_at_version is not None
            and int(self._run("version")) >= job.options.stop_at_version,
            f"accuracy {job.options.stop_at_accuracy}": job.options.stop_at_accuracy is not None
            and accuracy is not None
            and accuracy >= job.options.stop_at_accuracy,
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
        import tensorflow as tf

        now, deadline = time.monotonic(), since + self.job.repair_seconds
        hopeless = isinstance(error, WaitTimeout) or not (is_refusal(error) or is_absence(error))
        if not (self.job.recovers or was_repeated(error)) or now > deadline or hopeless:
            raise error
        if is_refusal(error) or isinstance(error, tf.errors.FailedPreconditionError):  # else it is the ps that is late
            self.unrestored = self.unrestored or now
            if now - self.unrestored > self.wait_seconds and not self.chief_is_late:
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

    def _observe(self, last: bool = False) -> dict[str, Any]:
        """Read center and record; evaluate and report, now or at the end."""
        ops = self.graph.ops
        names = [name for name in ("at", "center", "average", "state", "refused") if name in ops]
        snapshot = self._run({name: ops[name] for name in names})
        self.seen = self.reader.drain()
        figures = {"version": int(snapshot["at"]), **self._figures(self.seen)}
        self.path.append((time.monotonic(), figures, snapshot))
        if len(self.path) > 2 * LATER_EVALUATIONS:
            del self.path[1:-1:2]
            self.gap *= 2
        if last or not self.job.evaluate_later:
            self._catch_up()
        return snapshot

    def _catch_up(self) -> None:
        """Evaluate and report what has been seen, or an even choice if it is much; first and last are among it."""
        chosen = np.unique(np.linspace(0, len(self.path) - 1, min(len(self.path), LATER_EVALUATIONS)).round())
        for when, figures, snapshot in (self.path[int(i)] for i in chosen):
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
        return self.graph.model.measure(self.test)

    def _figures(self, seen: Tally) -> dict[str, Any]:
        """What the record says about the run so far."""
        return {
            "examples": self.job.batch_size * self._steps(seen.rounds),
            **self._bytes(seen),
            "staleness_mean": seen.staleness_mean,
            "staleness_max": seen.staleness_max,
        }

    def _bytes(self, seen: Tally) -> dict[str, int]:
        """What has travelled to the center and back so far."""
        if self.job.sparse:  # up: the coordinates to read, then coordinates and gradient; down: values
            rounds = int(seen.rounds.sum())
            entries = FLOAT_BYTES * self.job.batch_size * self.job.train[0][0].shape[1] * rounds
            return {"bytes_pushed": 3 * entries, "bytes_pulled": entries}
        up, down = self.job.scheme.gate.traffic(self.job.cluster.workers)
        number = dict(zip(EVENTS, seen.kinds.tolist(), strict=True))
        pushed = up * (number["exchange"] + number["push"])
        pulled = down * (number["exchange"] + number["pull"] + number["join"])
        pulled += self.job.cluster.workers if self.job.uses_ps else 0  # what each began with
        vector, state = FLOAT_BYTES * self.graph.model.size, FLOAT_BYTES * self.graph.model.state_size
        return {"bytes_pushed": int(pushed * (vector + state)), "bytes_pulled": int(pulled * vector)}

    def _load(self, snapshot: dict[str, Any]) -> None:
        """Put what is evaluated into the Keras model: the average of the center if there is one."""
        self.graph.model.load(snapshot.get("average", snapshot["center"]), snapshot["state"])

    def _finish(self, snapshot: dict[str, Any]) -> None:
        """Save what the run produced, and end the ps tasks."""
        import tensorflow as tf

        if not np.isfinite(snapshot["center"]).all():
            raise Diverged(
                f"the center is not finite, at version {self.metrics['version']}: a step was too long. Try a smaller "
                "learning rate or period"
            )
        refused = snapshot.pop("refused")
        unwritten = self._write_results({name: value for name, value in snapshot.items() if name != "at"})
        steps = self._steps(self._run("folded"))  # the record here may have a gap
        self._dismiss_workers()
        self.report(
            event="result",
            steps=steps,
            updates=self.metrics["version"],
            dropped=self.seen.dropped,
            refused={str(k): int(n) for k, n in enumerate(refused) if n},
            staleness_histogram={str(t): n for t, n in sorted(self.seen.staleness.items())},
            unwritten=unwritten,
            **self.metrics,
        )
        with contextlib.suppress(tf.errors.OpError):  # a ps may leave before it has answered
            self.session.run(self.graph.ops["end"], options=tf.compat.v1.RunOptions(timeout_in_ms=END_MILLISECONDS))

    def _write_results(self, snapshot: dict[str, Any]) -> list[str]:
        """Center, trace and model; returns why some of them are not there: each stands for itself."""
        run_dir = self.job.run_dir
        if run_dir is None:
            return []
        unwritten = []
        for write in (self._write_center, self._write_trace, self._write_model):
            try:
                write(run_dir, snapshot)
            except CannotWrite as error:
                unwritten.append(str(error))
        return unwritten

    def _write_center(self, run_dir: Path, snapshot: dict[str, Any]) -> None:
        with replacing(run_dir / "center.npz") as file:
            np.savez(file, **snapshot)

    def _write_trace(self, run_dir: Path, snapshot: dict[str, Any]) -> None:
        del snapshot
        if self.job.options.record == "full":
            self.reader.save(run_dir / "trace.npz")

    def _write_model(self, run_dir: Path, snapshot: dict[str, Any]) -> None:
        self._load(snapshot)
        part = run_dir / f".model{PART}.keras"  # Keras goes by how the name ends
        with writing(run_dir / "model.keras"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of lambdas, which a loader must allow
            try:
                self.graph.model.model.save(part)
                part.replace(run_dir / "model.keras")
            finally:
                part.unlink(missing_ok=True)

    def _steps(self, rounds: np.ndarray) -> int:
        """Local steps of all workers in so many rounds of each."""
        return sum(plan.steps(int(n)) for plan, n in zip(self.plans, rounds, strict=True))

    def _dismiss_workers(self) -> None:
        """The result is safe: the workers may go. A restoration in this very moment would have called them back."""
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError, WaitTimeout):
            here = int(self._run({name: self.graph.ops[name] for name in ("over", "active_now")})["active_now"])
            here = max(here, self.told_to_stop)
            soon = time.monotonic() + END_SECONDS
            late = time.monotonic() + CHIEF_WAITS * self.wait_seconds

            def expected() -> bool:
                """True while somebody should still leave; the chief takes its last checkpoint along."""
                left, chief_left = (int(self._run(name)) for name in ("left", "chief_left"))
                return left < here and time.monotonic() < (soon if chief_left else late)

            while expected():
                self.reader.drain()  # the chief's last checkpoint waits for that
                time.sleep(POLL_SECONDS)
