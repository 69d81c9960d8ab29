"""The evaluator: follows the center from outside, keeps the record, and has the last word on the run."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import flush
from .errors import WaitTimeout
from .graph import TaskGraph
from .hooks import STOP, Summaries
from .job import CHIEF, Report
from .loop import SLOW
from .record import EVENTS, FLOAT_BYTES, RECORD
from .recovery import is_absence, is_refusal
from .waiting import POLL_SECONDS, wait_for

DRAIN_SECONDS = 0.5  # between two looks at the record
FOLLOW_SECONDS = 0.05  # a look at the ps costs it about a millisecond
EVALUATION_SHARE = 10  # evaluations wait so many times as long as they take: a tenth of one core at most
EVALUATION_BATCH = 512
LATER_EVALUATIONS = 60
END_MILLISECONDS = 500
END_SECONDS = 5.0


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
        self.left = [iter(self.job.rounds(k)) for k in range(self.job.cluster.workers)]
        self.lacking = 0  # events that were in a file which was lost
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
        now, deadline = time.monotonic(), since + self.job.repair_seconds
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
        """Take over what is new on record, write it, and only then let the ps forget it."""
        new = self._run({name: self.graph.ops[f"drain_{name}"] for name in ("events", "before", "restored")})
        which, length = (int(n) for n in new["restored"])
        if which != self.log.restoration:
            self._go_back(which, length)
        before, written = int(new["before"]), len(self.log) + self.lacking
        if before > written:
            self.lacking += before - written
            self.report(event="warning", message=f"the record lacks {self.lacking} events: its file was lost")
        if len(new["events"]):
            fresh = new["events"][max(0, written - before) :]  # without those that a lost evaluator has written
            self.log.append(fresh)
            self._count(fresh)
            self.presence.note(fresh)
            self._confirm(which, before + len(new["events"]))

    def _go_back(self, restoration: int, length: int) -> None:
        """Forget what a restoration has undone, or what another run has left in the same folder."""
        undone = self.log.truncate(restoration, length)
        self._forget()
        self._count(self.log.events())
        if undone:
            self.report(event="undone", updates=undone, restoration=restoration)

    def _confirm(self, restoration: int, events: int) -> None:
        """Tell the ps how much of the record is safe."""
        feed = {self.graph.ops["of_restoration"]: restoration, self.graph.ops["confirmed"]: events}
        self._run("confirm", feed)

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
        return self.graph.model.measure(self.test, size)

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
        steps = self._steps()
        self._dismiss_workers()
        self.report(
            event="result",
            steps=steps,
            updates=self.metrics["version"],
            dropped=self.dropped,
            refused={str(k): int(n) for k, n in enumerate(refused) if n},
            staleness_histogram={str(t): n for t, n in sorted(self.staleness.items())},
            **self.metrics,
        )
        with contextlib.suppress(tf.errors.OpError):  # a ps may leave before it has answered
            self.session.run(self.graph.ops["end"], options=tf.compat.v1.RunOptions(timeout_in_ms=END_MILLISECONDS))

    def _steps(self) -> int:
        """Local steps of all workers in the rounds that are on record at the ps: the record here may have a gap."""
        return sum(self.job.rounds(k).steps(int(n)) for k, n in enumerate(self._run("folded")))

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

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def append(self, events: np.ndarray) -> None:
        """Add new events."""
        self.written = time.monotonic()
        if len(events):
            self.parts.append(events)
            if self.path:
                with self.path.open("ab") as file:
                    events.tofile(file)
                    flush(file)

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
            part = self.path.with_suffix(".part")
            with part.open("wb") as file:
                np.concatenate([head, self.events()]).tofile(file)
                flush(file)
            part.replace(self.path)  # whoever is lost in the middle of it leaves the old one


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
