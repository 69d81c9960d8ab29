"""The timeline of runs in Chrome's trace-event format: JSON that Perfetto and chrome://tracing open.

A run is a process. The parameter server is its first thread, with the arrival of each message and a counter for the
version of the center. Each worker is a thread, with a slice for each part of a round. Arrows lead from a computation to
the arrival of its message, and from the event that released a worker to its next computation.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..record_format import BETWEEN_SERVERS, EVENTS
from ..server.trace import UNKNOWN
from .lanes import BETWEEN, COLUMNS, PARTS, Tracks

RoundRow = namedtuple("RoundRow", (*COLUMNS, "arrow"))

Json = dict[str, Any]

BLOCK = 4096  # rows that are Python objects at once

FRESH, STALE, DROPPED = "good", "bad", "terrible"  # colours of a message: the format reserves these names


def write_trace(runs: Sequence[Tracks], file: Any) -> None:
    """Write the runs with one trace event on each line; times are microseconds since the first time of each run."""
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
    separator, pid, arrow = "", 1, 0
    for run in runs:
        for event in _events(run, pid, arrow):
            file.write(f"{separator}\n{encode({'pid': pid} | event)}".encode())
            separator = ","
        pid += 1 + run.workers  # thread ids must be unique in the file: Perfetto names threads by them
        arrow += 2 * len(run.columns["worker"])
    file.write(b"\n]}\n")


def _events(run: Tracks, pid: int, arrow: int) -> Iterator[Json]:
    """Yield all events of a run.

    Viewers sort events by time, and events of equal time by their order in the file; they bind an arrow to the slice
    before it. So the file has all arrivals first, then releases and computations.
    """
    yield from _names(run, pid)
    by_arrival = np.lexsort((run.columns["version"], run.columns["arrived"]))
    for row in _rows(run, by_arrival, arrow):
        if row.event != UNKNOWN:
            yield from _arrival(row, pid)
    before = None
    for row in _rows(run, np.arange(len(by_arrival)), arrow):
        if before is not None and before.worker == row.worker and row.begun != UNKNOWN:
            yield from _reply(before, pid)
            yield from _between(before, row, pid)
        yield from _round(row, pid)
        before = row


def _names(run: Tracks, pid: int) -> Iterator[Json]:
    yield {"ph": "M", "name": "process_name", "args": {"name": f"{run.algorithm}: {run.about}"}}
    yield {"ph": "M", "name": "process_labels", "args": {"labels": run.name}}
    yield {"ph": "M", "name": "process_sort_index", "args": {"sort_index": pid}}
    threads = {pid: "parameter server" if run.ps else "center (no parameter server)"}
    threads |= {pid + 1 + k: f"worker {k}" for k in np.unique(run.columns["worker"]).tolist()}
    for tid, name in threads.items():
        yield {"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "tid": tid, "args": {"sort_index": tid}}


def _rows(run: Tracks, order: np.ndarray, arrow: int) -> Iterator[RoundRow]:
    """Yield the rows of a run in that order, with the number of the first of their two arrows."""
    columns = [*(run.columns[name] for name in COLUMNS), arrow + 2 * np.arange(len(order))]
    for begin in range(0, len(order), BLOCK):
        some = order[begin : begin + BLOCK]
        yield from map(RoundRow._make, zip(*(column[some].tolist() for column in columns), strict=True))


def _arrival(row: RoundRow, pid: int) -> Iterator[Json]:
    """Yield the arrival of a message, the arrow that leads there, and the version of the center after it."""
    event, worker = EVENTS[row.event], pid + 1 + row.worker
    sent = event in ("exchange", "push") and UNKNOWN != row.ready <= row.arrived
    arrow = {"name": "message", "cat": "message", "id": row.arrow}
    if sent:
        yield {"ph": "s", "ts": row.ready, "tid": worker} | arrow
    args = {"region" if row.event >= BETWEEN_SERVERS else "worker": row.worker} | _args(row)
    yield {"ph": "i", "s": "t", "name": event, "ts": row.arrived, "tid": pid, "args": args}
    if sent:
        yield {"ph": "f", "bp": "e", "ts": row.arrived, "tid": pid} | arrow
    if row.after != UNKNOWN:
        yield {"ph": "C", "name": "center", "ts": row.arrived, "tid": pid, "args": {"version": row.after}}


def _round(row: RoundRow, pid: int) -> Iterator[Json]:
    """Yield the parts of a round."""
    parts = _parts(row)
    args = _args(row) | {"seconds": {name: (end - start) / 1e6 for name, start, end in parts}}
    for name, start, end in parts:
        bar = {"ph": "X", "name": name, "ts": start, "dur": end - start, "tid": pid + 1 + row.worker, "args": args}
        if name == PARTS[0] and row.event != UNKNOWN:
            bar["cname"] = DROPPED if not row.accepted else STALE if row.staleness > 0 else FRESH
        yield bar


def _reply(row: RoundRow, pid: int) -> Iterator[Json]:
    """Yield the arrow of a reply; viewers end it in the worker's next slice, which follows in the file."""
    released = max(row.arrived, row.released)
    if row.event != UNKNOWN and EVENTS[row.event] in ("exchange", "pull") and released <= row.replied:
        arrow = {"name": "reply", "cat": "message", "id": row.arrow + 1}
        yield {"ph": "s", "ts": released, "tid": pid} | arrow
        yield {"ph": "f", "ts": row.replied, "tid": pid + 1 + row.worker} | arrow


def _between(before: RoundRow, row: RoundRow, pid: int) -> Iterator[Json]:
    """Yield the time of a worker between two successive rounds, if it is known."""
    if row.round == before.round + 1 and UNKNOWN != before.replied < row.begun:
        since = {"ts": before.replied, "dur": row.begun - before.replied}
        yield {"ph": "X", "name": BETWEEN, **since, "tid": pid + 1 + row.worker, "args": {"round": row.round}}


def _parts(row: RoundRow) -> list[tuple[str, int, int]]:
    """Return the parts of a round whose ends are known and differ: name, start and end.

    A time of another clock may lie before the previous time or after the reply, and what happens while the worker
    computes lies before `computed`; such a time is moved to that time.
    """
    stamps: list[tuple[int, int]] = []
    computed = row.ready if row.computed == UNKNOWN else row.computed
    for i, time in enumerate((row.begun, computed, row.arrived, row.released, row.replied)):
        if time != UNKNOWN:
            time = time if row.replied == UNKNOWN else min(time, row.replied)
            stamps.append((i, max(time, stamps[-1][1]) if stamps else time))
    return [(" + ".join(PARTS[i:j]), start, end) for (i, start), (j, end) in pairwise(stamps) if end > start]


def _args(row: RoundRow) -> Json:
    """Return the arguments of a slice or an arrival: the known ones of round, versions, staleness and dropped."""
    args = {"round": row.round, "version found": row.version, "version after": row.after}
    if row.event != UNKNOWN and EVENTS[row.event] in ("exchange", "push", "pull"):
        args |= {"version pulled": row.version - row.staleness, "staleness": row.staleness}
        args["dropped"] = not row.accepted
    return {name: value for name, value in args.items() if value != UNKNOWN}
