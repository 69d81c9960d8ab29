"""The path of the center: centers that a run has passed, kept during the run, to be evaluated when it is over.

Kept is the first center that is seen at or after each multiple of `every` updates. When there is no room for more,
`every` doubles, and what lies between the new multiples is forgotten: memory has a bound, and the centers are even.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract.codec import FLOAT_BYTES

KEPT_BYTES = 1 << 29  # of all centers that are kept: of a large model they are few, of one beyond 134M floats none

BEFORE = -1  # lies below the multiple 0, whatever `every` is


@dataclass(frozen=True)
class Moment:
    """A center that was seen.

    Attributes:
        when: on the clock `time.monotonic`.
        figures: of the run at that moment; `version` is among them.
        snapshot: what is evaluated: `center` [P], `state` [S].
    """

    when: float
    figures: dict[str, Any]
    snapshot: Mapping[str, np.ndarray]

    @property
    def version(self) -> int:
        """Updates that the center had."""
        return self.figures["version"]


class CenterPath:
    """Centers on the way, at most `room` of them; one thread may keep them, another take them.

    Args:
        every: updates between two of them, as long as there is room.
        most: centers that are kept.
        size: floats of one of them, P + S.
    """

    def __init__(self, every: int, most: int, size: int):
        self.every = every
        self.room = min(most, KEPT_BYTES // (FLOAT_BYTES * size))
        self.moments: list[Moment] = []
        self._changing = threading.Lock()

    @property
    def next(self) -> int:
        """The version from which on the next center is kept."""
        return (self._reached // self.every + 1) * self.every

    @property
    def _reached(self) -> int:
        return self.moments[-1].version if self.moments else BEFORE

    def wants(self, version: int) -> bool:
        """True if a center of this version should be kept."""
        with self._changing:
            while version < self._reached:  # a restoration has undone it
                self.moments.pop()
            return self.room > 0 and version >= self.next

    def keep(self, moment: Moment) -> None:
        """One more, of a version that is wanted, if any still are."""
        with self._changing:
            if self.room:
                self.moments.append(moment)
            while len(self.moments) > self.room:
                self.every *= 2
                passed, self.moments = self.moments, []
                for other in passed:
                    if other.version >= self.next:
                        self.moments.append(other)

    def close(self) -> list[Moment]:
        """What has been kept; nothing more is wanted."""
        with self._changing:
            kept, self.moments, self.room = self.moments, [], 0
            return kept


def even_choice(moments: Sequence[Moment], number: int) -> list[Moment]:
    """That number of them, or all, evenly, with the first and the last."""
    chosen = np.linspace(0, len(moments) - 1, min(len(moments), number)).round()
    return [moments[i] for i in np.unique(chosen.astype(int))]
