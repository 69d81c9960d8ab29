"""How far float32 alone takes a run from the equations in float64: the limit of a replay.

It is derived for each run: the same equations are executed in the same order once more, in float32, and what that
makes of the center, ten times, is what a run may differ. Adam, which divides small gradients by their size, makes much
of float32, and a sum of gradients little.

Where an element near zero, or near the middle of two steps, falls on one side or the other, a difference is a jump,
and one order of float32 has other jumps than another. Of such a run (signs, the largest elements, codecs) the
equations are executed a third time, with gradients that are disturbed by a hundred times the rounding of float32: that
has all the jumps that a run may have, and more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import reference
from .recorded import Recorded, distance

LEAST = 1e-5  # of the center: the sums of TensorFlow are in another order than those of NumPy

SHARP = 0.005  # of the way of the center, of which a rate that is wrong by 1 % changes about a hundredth

FLOAT32 = 10  # how much nearer another execution in float32 may be by chance

DISTURBED = 1e-5  # of a gradient's root mean square; float32 is about a hundredth of that

JUMPS = ("signsgd_mv", "ef_sgd")


def jumps(run: Recorded) -> bool:
    """True if a small difference may become a large one at once."""
    return run.scheme.name in JUMPS or run.codec != "float32"


def explained(run: Recorded, replayed: np.ndarray) -> float:
    """The relative distance that float32 explains between a run and its replay, the center [P] in float64.

    Raises:
        ValueError: in float32, the center is not finite.
    """
    single = distance(replace(run, start=run.start.astype(np.float32)).replay(), replayed)
    if not jumps(run):
        return max(LEAST, FLOAT32 * single)
    others = distance(replace(run, gradient=_disturbed(run.gradient)).replay(), replayed)
    return max(LEAST, 2 * single, 2 * others)


def _disturbed(gradient: reference.Gradient) -> reference.Gradient:
    """Each gradient with some noise, but where it is zero: a weight that no example of the batch touches."""

    def noisy(x: np.ndarray, k: int, t: int) -> np.ndarray:
        g = gradient(x, k, t)
        noise = np.random.default_rng([k, t]).standard_normal(len(g))
        return g + DISTURBED * np.sqrt(np.mean(g * g)) * np.where(g == 0, 0.0, noise)

    return noisy
