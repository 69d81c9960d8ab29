"""The program of a run: the actions on the center and the workers, one after the other, as `Sequencer` names them.

Between its reply and its next message no action changes a worker. So its round can be computed at any time in between,
together with rounds of other workers: `Program.ready` is the earliest position.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ...common.sync.synchronization import Synchronization


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


# The events that end a round.
ROUNDS = {"merge": Do.PUSH, "drop": Do.LEAVE, "add": Do.ARRIVE, "read": Do.PULL, "alone": Do.ALONE}

NOTED = *ROUNDS, "reply", "close", "start", "join", "up", "down"  # all events
PLACES = {what: place for place, what in enumerate(NOTED)}

WIDTH = 5  # numbers of an action


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


class Actions:
    """The events of a run, noted while they happen. Only `program` makes actions of them, as a forecast needs none.

    Args:
        sync: the synchronization rule.
        workers: W.
    """

    def __init__(self, sync: Synchronization, workers: int):
        self.sync, self.workers = sync, workers
        # The kind of each event, as its place in `NOTED`, and its worker.
        self.event_kinds, self.event_workers = array("b"), array("q")

    def note(self, kind: str, worker: int) -> None:
        """Note an event of a worker, or of a region.

        Args:
            kind: an effect of the `Sequencer`; `alone`, a round that exchanges nothing; `join`; or `up` and `down`, the
                messages of a region.
            worker: the worker, or the region.
        """
        self.event_kinds.append(PLACES[kind])
        self.event_workers.append(worker)

    def program(self) -> Program:
        """Return the actions of all events so far."""
        writer = _Writer(self.sync, self.workers)
        for place, worker in zip(self.event_kinds, self.event_workers, strict=True):
            writer.write(NOTED[place], worker)
        return writer.program()


class _Writer:
    """The actions of a run, written event by event."""

    def __init__(self, sync: Synchronization, workers: int):
        in_sets = sync.exchanges and sync.set_size(workers) is not None
        self.adopt, self.stops = Do.ADOPT if in_sets else Do.READ, sync.cancel_late
        # What a round becomes with its reply; where workers wait, that is the newest center.
        answered = {"drop": Do.READ, "read": Do.PULL, "alone": Do.ALONE} | ({} if sync.waits else {"merge": Do.APPLY})
        self.answered = {} if in_sets else answered
        self.rows = array("q")  # `do`, `worker`, `row`, `of` and `ready` of each action
        self.begins: list[int] = []  # position of the first action of each row of the trace
        self.touched = [0] * workers  # the position after the last action that changed each worker
        self.last = [-1] * workers  # row of the last round of each worker
        self.arrived = 0  # messages in the open set
        self.asks, self.answer = -1, -1  # the worker whose round was the last, and what this becomes with its reply

    def write(self, kind: str, worker: int) -> None:
        """Write the actions of an event."""
        if kind == "reply":
            if worker == self.asks:
                self.rows[WIDTH * self.begins[-1]] = self.answer
                self.asks = -1
            else:
                self._add(self.adopt, worker)
        elif kind == "close":
            self.rows.extend((Do.CLOSE, self.arrived, -1, self.last[0], 0))
            self.arrived = 0
        elif kind == "start":
            self._add(Do.START, worker)
        else:
            self._begin_row(kind, worker)

    def _begin_row(self, kind: str, worker: int) -> None:
        """Note an event that has a row in the trace."""
        row, self.asks = len(self.begins), -1
        self.begins.append(len(self.rows) // WIDTH)
        if kind in ROUNDS:
            if kind == "read" and self.stops:  # the round was stopped: nothing is computed
                return
            self.last[worker] = row
            self._add(ROUNDS[kind], worker, row)
            if kind in self.answered:
                self.asks, self.answer = worker, self.answered[kind]
            elif kind == "add":
                self.arrived += 1
        elif kind == "join":
            self._add(Do.START, worker)
        else:
            self.rows.extend((Do[kind.upper()], worker, -1, -1, 0))

    def _add(self, do: int, worker: int, row: int = -1) -> None:
        """Add an action; `row` is the row of the trace whose round ends with it."""
        self.rows.extend((do, worker, row, self.last[worker], self.touched[worker]))
        if do != Do.ARRIVE:
            self.touched[worker] = len(self.rows) // WIDTH

    def program(self) -> Program:
        """Return all actions."""
        do, worker, row, of, ready = np.array(self.rows, np.int64).reshape(-1, WIDTH).T.copy()
        ends = np.array([*self.begins, len(do)], np.int64)[1:]
        takes = np.ones(len(ends), bool)
        takes[row[do == Do.PULL]] = False
        return Program(do, worker, row, of, ready, ends, takes)
