"""What a worker asks about copies of its local state; see `local_state`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.asked import NEVER
from .calls import Calls, Connect
from .graph import TaskGraph
from .local_layout import Layout, apart, packed, together, unpacked

SLOW = 10  # times the limit of a wait, for calls that wait for no other task


class LocalCalls(Calls):
    """What a worker asks about copies of its local state.

    Attributes:
        listens: True if it hears with each call of rounds what the chief asks for.
        asked: what that was in the last call; see `engine.asked`.
    """

    def __init__(self, session: Any, graph: TaskGraph, index: int, wait_seconds: float, connect: Connect | None = None):
        self.index, self.mine = index, graph.worker_ops[index]
        self.listens, self.asked = False, NEVER
        super().__init__(session, graph, wait_seconds, connect)

    def lay_down(self, rounds: int, keeps: bool = True) -> None:
        """Lay down a copy of the local state after so many `rounds`; an empty one says only how many they are."""
        seconds = SLOW * self.wait_seconds
        copy = packed(together(self._run(self.mine.local, seconds=seconds))) if keeps else b""
        self._run(self.mine.lay_down, rounds, np.array(copy, object), seconds=seconds)

    def take_up(self, layout: Layout) -> None:
        """Go on with the local state that is in the copy."""
        _, copy = self.copy_of(self.index)
        parts = apart(layout.typed(unpacked(copy)), self.mine.set_local.inputs)
        self._run(self.mine.set_local, parts, seconds=SLOW * self.wait_seconds)

    def stretch(self, rounds: int) -> None:
        """Say before calls of so many rounds that there will be such."""
        self.asked = int(self._run(self.mine.stretch, rounds))

    def look_at_asked(self) -> int:
        """What the chief asks for now."""
        self.asked = int(self._run(self.ops.asked))
        return self.asked
