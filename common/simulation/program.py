"""A trace as a program: what is done to the center and to the workers, one after the other. No TensorFlow.

Between its reply and its next message nothing touches a worker. So a round can be computed at any time in between, and
many of them together: `Program.ready` says from when on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ..server.trace import EVENTS
from ..sync.gate import Gate
from ..virtual_time.release import waiting_at


class Do(IntEnum):
    """What is done."""

    FOLD = 0  # merge the message of a worker, and let it adopt the reply
    PUSH = 1  # merge it, no more
    PULL = 2  # a worker adopts the center; its message was not asked for
    READ = 3  # a worker adopts the center as a reply: its message came earlier, or was not accepted
    START = 4  # a worker starts anew from the center
    ARRIVE = 5  # a message is added to those of its set
    CLOSE = 6  # the set is complete: merge its mean
    ADOPT = 7  # a worker adopts the reply to the set
    LEAVE = 8  # a message that is dropped
    ALONE = 9  # the round of a worker that is all there is


@dataclass(frozen=True)
class Program:
    """What is done, in order; n actions for m rows of the trace.

    Attributes:
        do: `Do`, [n].
        worker: whose, [n]; of `CLOSE`, how many messages the set has.
        row: of the trace, if a round ends with this, else -1; [n].
        of: the row of the worker's last round, for what happens to it later; -1 before its first, [n]. Of `CLOSE`, that
            of worker 0, which has the center if there is no ps.
        ready: the position from which on that round can be computed, [n].
        ends: the position after everything that a row of the trace stands for, [m].
        takes: True if the message of the round is made, [m]: a pull has none.
    """

    do: np.ndarray
    worker: np.ndarray
    row: np.ndarray
    of: np.ndarray
    ready: np.ndarray
    ends: np.ndarray
    takes: np.ndarray


class _Writer:
    """Writes a program, action by action."""

    def __init__(self, workers: int):
        self.actions: list[tuple[int, int, int, int, int]] = []
        self.touched = [0] * workers  # the position after the last action that changed this worker
        self.last = [-1] * workers

    def write(self, do: Do, worker: int, row: int = -1) -> None:
        """Add an action; `row` of the trace, if a round ends with it."""
        if row >= 0:
            self.last[worker] = row
        self.actions.append((do, worker, row, self.last[worker], self.touched[worker]))
        if do != Do.ARRIVE:
            self.touched[worker] = len(self.actions)

    def close(self, messages: int) -> None:
        """Add the end of a set."""
        self.actions.append((Do.CLOSE, messages, -1, self.last[0], 0))


def written(
    trace: Mapping[str, np.ndarray],
    gate: Gate,
    workers: int,
    *,
    reads_apart: bool,
    warm_start: bool,
    messages_per_update: int = 1,
) -> Program:
    """The program of a trace.

    Args:
        trace: the columns of `RECORD`.
        gate: of the scheme; it says who waits for whom.
        workers: W.
        reads_apart: True if workers read the center when their next round begins, and not as a reply.
        warm_start: True if worker 0 trains alone first.
        messages_per_update: of an asynchronous scheme that make one update, see `Scheme`.

    Raises:
        UserError: the gate lets workers wait in a way that it does not declare.
    """
    waiting_at(gate, workers)  # refuses it
    rows = _Rows(trace)
    writer = _Writer(workers)
    ends = np.empty(len(rows.worker), np.int64)
    later: dict[int, list[tuple[Do, int]]] = defaultdict(list)  # what happens when the center has that version
    if warm_start:
        for k, i in rows.first.items():
            if k and rows.read[i] and not rows.joins[i]:
                later[rows.read[i]].append((Do.START, k))
    one_by_one = gate.exchanges and gate.set_size(workers) is None
    steps = (
        _asynchronous(rows, writer, later, gate.lead is not None or reads_apart, messages_per_update)
        if one_by_one
        else (_in_sets(rows, writer, later, gate.set_size(workers)) if gate.exchanges else _alone(rows, writer))
    )
    for i, version in steps:
        for do, worker in later.pop(version, ()):
            writer.write(do, worker)
        ends[i] = len(writer.actions)
    columns = np.array(writer.actions, np.int64).reshape(-1, 5).T
    return Program(*columns, ends=ends, takes=rows.event != EVENTS.index("pull"))


class _Rows:
    """The columns of a trace that matter, and what a row says of its worker's next."""

    def __init__(self, trace: Mapping[str, np.ndarray]):
        self.worker, self.event = trace["worker"].tolist(), trace["event"]
        self.accepted, self.version = trace["accepted"].tolist(), trace["version"].tolist()
        self.read = np.maximum(trace["version"] - trace["staleness"], 0).tolist()
        self.joins = (self.event == EVENTS.index("join")).tolist()
        self.pushes = (self.event == EVENTS.index("push")).tolist()
        self.pulls = (self.event == EVENTS.index("pull")).tolist()
        self.first: dict[int, int] = {}
        self.next: list[int | None] = [None] * len(self.worker)
        last: dict[int, int] = {}
        for i, k in enumerate(self.worker):
            if k in last:
                self.next[last[k]] = i
            else:
                self.first[k] = i
            last[k] = i

    def reads_next(self, i: int) -> int | None:
        """The version with which the worker of this row goes on; None if it does not."""
        following = self.next[i]
        return None if following is None or self.joins[following] else self.read[following]


def _alone(rows: _Rows, writer: _Writer) -> Iterator[tuple[int, int]]:
    for i, k in enumerate(rows.worker):
        writer.write(Do.ALONE, k, i)
        yield i, -1


def _asynchronous(
    rows: _Rows, writer: _Writer, later: dict[int, list[tuple[Do, int]]], apart: bool, together: int
) -> Iterator[tuple[int, int]]:
    """One message after the other; yields each row, and the version after it."""
    messages = version = 0
    for i, k in enumerate(rows.worker):
        accepted = rows.accepted[i]
        if rows.joins[i]:
            writer.write(Do.START, k)
        elif rows.pulls[i]:
            writer.write(Do.PULL, k, i)
        elif apart or rows.pushes[i]:
            writer.write(Do.PUSH if accepted else Do.LEAVE, k, i)
        else:
            writer.write(Do.FOLD if accepted else Do.READ, k, i)
        messages += accepted
        version = messages // together
        if apart and not rows.joins[i] and (read := rows.reads_next(i)) is not None:
            later[max(read, version)].append((Do.READ, k))
        yield i, version


def _in_sets(
    rows: _Rows, writer: _Writer, later: dict[int, list[tuple[Do, int]]], size: int | None
) -> Iterator[tuple[int, int]]:
    """Messages in sets; yields each row, and the version after it."""
    version, arrived, needed = 0, 0, size or 1
    for i, k in enumerate(rows.worker):
        if rows.joins[i]:
            writer.write(Do.START, k)
        else:
            writer.write(Do.ARRIVE if rows.accepted[i] else Do.LEAVE, k, i)
            arrived += rows.accepted[i]
            if (read := rows.reads_next(i)) is None:  # it goes on, if not anew
                read = version + rows.accepted[i]
            later[max(read, version)].append((Do.ADOPT, k))
        last = i + 1 == len(rows.worker)
        if arrived and (arrived >= needed if last else rows.version[i + 1] > rows.version[i]):
            writer.close(arrived)
            version, needed, arrived = version + 1, min(needed, arrived), 0
        yield i, version
