"""Three tables and a queue on the first task, through which the tasks of several machines find each other.

    owners       the process that owns each task
    specs        the identity of each task's run, and its machine; also the outcome of the run
    heartbeats   a number that each task raises while it is alive
    reports      events for the record of the run, which the evaluator writes

Only strings and numbers travel, and strings are parsed as JSON: no data from a peer is executed here.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Collection, Mapping
from typing import Any

from ..lazy import tf

CALL_SECONDS = 5.0  # for a call, which is usually answered in milliseconds

EVICTED = "evicted"  # owner of a task that sends no messages, until the task is started again

OUTCOME = -1  # key of the spec that describes how the run ended; the keys below it are those of refused tasks

POSTED = -(1 << 32)  # the largest key of values that tasks leave for all

DEREGISTERED = -1  # the heartbeat of a task that has left


class Rendezvous:
    """A client of the tables; every call is bounded in time, and raises `ConnectionError` if it fails.

    Args:
        address: `host:port` of the task that has the tables.
        task: job and index of that task.
    """

    def __init__(self, address: str, task: tuple[str, int]):
        name = f"/job:{task[0]}/task:{task[1]}"
        with tf.Graph().as_default() as graph, tf.device(f"{name}/device:CPU:0"):
            self._build()
        config = tf.compat.v1.ConfigProto(
            device_filters=[name],  # without it, the session would wait for tasks that have not started
            operation_timeout_in_ms=round(CALL_SECONDS * 1000),
        )
        self._open = lambda: tf.compat.v1.Session(f"grpc://{address}", graph=graph, config=config)
        self._sessions = [self._open()]  # failed sessions stay open: closing one may block
        self._calls = threading.Lock()
        self.posts: dict[str, Mapping[str, Any]] = {}  # those of this task, for empty tables of a restarted first task

    def _build(self) -> None:
        raw, placeholder = tf.raw_ops, tf.compat.v1.placeholder
        owners, specs, heartbeats = (
            raw.MutableHashTableV2(key_dtype=tf.int64, value_dtype=kind, shared_name=f"rendezvous_{name}")
            for name, kind in (("owners", tf.string), ("specs", tf.string), ("heartbeats", tf.int64))
        )
        reports = tf.queue.FIFOQueue(-1, [tf.string], [[]], shared_name="rendezvous_reports")
        self.key, self.number = placeholder(tf.int64, []), placeholder(tf.int64, [])
        self.owner, self.spec, self.instead_of = (placeholder(tf.string, []) for _ in range(3))
        self.lines = placeholder(tf.string, [None])
        self._claimed = self._claim(owners, specs)
        raised = raw.LookupTableInsertV2(table_handle=heartbeats, keys=self.key, values=self.number)
        with tf.control_dependencies([raised, reports.enqueue_many(self.lines)]):
            self._heard = [_find(specs, tf.constant(OUTCOME, tf.int64)), _find(owners, self.key)]
        self._evict = raw.LookupTableInsertV2(table_handle=owners, keys=self.key, values=tf.constant(EVICTED))
        self._specs = raw.LookupTableExportV2(table_handle=specs, Tkeys=tf.int64, Tvalues=tf.string)
        self._heartbeats = raw.LookupTableExportV2(table_handle=heartbeats, Tkeys=tf.int64, Tvalues=tf.int64)
        self._reports = reports.dequeue_many(reports.size())

    def _claim(self, owners: Any, specs: Any) -> list[Any]:
        """Build an attempt to own a task, a compare-and-set under a lock; returns its owner and spec afterwards."""
        raw = tf.raw_ops
        lock = raw.MutexLock(mutex=raw.MutexV2(shared_name="rendezvous_lock"))
        with tf.control_dependencies([lock]):
            present, before = _find(owners, self.key), _find(specs, self.key)
            free = tf.equal(present, "") | tf.equal(present, self.instead_of)
            claimed = tf.where(free, self.owner, present), tf.where(free, self.spec, before)
            puts = [
                raw.LookupTableInsertV2(table_handle=table, keys=self.key, values=value)
                for table, value in zip((owners, specs), claimed, strict=True)
            ]
        with tf.control_dependencies(puts):
            unlock = raw.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([unlock]):
            return [tf.identity(value) for value in claimed]

    def _run(self, fetch: Any, feed: Mapping[Any, Any] | None = None) -> Any:
        with self._calls:
            try:
                return self._sessions[-1].run(fetch, feed)
            except tf.errors.OpError as error:
                self._sessions.append(self._open())
                raise ConnectionError(type(error).__name__) from error

    def claim(self, key: int, owner: str, spec: Mapping[str, Any], instead_of: str = "") -> tuple[str, dict[str, Any]]:
        """Own a task that has no owner, or the owner `instead_of`; returns its owner and spec afterwards."""
        text = json.dumps(spec, default=str)
        feed = {self.key: key, self.owner: owner, self.spec: text, self.instead_of: instead_of}
        name, registered = self._run(self._claimed, feed)
        return name.decode(), json.loads(registered)

    def post(self, name: str, owner: str, value: Mapping[str, Any]) -> None:
        """Leave a value for all tasks under a name, unless it has one."""
        self.claim(key_of(name), owner, value)
        self.posts[name] = value

    def evict(self, key: int) -> None:
        """Take a task away from its owner."""
        self._run(self._evict, {self.key: key})

    def specs(self) -> dict[int, dict[str, Any]]:
        """Return all specs by key."""
        return {int(key): json.loads(spec) for key, spec in zip(*self._run(self._specs), strict=True)}

    def raise_heartbeat(self, key: int, number: int, lines: Collection[str]) -> tuple[dict[str, Any] | None, str]:
        """Send a heartbeat with reports; returns how the run ended, None if it has not, and the owner of the task."""
        outcome, owner = self._run(self._heard, {self.key: key, self.number: number, self.lines: list(lines)})
        return json.loads(outcome) if outcome else None, owner.decode()

    def heartbeats(self) -> dict[int, int]:
        """Return the last heartbeat of each task, by key."""
        return {int(key): int(number) for key, number in zip(*self._run(self._heartbeats), strict=True)}

    def take_reports(self) -> list[dict[str, Any]]:
        """Remove and return the events that have arrived."""
        return [json.loads(line) for line in self._run(self._reports)]


def key_of(name: str) -> int:
    """Return the key of a value that a task leaves for all: below those of refused tasks."""
    return POSTED - zlib.crc32(name.encode())


def _find(table: Any, key: Any) -> Any:
    return tf.raw_ops.LookupTableFindV2(table_handle=table, keys=key, default_value=tf.constant(""))


def under_way(specs: Mapping[int, Mapping[str, Any]]) -> bool:
    """Return True if tasks have registered again because the tables were lost, with their task, during the run."""
    return any(spec.get("again") for spec in specs.values())
