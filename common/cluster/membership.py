"""The meeting of the tasks of several machines: who is there, do all run the same thing, how did it end.

A run that one launcher has started needs none of this. Tasks that were started one by one, each on its machine, meet
on the first ps (without a ps: on worker 0), in three small tables and a queue there:

    holders     which process has the place of each task
    cards       what it runs (its identity) and where. And how the run ended
    beats       a number that each task raises while it is there
    reports     events for the record of the run, which the evaluator takes down

A place is taken once. In a run that survives faults (`Job.tolerates`) it can be taken again, once its holder is gone:
because it said so, because the program that had started it says so, or because its beat stands still. A holder that
was only slow finds somebody else in its place, and ends. Should the meeting point itself come back with empty tables,
everybody takes his place again.

Only strings and numbers travel, and strings are read as JSON: nothing that a peer sends is executed here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

from ..engine.failures import is_absence, is_refusal
from ..errors import KINDS, DistsgdError, TaskLost, UserError, WaitTimeout
from ..reports import FAULTS, Report
from ..run.job import Job
from ..waiting import reachable
from .devices import ps_devices
from .fingerprint import differences
from .rendezvous import CALL_SECONDS, EVICTED, OUTCOME, MeetingPoint, under_way
from .task_spec import CHIEF_TASK, TaskSpec

BEAT_SECONDS = 0.5

RETRY_SECONDS = 0.1

LINGER_SECONDS = 5.0  # for the others to learn how the run ended, before the meeting point leaves

CAUSE_SECONDS = 3.0  # for the cause to become known, after a peer was lost

STILL_SECONDS = 5.0  # a beat that stands still for so long is that of a task that is gone

LEFT = -1  # the beat of a task that has left

RELAYED = ("listening", "ready", "first_update", "worker", "finished", *FAULTS)


class Meeting:
    """One task's part: arrive, be heard while the run lasts, learn how it ended, leave."""

    def __init__(self, job: Job, place: TaskSpec, task: tuple[str, int], report: Report):
        self.job, self.place, self.task, self.local_report = job, place, task, report
        self.tasks = place.all_tasks()
        self.key = self.tasks.index(task)
        self.is_host, self.is_evaluator = self.key == 0, task[0] == "evaluator"
        self.seconds = job.cluster.wait_seconds
        self.long = job.repair_seconds if job.recovers else self.seconds  # for what all depend on
        self.name = uuid.uuid4().hex
        self.card = {
            "where": f"process {os.getpid()} on {socket.gethostname()}",
            "program": job.program,
            "legs": list(job.legs),
            "identity": job.identity,
        }
        self.lines: list[str] = []  # reports that still have to go
        self.adding = threading.Lock()
        self.wake, self.ended, self.gone = threading.Event(), threading.Event(), threading.Event()
        self.last_word = threading.Lock()  # whoever has it decides how this task ends
        self.beat = 0
        self.saving = 0.0  # seconds that the last checkpoint of the chief may take
        self.arrived = self.complete = self.replaced = self.succeeded = False
        self.heard: dict[int, tuple[int | None, float]] = {}  # by the meeting point: the last beat, and when
        self.contact = time.monotonic()

    def named(self, task: tuple[str, int]) -> str:
        """A task as messages name it, with its address."""
        address = self.place.addresses.of(*task)
        return f"{task[0]} {task[1]} at {address}" if address else "the evaluator"

    def report(self, **event: Any) -> None:
        """Tell the launcher of this machine, and the evaluator if it is on another one."""
        self.local_report(**event)
        if event["event"] == "saving":
            self.saving = event["seconds"]
        if not self.place.evaluates and event["event"] in RELAYED:
            with self.adding:
                self.lines.append(json.dumps({"task": "-".join(map(str, self.task)), **event}))
            if event["event"] == "finished":
                self.wake.set()
        if event["event"] == "silent" and self.job.recovers:  # he may be there and hang in a call: he is told to go
            with contextlib.suppress(ConnectionError):
                self.point.evict(self.tasks.index(("worker", event["worker"])))

    # Arriving.

    def arrive(self) -> None:
        """Find the meeting point, check that all run the same, take the place of this task, wait for the others.

        Raises:
            WaitTimeout: somebody was missing for too long; the message names them.
            UserError: this task runs something else than the others, or its place is taken.
        """
        deadline = time.monotonic() + self.long
        self.approach(deadline)
        if not self.is_host:
            self._compare(self._await_cards(deadline, [0])[0], 0)
        instead = self._take_place(deadline)
        self.arrived, self.contact = True, time.monotonic()
        threading.Thread(target=self._stay, daemon=True).start()
        cards = self._await_cards(deadline, range(len(self.tasks)), at_first=True)
        if self.is_host and under_way(cards):  # else the others have compared
            for key in cards.keys() & range(len(self.tasks)):
                self._compare(cards[key], key)
        if (instead or under_way(cards)) and not self.place.evaluates:  # there, its own program says so
            self.report(event="restarted", reason="it came back")
        self.complete = True
        chief = self.tasks.index(CHIEF_TASK)
        if chief in cards:
            self.job.legs = cards[chief]["legs"]  # from the run directory, which only he has

    def approach(self, deadline: float) -> None:
        """Find the meeting point."""
        self._await_listening(deadline)
        device = ps_devices(self.job.cluster, self.job.uses_ps)[0]
        self.point = MeetingPoint(f"grpc://{self.place.addresses.of(*self.tasks[0])}", device)

    def _compare(self, card: Mapping[str, Any], key: int) -> None:
        """Raise `UserError` if another task runs something else, and leave a note for those who wait for this one."""
        if different := differences(self.job.identity, card["identity"], self.named(self.tasks[key])):
            text = f"{self.named(self.task)} does not run the same as the others: {different}"
            with contextlib.suppress(ConnectionError):
                self.point.claim(OUTCOME - 1 - self.key, self.name, {"refused": text})
            raise UserError(text)

    def _take_place(self, deadline: float) -> bool:
        """Become the holder of the place of this task; raise `UserError` if somebody else is. True if somebody was."""
        instead, beat, since = "", None, time.monotonic()
        while True:
            claim = functools.partial(self.point.claim, self.key, self.name, self.card, instead)
            holder, there = self._retry(deadline, claim)
            if holder == self.name:
                return bool(instead)
            last, beat = beat, self._retry(deadline, self.point.beats).get(self.key, 0)
            still = time.monotonic() - since > STILL_SECONDS
            if holder != EVICTED and (not self.job.tolerates or last not in (None, beat)):
                raise UserError(
                    f"{self.named(self.task)} is there already ({there['where']}): each task of a cluster is started "
                    "once"
                )
            if holder == EVICTED or there["program"] == self.job.program or beat == LEFT or still:
                instead = holder
            else:
                time.sleep(RETRY_SECONDS)

    def _await_listening(self, deadline: float) -> None:
        """Until the meeting point accepts connections; its name may be unknown for a while, too."""
        host, port = self.place.addresses.of(*self.tasks[0]).rsplit(":", 1)
        while True:
            try:
                return socket.create_connection((host.strip("[]"), int(port)), timeout=CALL_SECONDS).close()
            except OSError as error:
                self._in_time(deadline, [0], f" ({error.strerror or error})")

    def _in_time(self, deadline: float, missing: Collection[int], why: str = "") -> None:
        """Wait a moment before the next attempt; `WaitTimeout` when there was time enough."""
        if time.monotonic() > deadline:
            names = ", ".join(self.named(self.tasks[key]) for key in missing)
            raise WaitTimeout(f"waited {self.long:g} s for {names}{why}")
        time.sleep(RETRY_SECONDS)

    def _retry(self, deadline: float, call: Callable[[], Any]) -> Any:
        """Call the meeting point until it answers."""
        while True:
            try:
                return call()
            except ConnectionError as error:
                self._in_time(deadline, [0], f", which does not answer as one of this cluster ({error})")

    def _await_cards(
        self, deadline: float, wanted: Collection[int], at_first: bool = False
    ) -> dict[int, dict[str, Any]]:
        """Until those have come, or `at_first` only: unless the run is under way; returns all cards."""
        while True:
            cards = self._retry(deadline, self.point.cards)
            if OUTCOME in cards:
                self._came_late(cards[OUTCOME])
            missing = [key for key in wanted if key not in cards]
            if not missing or (at_first and under_way(cards)):
                return cards
            refused = [cards[OUTCOME - 1 - key]["refused"] for key in missing if OUTCOME - 1 - key in cards]
            self._in_time(deadline, missing, "".join(f". Refused: {text}" for text in refused))

    def _came_late(self, outcome: Mapping[str, Any]) -> None:
        """The run is over: raise what has ended it; if all went well without this task, so has this task."""
        if outcome["kind"]:
            raise KINDS[outcome["kind"]](outcome["message"])
        if self.place.evaluates:
            raise UserError("this run is over")
        self._leave()
        os._exit(0)

    # Staying: a thread of its own, which must never wait for long.

    def _stay(self) -> None:
        while not self.ended.is_set():
            self.wake.wait(BEAT_SECONDS)
            self.wake.clear()
            try:
                outcome = self._be_heard()
                self.contact = time.monotonic()
                if self.is_host and not outcome:
                    self._listen()
            except ConnectionError as error:
                if time.monotonic() - self.contact > self.long and not self.succeeded:
                    self._end(TaskLost(f"nothing heard from {self.named(self.tasks[0])} for {self.long:g} s: {error}"))
                continue
            if outcome:
                self.ended.set()
                if outcome["kind"]:
                    self._end(KINDS[outcome["kind"]](outcome["message"]), outcome["task"])
                self._see_off()

    def _see_off(self) -> None:
        """All went well. A worker that came back late may still wait for a word that others have had: it goes, too."""
        if self.task[0] == "worker":
            patience = max(self.seconds, self.saving) if self.task == CHIEF_TASK else LINGER_SECONDS
            if not self.gone.wait(patience):
                self._leave()
                os._exit(0)

    def _be_heard(self) -> dict[str, Any] | None:
        """One beat, with what there is to report; returns how the run ended, if it has."""
        self.beat += 1
        lines = list(self.lines)
        outcome, holder = self.point.raise_beat(self.key, self.beat, lines)
        with self.adding:
            del self.lines[: len(lines)]
        if not holder:  # the meeting point has come back
            holder, _ = self.point.claim(self.key, self.name, self.card | {"again": True})
        if holder == EVICTED:
            self._end(TaskLost(f"{self.named(self.task)} has sent no message for long"), again=True)
        if holder != self.name:
            self.replaced = True
            self._end(TaskLost(f"{self.named(self.task)} was not heard for long, and another process has its place"))
        if self.is_evaluator:
            for event in self.point.take_reports():
                self._take_down(event)
        return outcome

    def _take_down(self, event: dict[str, Any]) -> None:
        """An event of a task on another machine, whose clock is not ours."""
        if event["event"] == "finished":
            late = time.monotonic() - event["sent"]
            event |= {name: event[name] + late for name in ("started", "ended")}
        self.local_report(**event)

    def _listen(self) -> None:
        """As the meeting point: end the run if somebody whom it needs has been silent for too long."""
        now = time.monotonic()
        beats: dict[int, int | None] = dict(self.point.beats())
        if self.complete:  # who has not been heard at all counts as silent from now on
            beats = dict.fromkeys(range(len(self.tasks))) | beats
        for key, beat in beats.items():
            if key not in self.heard or beat != self.heard[key][0]:
                self.heard[key] = beat, now
        silent = [key for key, (_, at) in self.heard.items() if now - at > self.long and self._is_needed(key)]
        if silent:
            names = ", ".join(self.named(self.tasks[key]) for key in silent)
            self.conclude(TaskLost(f"nothing heard from {names} for {self.long:g} s"), self.tasks[silent[0]])

    def _is_needed(self, key: int) -> bool:
        """False for a worker of a run that survives faults: those who wait for its messages know better."""
        task = self.tasks[key]
        return not (self.job.tolerates and task[0] == "worker" and task != CHIEF_TASK)

    def conclude(self, error: DistsgdError | None, task: tuple[str, int]) -> None:
        """Say how the run ended, if nobody has."""
        kind = "" if error is None else type(error).__name__
        name = "-".join(map(str, task))
        self.point.claim(OUTCOME, self.name, {"task": name, "kind": kind, "message": str(error or "")})
        self.wake.set()

    def _end(self, error: DistsgdError, task: str | None = None, again: bool = False) -> NoReturn:
        """End this process for a reason that lies elsewhere, perhaps to begin `again`; its main thread may hang."""
        self.last_word.acquire()
        event = {"event": "error", "kind": type(error).__name__, "message": str(error), "consequence": again}
        self.local_report(**event, **({"task": task} if task else {}))
        self._leave()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)

    # Leaving.

    def succeed(self) -> None:
        """This task has done its part: wait until all have, which the evaluator says."""
        if self.is_evaluator:
            self.succeeded = True  # whatever happens to the others now, the result is safe
            try:
                self._retry(time.monotonic() + self.long, lambda: self.conclude(None, self.task))
            except WaitTimeout:
                self.ended.set()
        self.ended.wait()
        self.last_word.acquire()  # another thread may be ending this process for a reason of its own
        self.gone.set()
        self._leave()

    def fail(self, error: DistsgdError) -> None:
        """Tell the others why this task has failed, if it is one of them: that ends the run."""
        if not self.arrived:
            return
        self.last_word.acquire()
        self.ended.set()
        with contextlib.suppress(ConnectionError):
            self.conclude(error, self.task)
        self._leave()

    def go(self) -> None:
        """Leave a run that waits for this task to come back."""
        if not self.arrived:
            return
        self.last_word.acquire()
        self.ended.set()
        self._leave(linger=False)  # a ps that stayed for a while would only lose what is folded meanwhile

    def await_stop(self) -> None:
        """End this process when it is told to, and say so to the others."""
        signal.sigwait({signal.SIGTERM})
        if self.job.recovers:
            self.go()
        else:
            self.fail(TaskLost(f"the program of {self.named(self.task)} was stopped"))
        os._exit(128 + signal.SIGTERM)

    def gone_peers(self) -> str:
        """Those who do not listen any more at their addresses, by name."""
        addresses = [self.place.addresses.of(*task) for task in self.tasks]
        with ThreadPoolExecutor(len(addresses)) as pool:  # who is cut off does not answer at all, which takes its time
            there = list(pool.map(lambda address: not address or reachable(address), addresses))
        return ", ".join(self.named(task) for task, is_there in zip(self.tasks, there, strict=True) if not is_there)

    def await_cause(self) -> None:
        """After a peer was lost: if the reason becomes known, this process ends with it."""
        if self.ended.wait(CAUSE_SECONDS):
            time.sleep(LINGER_SECONDS + CALL_SECONDS)

    def _leave(self, linger: bool = True) -> None:
        """Say good-bye; the meeting point goes last, for the others to learn how the run ended."""
        if self.replaced:
            return
        with contextlib.suppress(ConnectionError):
            self.point.raise_beat(self.key, LEFT, self.lines)
            deadline = time.monotonic() + LINGER_SECONDS
            while linger and self.is_host and time.monotonic() < deadline:
                beats, here = self.point.beats(), {key for key in self.point.cards() if key >= 0}
                if self.job.recovers:  # some may still have to take their places again
                    here |= set(range(len(self.tasks)))
                if all(beats.get(key) == LEFT for key in here):
                    return
                time.sleep(RETRY_SECONDS)


