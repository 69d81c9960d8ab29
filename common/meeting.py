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
import hashlib
import importlib.metadata
import inspect
import json
import os
import platform
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .cluster import CHIEF_TASK, Place, ps_devices
from .data import leaves
from .errors import KINDS, DistsgdError, TaskLost, UserError, WaitTimeout
from .record import FAULTS
from .recovery import is_absence, is_refusal
from .waiting import reachable

if TYPE_CHECKING:
    from .job import Job, Report

BEAT_SECONDS = 0.5
RETRY_SECONDS = 0.1
CALL_SECONDS = 5.0  # for a call of the meeting point; it answers in milliseconds
LINGER_SECONDS = 5.0  # for the others to learn how the run ended, before the meeting point leaves
CAUSE_SECONDS = 3.0  # for the cause to become known, after a peer was lost
STILL_SECONDS = 5.0  # a beat that stands still for so long is that of a task that is gone
EVICTED = "evicted"  # holds the place of a task whose messages do not come, until it is started again
LEFT = -1  # the beat of a task that has left
OUTCOME = -1  # the card that says how the run ended; below it lie those of tasks that were refused
RELAYED = ("listening", "ready", "first_update", "worker", "finished", *FAULTS)


# What the tasks of a run must have in common.


def identity(config: Mapping[str, Any], place: Place, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a task runs, in words that can be compared with those of another task."""
    versions = {name: importlib.metadata.version(name) for name in ("distsgd", "tensorflow", "keras", "numpy")}
    addresses = place.addresses.as_dict()
    evaluator = "a task of its own" if place.separate_evaluator else "with the chief"
    return {
        **{key: value for key, value in config.items() if key not in ("isolation", "legs")},
        **(more or {}),
        "addresses": {job: ",".join(hosts) for job, hosts in addresses.items()},
        "evaluator": evaluator,
        "versions": {**versions, "python": platform.python_version(), "source": source_digest()},
    }


def source_digest() -> str:
    """A short digest of the installed package's source: two checkouts of one version may differ."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent.parent
    for folder in ("algorithms", "common"):
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def data_digest(data: Any) -> str:
    """A short digest of nested arrays; a data function is known by its name only."""
    import numpy as np

    digest = hashlib.sha256()
    for leaf in leaves(data):
        if isinstance(leaf, np.ndarray):
            digest.update(f"{leaf.dtype} {leaf.shape}".encode() + np.ascontiguousarray(leaf).tobytes())
        else:
            digest.update(getattr(leaf, "__qualname__", str(leaf)).encode())
    return digest.hexdigest()[:12]


_parsing = threading.Lock()  # Python 3.11 parses source wrongly where several threads do so at once


def class_digest(kind: type) -> str:
    """A short digest of the source of a class that is not of this package; its modules are compared as a whole."""
    if kind.__module__.startswith("distsgd."):
        return ""
    try:
        with _parsing:
            text = inspect.getsource(kind)
    except (OSError, TypeError):  # typed into a prompt
        text = kind.__qualname__
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def model_digest(model: Any) -> str:
    """The shape of a Keras model in words, and a short digest of what it is made of, its names apart."""
    layers = [(type(layer).__name__, _nameless(layer.get_config())) for layer in model._flatten_layers()]
    variables = [(tuple(v.shape), str(v.dtype)) for v in model.variables]
    digest = hashlib.sha256(json.dumps([layers, variables], default=_kind, sort_keys=True).encode())
    return f"{len(variables)} variables, {model.count_params()} parameters, {digest.hexdigest()[:12]}"


def _nameless(config: Any) -> Any:
    """A configuration without the names that Keras has given by counting."""
    if isinstance(config, dict):
        return {key: _nameless(value) for key, value in config.items() if key not in ("name", "registered_name")}
    if isinstance(config, list | tuple):
        return [_nameless(value) for value in config]
    return config


def _kind(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as one, with dotted names and JSON values."""
    found: dict[str, str] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            text = json.dumps(value, default=str).strip('"')
            found[f"{prefix}{key}"] = re.sub(r" at 0x[0-9a-f]+", "", text)  # an object without a name of its own
    return found


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any], other: str) -> str:
    """What differs, or nothing."""
    ours, its = flat(mine), flat(theirs)
    return "; ".join(
        f"{name} is {ours.get(name, 'not given')} here and {its.get(name, 'not given')} at {other}"
        for name in sorted(ours.keys() | its.keys())
        if ours.get(name) != its.get(name)
    )


# The meeting point.


class MeetingPoint:
    """A client of the tables; every call is bounded in time, and raises `ConnectionError` if it fails."""

    def __init__(self, target: str, device: str):
        import tensorflow as tf

        raw, placeholder = tf.raw_ops, tf.compat.v1.placeholder
        with tf.Graph().as_default() as graph, tf.device(device):
            holders, cards, beats = (
                raw.MutableHashTableV2(key_dtype=tf.int64, value_dtype=kind, shared_name=f"meeting_{name}")
                for name, kind in (("holders", tf.string), ("cards", tf.string), ("beats", tf.int64))
            )
            mutex = raw.MutexV2(shared_name="meeting_lock")
            reports = tf.queue.FIFOQueue(-1, [tf.string], [[]], shared_name="meeting_reports")
            self.key, self.beat = placeholder(tf.int64, []), placeholder(tf.int64, [])
            self.holder, self.card, self.instead = (placeholder(tf.string, []) for _ in range(3))
            self.lines = placeholder(tf.string, [None])

            def find(table: Any, key: Any) -> Any:
                return raw.LookupTableFindV2(table_handle=table, keys=key, default_value=tf.constant(""))

            lock = raw.MutexLock(mutex=mutex)
            with tf.control_dependencies([lock]):
                present, before = find(holders, self.key), find(cards, self.key)
                free = tf.equal(present, "") | tf.equal(present, self.instead)
                claimed = tf.where(free, self.holder, present), tf.where(free, self.card, before)
                puts = [
                    raw.LookupTableInsertV2(table_handle=table, keys=self.key, values=value)
                    for table, value in zip((holders, cards), claimed, strict=True)
                ]
            with tf.control_dependencies(puts):
                unlock = raw.ConsumeMutexLock(mutex_lock=lock)
            with tf.control_dependencies([unlock]):
                self._claimed = [tf.identity(value) for value in claimed]
            beat = raw.LookupTableInsertV2(table_handle=beats, keys=self.key, values=self.beat)
            with tf.control_dependencies([beat, reports.enqueue_many(self.lines)]):
                self._heard = [find(cards, tf.constant(OUTCOME, tf.int64)), find(holders, self.key)]
            self._evict = raw.LookupTableInsertV2(table_handle=holders, keys=self.key, values=tf.constant(EVICTED))
            self._cards = raw.LookupTableExportV2(table_handle=cards, Tkeys=tf.int64, Tvalues=tf.string)
            self._beats = raw.LookupTableExportV2(table_handle=beats, Tkeys=tf.int64, Tvalues=tf.int64)
            self._reports = reports.dequeue_many(reports.size())
        config = tf.compat.v1.ConfigProto(
            device_filters=[device.removesuffix("/device:CPU:0")],  # or it would wait for tasks that are still to come
            operation_timeout_in_ms=round(CALL_SECONDS * 1000),
        )
        self._open = lambda: tf.compat.v1.Session(target, graph=graph, config=config)
        self._sessions = [self._open()]  # those that failed are left: closing one may block
        self._calls = threading.Lock()

    def _run(self, fetch: Any, feed: Mapping[Any, Any] | None = None) -> Any:
        import tensorflow as tf

        with self._calls:
            try:
                return self._sessions[-1].run(fetch, feed)
            except tf.errors.OpError as error:
                self._sessions.append(self._open())
                raise ConnectionError(type(error).__name__) from error

    def claim(self, key: int, holder: str, card: Mapping[str, Any], instead: str = "") -> tuple[str, dict[str, Any]]:
        """Take a place if it is free, or held by the one named `instead`; returns who has it then, and his card."""
        feed = {self.key: key, self.holder: holder, self.card: json.dumps(card, default=str), self.instead: instead}
        name, there = self._run(self._claimed, feed)
        return name.decode(), json.loads(there)

    def evict(self, key: int) -> None:
        """Take a place away from whoever holds it."""
        self._run(self._evict, {self.key: key})

    def cards(self) -> dict[int, dict[str, Any]]:
        """All cards."""
        return {int(key): json.loads(card) for key, card in zip(*self._run(self._cards), strict=True)}

    def raise_beat(self, key: int, beat: int, lines: Collection[str]) -> tuple[dict[str, Any] | None, str]:
        """A sign of life, with reports; returns how the run ended, if it has, and who has that place."""
        outcome, holder = self._run(self._heard, {self.key: key, self.beat: beat, self.lines: list(lines)})
        return json.loads(outcome) if outcome else None, holder.decode()

    def beats(self) -> dict[int, int]:
        """The last beat of everybody."""
        return {int(key): int(beat) for key, beat in zip(*self._run(self._beats), strict=True)}

    def take_reports(self) -> list[dict[str, Any]]:
        """The events that have come in; each is given away once."""
        return [json.loads(line) for line in self._run(self._reports)]


def under_way(cards: Mapping[int, Mapping[str, Any]]) -> bool:
    """True if tasks have taken their places again: the meeting point has come back into a run."""
    return any(card.get("again") for card in cards.values())


class Meeting:
    """One task's part: arrive, be heard while the run lasts, learn how it ended, leave."""

    def __init__(self, job: Job, place: Place, task: tuple[str, int], report: Report):
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


def bury(job: Job, place: Place, task: tuple[str, int]) -> None:
    """End the run everywhere because that task of this machine was killed."""
    mine = Meeting(job, place, task, lambda **event: None)
    with contextlib.suppress(ConnectionError):
        mine.approach(time.monotonic() + CALL_SECONDS)
        mine.conclude(TaskLost(f"{mine.named(task)} was killed"), task)


@contextmanager
def meeting(job: Job, task: tuple[str, int], report: Report) -> Iterator[Report]:
    """Take part in the meeting if the run is one of several machines; yields how to report from then on."""
    if job.cluster.place is None:
        yield report
        return
    mine = Meeting(job, job.cluster.place, task, report)
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
