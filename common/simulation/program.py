"""A trace as a program: the actions on the center and the workers, one after the other. No TensorFlow.

Between its reply and its next message no action changes a worker. So its round can be computed at any time in between,
together with rounds of other workers: `Program.ready` is the earliest position.
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
    """The kinds of actions."""

    FOLD = 0  # merge the message of a worker, and let the worker adopt the reply
    PUSH = 1  # merge the message of a worker
    PULL = 2  # let a worker adopt the center; it sends no message
    READ = 3  # let a worker adopt the center as a reply: its message was merged earlier, or was not accepted
    START = 4  # start a worker anew from the center
    ARRIVE = 5  # add a message to its set
    CLOSE = 6  # merge the mean of a complete set
    ADOPT = 7  # let a worker adopt the reply to its set
    LEAVE = 8  # drop a message
    ALONE = 9  # the round of a single worker, which exchanges nothing


@dataclass(frozen=True)
class Program:
    """The actions of a run in order: n actions for m rows of the trace.

    Attributes:
        do: kind of each action, of `Do`, [n].
        worker: its worker, [n]; of `CLOSE`, the number of messages in the set.
        row: the row of the trace whose round ends with the action, or -1, [n].
        of: the row of the worker's last round; -1 before its first, [n]. Of `CLOSE`, the row of worker 0, which holds
            the center if there is no ps.
        ready: the earliest position at which the round `row` can be computed, [n].
        ends: the position after all actions of a row of the trace, [m].
        takes: True if the round has a message, [m]: a pull has none.
    """

    do: np.ndarray
    worker: np.ndarray
    row: np.ndarray
    of: np.ndarray
    ready: np.ndarray
    ends: np.ndarray
    takes: np.ndarray


class _Writer:
    """A program that is written action by action."""

    def __init__(self, workers: int):
        self.actions: list[tuple[int, int, int, int, int]] = []
        self.touched = [0] * workers  # the position after the last action that changed each worker
        self.last = [-1] * workers

    def write(self, do: Do, worker: int, row: int = -1) -> None:
        """Add an action; `row` is the row of the trace whose round ends with it."""
        if row >= 0:
            self.last[worker] = row
        self.actions.append((do, worker, row, self.last[worker], self.touched[worker]))
        if do != Do.ARRIVE:
            self.touched[worker] = len(self.actions)

    def close(self, messages: int) -> None:
        """Add the merge of a set of that many messages."""
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
    """Translate a trace into a program.

    Args:
        trace: the columns of `RECORD`.
        gate: the gate of the scheme, which sets the synchronization rule.
        workers: W.
        reads_apart: True if workers read the center when their next round begins, and not as a reply.
        warm_start: True if worker 0 trains alone first.
        messages_per_update: number of messages of an asynchronous scheme that make one update, see `Scheme`.

    Raises:
        UserError: the gate lets workers wait in a way that it does not declare.
    """
    waiting_at(gate, workers)  # raises the error
    rows = _Rows(trace)
    writer = _Writer(workers)
    ends = np.empty(len(rows.worker), np.int64)
    later: dict[int, list[tuple[Do, int]]] = defaultdict(list)  # actions to write once the center has that version
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
    """The columns of a trace, and for each row the next row of its worker."""

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
        """Return the version with which the worker of this row continues; None if it does not continue."""
        following = self.next[i]
        return None if following is None or self.joins[following] else self.read[following]


def _alone(rows: _Rows, writer: _Writer) -> Iterator[tuple[int, int]]:
    for i, k in enumerate(rows.worker):
        writer.write(Do.ALONE, k, i)
        yield i, -1


def _asynchronous(
    rows: _Rows, writer: _Writer, later: dict[int, list[tuple[Do, int]]], apart: bool, together: int
) -> Iterator[tuple[int, int]]:
    """Write messages one after the other; yield each row and the version after it."""
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
    """Write messages in sets; yield each row and the version after it."""
    version, arrived, needed = 0, 0, size or 1
    for i, k in enumerate(rows.worker):
        if rows.joins[i]:
            writer.write(Do.START, k)
        else:
            writer.write(Do.ARRIVE if rows.accepted[i] else Do.LEAVE, k, i)
            arrived += rows.accepted[i]
            if (read := rows.reads_next(i)) is None:  # no later round, or a new start: adopt the reply to this set
                read = version + rows.accepted[i]
            later[max(read, version)].append((Do.ADOPT, k))
        last = i + 1 == len(rows.worker)
        if arrived and (arrived >= needed if last else rows.version[i + 1] > rows.version[i]):
            writer.close(arrived)
            version, needed, arrived = version + 1, min(needed, arrived), 0
        yield i, version