def bury(job: Job, place: TaskSpec, task: tuple[str, int]) -> None:
    """End the run everywhere because that task of this machine was killed."""
    mine = Meeting(job, place, task, lambda **event: None)
    with contextlib.suppress(ConnectionError):
        mine.approach(time.monotonic() + CALL_SECONDS)
        mine.conclude(TaskLost(f"{mine.named(task)} was killed"), task)


@contextmanager
def meeting(job: Job, task: tuple[str, int], report: Report) -> Iterator[Report]:
    """Take part in the meeting if the run is one of several machines; yields how to report from then on."""
    if job.cluster.task is None:
        yield report
        return
    mine = Meeting(job, job.cluster.task, task, report)
    threading.Thread(target=mine.await_stop, daemon=True).start()
    try:
        mine.arrive()
        yield mine.report
        mine.succeed()
    except DistsgdError as error:
        mine.fail(error)
        raise
    except Exception as error:
        text = (str(error).splitlines() or [""])[0]
        if not (is_absence(error) or is_refusal(error)):
            mine.fail(KINDS["TaskFailed"](f"{mine.named(task)} raised {type(error).__name__}: {text}"))
            raise
        gone = mine.gone_peers()  # before others go, too
        mine.await_cause()
        if job.recovers:  # its program starts it again
            mine.go()
            raise
        lost = TaskLost(f"{mine.named(task)} lost {gone or f'a peer: {text}'}")
        mine.fail(lost)
        raise lost from error
