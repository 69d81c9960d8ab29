"""The tables on the first task, where the tasks of several machines find each other."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from typing import Any

CALL_SECONDS = 5.0  # for a call of the meeting point; it answers in milliseconds

EVICTED = "evicted"  # holds the place of a task whose messages do not come, until it is started again

OUTCOME = -1  # the card that says how the run ended; below it lie those of tasks that were refused

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
