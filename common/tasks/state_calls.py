"""Calls of the chief's state manager on the global variables: read all that a checkpoint keeps, and restore it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..messages.cut import COPIES
from ..record.array_files import whole
from ..server.answers import NONE
from ..server.failures import is_refusal
from .calls import Calls
from .feeds import feed_of, whole_of
from .requests import Operation, StateRequests, StopRequests

Copies = Mapping[int, tuple[int, bytes]]  # local state by worker: the number of rounds before it, and the copy


class StateCalls(Calls, StopRequests, StateRequests):
    """The calls of the chief's state manager."""

    def is_clean(self) -> bool:
        """Return False if an event was interrupted, or a restoration is under way."""
        try:
            self._check_clean()
        except Exception as error:
            if is_refusal(error):
                return False
            raise
        return True

    def initialize(self, restoration: int) -> None:
        """Initialize the global variables from the initial model; this initialization has the number `restoration`."""
        center, state = self.graph.initial
        places = self.operations["_initialize"].inputs[0]
        self._initialize(feed_of(places, center), state, np.array([restoration, 0]))

    def values(self) -> dict[str, Any]:
        """Return an atomic snapshot of all that a checkpoint keeps, by name: arrays, or `Slices` of them."""
        return whole({name: whole_of([part]) for name, part in self._values().items()})

    @property
    def places(self) -> dict[str, list[Any]]:
        """The placeholders of saved values: for each name, one or one for each slice."""
        return self.operations["_restore"].inputs[0]

    def restore(self, arrays: Mapping[str, Any], restoration: int, events: int, copies: Copies | None = None) -> None:
        """Replace the values of all global variables, in steps.

        The ps refuses all workers from the first step to the last. Workers that wait for others are woken, and join
        after the last step.

        Args:
            arrays: values, as `values` returns them.
            restoration: number of this restoration.
            events: number of logged events at the time of these values.
            copies: local states of workers.
        """
        self._shut()
        for clear, alive in zip(self.operations["_clear_snapshots"].fetches, self.alive(), strict=False):
            if not alive:
                self.run(Operation(clear), seconds=self.wait_seconds)
        parts = {
            name: _copied(slices, arrays[name]) if name.startswith(COPIES) else feed_of(slices, arrays[name])
            for name, slices in self.places.items()
        }
        self._restore(parts, np.array([restoration, events]))
        rounds, kept = zip(*((copies or {}).get(k, (NONE, b"")) for k in range(self.graph.workers)), strict=True)
        self._put_back(np.array(rounds), np.array(kept, object))
        self._call_back()
        self._open()


def _copied(places: Sequence[Any], array: Any) -> list[np.ndarray]:
    """Return the array once for the place of each slice."""
    from ..messages.transport import fed

    return [fed(place, array) for place in places]
