"""An experiment of a paper, and the path of the center in virtual time and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.contract import Scheme
from ..common.replay.reference.gradients import Gradient
from ..common.virtual_time.platform import Platform
from ..common.virtual_time.schedule import EventLoop
from .claims_runs import centers

Numbers = Mapping[str, Any]  # by name: a number, or a list of numbers


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    Attributes:
        name: its name on the command line.
        schemes: the algorithms of the catalogue that it is about.
        source: the paper, the place in it, and the settings.
        expected: the result that the paper states, or that follows from its equations in closed form.
        measure: returns our numbers, by name.
        ours: a format of these numbers.
        agrees: returns True if they agree with the expected ones.
        draw: returns a figure like that of the paper; None if it has none.
    """

    name: str
    schemes: str
    source: str
    expected: str
    measure: Callable[[], Numbers]
    ours: str
    agrees: Callable[[Numbers], bool]
    draw: Callable[[Numbers], Any] | None = None

    def row(self, numbers: Numbers) -> str:
        """Return a row of the table."""
        verdict = "reproduced" if self.agrees(numbers) else "**not reproduced**"
        cells = self.schemes, self.source, self.expected, self.ours.format(**numbers), verdict
        return f"| {' | '.join(cells)} | `bash run.sh reproduced {self.name}` |"


def path(
    scheme: Scheme, start: np.ndarray, gradient: Gradient, *, workers: int, steps: int, seed: int = 0, **platform: str
) -> np.ndarray:
    """Return the center after each update in virtual time, [updates, P], while all workers have rounds left."""
    machines, rounds = Platform(**platform), scheme.rounds(steps)  # pyright: ignore[reportArgumentType]
    times = {"message_bytes": 0, "reply_bytes": 0}
    loop = EventLoop(scheme, machines, workers=workers, rounds=rounds, seed=seed, stop_at_version=steps, **times)
    return np.array(centers(scheme, loop.run().trace, start, gradient, workers, steps, seed=seed))
