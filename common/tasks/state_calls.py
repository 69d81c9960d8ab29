"""Calls of the chief's state manager on the global variables: read all that a checkpoint keeps, and restore it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..messages.cut import COPIES
from ..messages.message import SCALARS, cut_off
from ..record.sliced import whole
from ..server.asked import NONE
from ..server.failures import is_refusal
from .calls import STATE_WAITS, Calls
from .feeds import feed_of, whole_of

Copies = Mapping[int, tuple[int, bytes]]  # local state by worker: the number of rounds before it, and the copy


class Heard(NamedTuple):
    """The position of the workers once the request of the chief is visible to all."""

    version: int  # updates in the center
    rounds: np.ndarray  # logged rounds of each, [W]
    stretch: np.ndarray  # rounds of the longest calls of each, [W]


class Standing(NamedTuple):
    """The workers that stand still."""

    stands: np.ndarray  # [W] booleans
    rounds: np.ndarray  # logged rounds of each, [W]
    goes_on: bool  # the state is clean, and the run is not being stopped


class StateCalls(Calls):
    """The calls of the chief's state manager."""

    def alive(self) -> np.ndarray:
        """Return for each ps task whether its variables have values."""
        return self._run(self.ops.alive)

    def is_clean(self) -> bool:
        """Return False if an event was interrupted, or a restoration is under way."""
        try:
            self._run(self.ops.clean)
        except Exception as error:
            if is_refusal(error):
                return False
            raise
        return True

    def initialize(self, restoration: int) -> None:
        """Initialize the global variables from the initial model; this initialization has the number `restoration`."""
        center, state = self.graph.initial
        self._run(
            self.ops.initialize, feed_of(self.ops.initialize.inputs[0], center), state, np.array([restoration, 0])
        )

    def announce(self) -> None:
        """Signal the workers that the state is ready."""
        self._run(self.ops.announce_state)

    def values(self) -> dict[str, Any]:
        """Return an atomic snapshot of all that a checkpoint keeps, by name: arrays, or `Slices` of them."""
        found = self._run(self.ops.values, seconds=STATE_WAITS * self.wait_seconds)
        values = {name: whole_of([part]) for name, part in found.items()}
        return whole(cut_off(values, self._messages, self._scalars))

    @property
    def variables(self) -> frozenset[str]:
        """The names in `values`."""
        return frozenset([*self.ops.new_values, *(name + SCALARS for name in self._messages)])

    @property
    def _scalars(self) -> int:
        return len(self.graph.scalars)

    @property
    def _messages(self) -> list[str]:
        """Names of the vectors with scalars at the end of each slice: sums of messages at a gate."""
        places, number = self.ops.new_values, self._scalars
        long = [places["center"][0].shape[0] + number]
        vectors = (name for name in places if number and not name.startswith(COPIES))
        return [name for name in vectors if places[name][0].shape == long]

    def ask(self, meeting: int) -> Heard:
        """Request a copy of the local state of all workers at that meeting; see `server.local_copies`."""
        return Heard(*self._run(self.ops.ask, meeting))

    def standing(self) -> Standing:
        """Return which workers stand still."""
        return Standing(*self._run(self.ops.standing))

    def forget_copies(self) -> None:
        """Delete the copies, except those of workers that have finished."""
        self._run(self.ops.forget_copies)

    def _put_back(self, copies: Copies) -> None:
        all_of_them = [copies.get(worker, (NONE, b"")) for worker in range(self.ops.put_back.inputs[0].shape[0])]
        rounds, parts = zip(*all_of_them, strict=True)
        self._run(self.ops.put_back, np.array(rounds), np.array(parts, object))

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
        self._run(self.ops.shut)
        for forget, alive in zip(self.ops.clear_snapshots, self.alive(), strict=False):
            if not alive:
                self._run(forget)
        places = self.ops.new_values
        parts = {
            name: _copied(here, arrays[name])
            if name.startswith(COPIES)
            else feed_of(here, arrays[name], arrays.get(name + SCALARS, ()))
            for name, here in places.items()
        }
        self._run(self.ops.restore, parts, np.array([restoration, events]))
        self._put_back(copies or {})
        self._run(self.ops.call_back)
        self._run(self.ops.open)


def _copied(places: Sequence[Any], array: Any) -> list[np.ndarray]:
    """Return the array once for the place of each slice."""
    from ..messages.transport import fed

    return [fed(place, array) for place in places]
