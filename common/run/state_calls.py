"""What the chief's state manager asks of the global variables: all that a checkpoint keeps, and how it is put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..contract.cut import COPIES
from ..contract.message import SCALARS, cut_off
from ..engine.asked import NONE
from ..engine.failures import is_refusal
from ..record.slices import whole
from .calls import STATE_WAITS, Calls
from .feeds import feed_of, whole_of

Copies = Mapping[int, tuple[int, bytes]]  # of the local states of workers: after how many rounds, and the copy


class Heard(NamedTuple):
    """How far the workers are once all can hear what the chief asks for."""

    version: int  # updates in the center
    rounds: np.ndarray  # of each that are on record, [W]
    stretch: np.ndarray  # rounds of the longest calls of each, [W]


class Standing(NamedTuple):
    """Which workers stand still."""

    stands: np.ndarray  # [W]
    rounds: np.ndarray  # of each that are on record, [W]
    goes_on: bool  # the state is clean, and nobody wants the run to end


class StateCalls(Calls):
    """What the chief's state manager asks."""

    def alive(self) -> np.ndarray:
        """For each ps task, True if its variables have values."""
        return self._run(self.ops.alive)

    def is_clean(self) -> bool:
        """True unless an event was cut in the middle, or a restoration is under way."""
        try:
            self._run(self.ops.clean)
        except Exception as error:
            if is_refusal(error):
                return False
            raise
        return True

    def initialize(self, restoration: int) -> None:
        """Make the global variables from the initial model; this beginning has the number `restoration`."""
        center, state = self.graph.initial
        self._run(
            self.ops.initialize, feed_of(self.ops.initialize.inputs[0], center), state, np.array([restoration, 0])
        )

    def announce(self) -> None:
        """Tell the workers that the state is there."""
        self._run(self.ops.announce_state)

    def values(self) -> dict[str, Any]:
        """All that a checkpoint keeps, at one moment, by name: arrays, or `Slices` of them."""
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
        """Names of what has scalars at the end of each slice: sums of messages at a gate."""
        places, number = self.ops.new_values, self._scalars
        long = [places["center"][0].shape[0] + number]
        vectors = (name for name in places if number and not name.startswith(COPIES))
        return [name for name in vectors if places[name][0].shape == long]

    def ask(self, meeting: int) -> Heard:
        """Ask all workers for a copy of their local states at that meeting; see `engine.local_copies`."""
        return Heard(*self._run(self.ops.ask, meeting))

    def standing(self) -> Standing:
        """Which workers stand still."""
        return Standing(*self._run(self.ops.standing))

    def forget_copies(self) -> None:
        """The copies are not needed any more, but those of workers that have finished."""
        self._run(self.ops.forget_copies)

    def _put_back(self, copies: Copies) -> None:
        all_of_them = [copies.get(worker, (NONE, b"")) for worker in range(self.ops.put_back.inputs[0].shape[0])]
        rounds, parts = zip(*all_of_them, strict=True)
        self._run(self.ops.put_back, np.array(rounds), np.array(parts, object))

    def restore(self, arrays: Mapping[str, Any], restoration: int, events: int, copies: Copies | None = None) -> None:
        """Put other values in the place of all of it, in steps.

        Nobody is admitted from the first step on. Whoever waits for others is woken, and joins after the last one.

        Args:
            arrays: as `values` returns them.
            restoration: the number of this one.
            events: how many were on record then.
            copies: of the local states of workers.
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
    """The same array for the place of each slice."""
    from ..engine.transport import fed

    return [fed(place, array) for place in places]
