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

from ...common.contract.scheme import Scheme
from ...common.record_format import BETWEEN_SERVERS, EVENTS
from ...common.sync.asynchronous import Unlocked
from ...common.sync.release import waiting_at


class Do(IntEnum):
    """The kinds of actions."""

    APPLY = 0  # merge the message of a worker, and let the worker adopt the reply
    PUSH = 1  # merge the message of a worker
    PULL = 2  # let a worker adopt the center; it sends no message
    READ = 3  # let a worker adopt the center as a reply: its message was merged earlier, or was not accepted
    START = 4  # start a worker anew from the center
    ARRIVE = 5  # add a message to its set
    CLOSE = 6  # merge the mean of a complete set
    ADOPT = 7  # let a worker adopt the reply to its set
    LEAVE = 8  # drop a message
    ALONE = 9  # the round of a single worker, which exchanges nothing
    UP = 10  # merge the message of a region into the global model
    DOWN = 11  # merge the reply into the model of the region


@dataclass(frozen=True)
class Program:
    """The actions of a run in order: n actions for m rows of the trace.

    Attributes:
        do: kind of each action, of `Do`, [n].
        worker: its worker, [n]; of `CLOSE`, the number of messages in the set; of `UP` and `DOWN`, the region.
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


class _Translation:
    """A program that is written action by action, and the trace that it translates.

    Args:
        trace: the columns of `RECORD`.
        workers: W.

    Attributes:
        later: actions to write once the center has that version.
        first: the first row of each worker.
        next: for each row the next row of its worker.
    """

    def __init__(self, trace: Mapping[str, np.ndarray], workers: int):
        self.worker, self.accepted = trace["worker"].tolist(), trace["accepted"].tolist()
        self.version, self.kind = trace["version"].tolist(), [EVENTS[event] for event in trace["event"].tolist()]
        self.read = np.maximum(trace["version"] - trace["staleness"], 0).tolist()
        self.actions: list[tuple[int, int, int, int, int]] = []
        self.touched = [0] * workers  # the position after the last action that changed each worker
        self.last = [-1] * workers
        self.later: dict[int, list[tuple[Do, int]]] = defaultdict(list)
        self.first: dict[int, int] = {}
        self.next: list[int | None] = [None] * len(self.worker)
        for i in reversed(np.flatnonzero(trace["event"] < BETWEEN_SERVERS).tolist()):
            self.next[i] = self.first.get(self.worker[i])
            self.first[self.worker[i]] = i

    def write(self, do: Do, worker: int, row: int = -1) -> None:
        """Add an action; `row` is the row of the trace whose round ends with it."""
        if row >= 0:
            self.last[worker] = row
        self.actions.append((do, worker, row, self.last[worker], self.touched[worker]))
        if do != Do.ARRIVE:
            self.touched[worker] = len(self.actions)

    def version_read_next(self, i: int) -> int | None:
        """Return the version with which the worker of this row continues; None if it does not continue."""
        following = self.next[i]
        return None if following is None or self.kind[following] == "join" else self.read[following]

    def start_others(self) -> None:
        """Let the other workers start when worker 0 has trained alone."""
        for i in sorted(self.first.values()):
            if self.worker[i] and self.read[i] and self.kind[i] != "join":
                self.later[self.read[i]].append((Do.START, self.worker[i]))

    # Each of these yields the version after each row.

    def alone(self) -> Iterator[int]:
        """Write the rounds of a single worker."""
        for i, worker in enumerate(self.worker):
            self.write(Do.ALONE, worker, i)
            yield -1

    def one_by_one(self, apart: bool, messages_per_update: int, cancels: bool) -> Iterator[int]:
        """Write messages one after the other; `apart` if workers read the center when their next round begins.

        If the scheme `cancels`, a round that ends with a pull was stopped: nothing is computed.
        """
        messages = 0
        for i, (worker, kind, accepted) in enumerate(zip(self.worker, self.kind, self.accepted, strict=True)):
            if kind == "join":
                self.write(Do.START, worker)
            elif kind in ("up", "down"):
                self.actions.append((Do[kind.upper()], worker, -1, -1, 0))
            elif kind == "pull" and cancels:
                self.write(Do.READ, worker)
            elif kind == "pull":
                self.write(Do.PULL, worker, i)
            elif apart or kind == "push":
                self.write(Do.PUSH if accepted else Do.LEAVE, worker, i)
            else:
                self.write(Do.APPLY if accepted else Do.READ, worker, i)
            messages += accepted
            version = messages // messages_per_update
            if apart and kind != "join" and (read := self.version_read_next(i)) is not None:
                self.later[max(read, version)].append((Do.READ, worker))
            yield version

    def in_sets(self, needed: int) -> Iterator[int]:
        """Write messages in sets; a round that ends with a pull was stopped: nothing is computed."""
        version = arrived = 0
        for i, (worker, kind, accepted) in enumerate(zip(self.worker, self.kind, self.accepted, strict=True)):
            if kind == "join":
                self.write(Do.START, worker)
            else:
                if kind != "pull":
                    self.write(Do.ARRIVE if accepted else Do.LEAVE, worker, i)
                arrived += accepted
                if (
                    read := self.version_read_next(i)
                ) is None:  # no later round, or a new start: adopt this set's reply
                    read = version + accepted
                self.later[max(read, version)].append((Do.ADOPT, worker))
            last = i + 1 == len(self.worker)
            if arrived and (arrived >= needed if last else self.version[i + 1] > self.version[i]):
                self.actions.append((Do.CLOSE, arrived, -1, self.last[0], 0))
                version, needed, arrived = version + 1, min(needed, arrived), 0
            yield version


def program_of(trace: Mapping[str, np.ndarray], scheme: Scheme, workers: int, sparse: bool) -> Program:
    """Translate a trace into a program.

    Args:
        trace: the columns of `RECORD`.
        scheme: the algorithm, with its synchronization rule.
        workers: W.
        sparse: True if the model is sparse.

    Raises:
        UserError: the synchronization rule lets workers wait in a way that it does not declare.
    """
    sync = scheme.sync
    waiting_at(sync, workers)  # raises the error
    translation, size = _Translation(trace, workers), sync.set_size(workers)
    if sync.warm_start:
        translation.start_others()
    if not sync.exchanges:
        versions = translation.alone()
    elif size is None:
        apart = sync.lead is not None or (sparse and not isinstance(sync, Unlocked))
        versions = translation.one_by_one(apart, sync.messages_per_update, sync.cancel_late)
    else:
        # Workers that finish leave smaller sets; if late messages count, the last message completes one of any size.
        versions = translation.in_sets(1 if sync.late == "count" else size or 1)
    ends = []
    for version in versions:
        for do, worker in translation.later.pop(version, ()):
            translation.write(do, worker)
        ends.append(len(translation.actions))
    columns = np.array(translation.actions, np.int64).reshape(-1, 5).T
    return Program(*columns, ends=np.array(ends, np.int64), takes=trace["event"] != EVENTS.index("pull"))
