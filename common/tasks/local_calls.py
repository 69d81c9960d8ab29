"""Calls of a worker for copies of its local state; see `local_state`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..server.asked import NEVER
from .calls import Calls, Connect
from .graph import TaskGraph
from .local_layout import Layout, apart, packed, together, unpacked

SLOW = 10  # times the limit of a wait is that of calls that wait for no other task


class LocalCalls(Calls):
    """The calls of a worker for copies of its local state.

    Attributes:
        listens: True if each call of rounds also reads the request of the chief.
        asked: the request that the last call has read; see `server.asked`.
    """

    def __init__(self, session: Any, graph: TaskGraph, index: int, wait_seconds: float, connect: Connect | None = None):
        self.index, self.mine = index, graph.worker_ops[index]
        self.listens, self.asked = False, NEVER
        super().__init__(session, graph, wait_seconds, connect)

    def lay_down(self, rounds: int, keeps: bool = True) -> None:
        """Write a copy of the local state after `rounds` to the first ps or worker 0, empty unless `keeps`."""
        seconds = SLOW * self.wait_seconds
        copy = packed(together(self._run(self.mine.local, seconds=seconds))) if keeps else b""
        self._run(self.mine.lay_down, rounds, np.array(copy, object), seconds=seconds)

    def take_up(self, layout: Layout) -> None:
        """Restore the local state from its copy."""
        _, copy = self.copy_of(self.index)
        parts = apart(layout.typed(unpacked(copy)), self.mine.set_local.inputs)
        self._run(self.mine.set_local, parts, seconds=SLOW * self.wait_seconds)

    def stretch(self, rounds: int) -> None:
        """Announce calls of this number of rounds before the first of them."""
        self.asked = int(self._run(self.mine.stretch, rounds))

    def look_at_asked(self) -> int:
        """Read and return the present request of the chief."""
        self.asked = int(self._run(self.ops.asked))
        return self.asked
