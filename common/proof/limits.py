"""How far float32 alone takes a run from the equations in float64: the limit of a replay.

It is derived for each run: the same equations are executed in the same order once more, in float32, and what that
makes of the center, ten times, is what a run may differ. Adam, which divides small gradients by their size, makes much
of float32, and a sum of gradients little.

Where an element near zero, or near the middle of two steps, falls on one side or the other, a difference is a jump,
and one order of float32 has other jumps than another. Of such a run (signs, the largest elements, codecs) the
equations are executed a third time, with gradients that are disturbed by a hundred times the rounding of float32: that
has all the jumps that a run may have, and more.

A jump causes further jumps, and in a long run of signs any two orders of float32 part. The test losses on record tell
what such a run did before: until then they are those of the equations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import reference
from .recorded import Execution, Recorded, distance

LEAST = 2e-6  # of the center: the sums of TensorFlow are in another order than those of NumPy

CERTAIN = 1e-5  # of the center, or of a test loss: a run without a jump is as near, and one that has jumped is not

SHARP = 0.005  # of the way of the center, of which a rate that is wrong by 1 % changes about a hundredth

FLOAT32 = 10  # how much nearer another execution in float32 may be by chance

DISTURBED = 1e-5  # of a gradient's root mean square; float32 is about a hundredth of that

JUMP = 1e-3  # of a test loss: more than a few jumps make of it

WRONG = 1.01  # times a rate that is to show

JUMPS = ("signsgd_mv", "ef_sgd")


def has_jumps(run: Recorded) -> bool:
    """True if the messages of the scheme itself jump: a small difference of gradients may become a large one."""
    return run.scheme.name in JUMPS


class References:
    """Other executions of a run, which part from the equations in float64 as the run itself may do.

    Args:
        run: on record.
        exact: its execution in float64.

    Raises:
        ValueError: in float32, the center is not finite.
    """

    def __init__(self, run: Recorded, exact: Execution):
        self.run, self.exact = run, exact
        self.single = replace(run, start=run.start.astype(np.float32)).execute()
        jumps = has_jumps(run) or run.codec != "float32"
        self.disturbed = replace(run, gradient=_disturbed(run.gradient)).execute() if jumps else None

    @property
    def limit(self) -> float:
        """The relative distance of the center that float32 explains."""
        single = distance(self.single.center, self.exact.center)
        if self.disturbed is None:
            return max(LEAST, FLOAT32 * single)
        return max(CERTAIN, 2 * single, 2 * distance(self.disturbed.center, self.exact.center))

    def course(self) -> tuple[int, str]:
        """What the test losses on record tell.

        Returns:
            the version up to which they are those of the equations, so that a rate wrong by 1 % would have shown there
            (0 if there is none); and where they are others than float32 explains, if they are.
        """
        run, losses = self.run, np.array(list(self.run.losses.values()))
        if self.disturbed is None or not len(losses):
            return 0, ""
        versions, apart = list(run.losses), self._apart(losses)
        near = np.maximum.accumulate(np.maximum(CERTAIN, FLOAT32 * self._apart(self.single.losses)))
        far = np.maximum.accumulate(np.maximum(JUMP, FLOAT32 * self._apart(self.disturbed.losses)))
        if len(beyond := np.flatnonzero(apart > np.maximum(near, far))):
            return 0, f"the test loss at update {versions[beyond[0]]} is {apart[beyond[0]]:.1e} from theirs"
        scheme: Any = run.scheme
        wrong = replace(run, scheme=replace(scheme, learning_rate=WRONG * scheme.learning_rate)).execute()
        same = np.logical_and.accumulate(apart <= near)
        told = same & (near < np.minimum(JUMP, self._apart(wrong.losses)))
        return max((version for version, is_told in zip(versions, told, strict=True) if is_told), default=0), ""

    def _apart(self, losses: np.ndarray) -> np.ndarray:
        return np.abs(losses - self.exact.losses) / np.abs(self.exact.losses)


def _disturbed(gradient: reference.Gradient) -> reference.Gradient:
    """Each gradient with some noise, but where it is zero: a weight that no example of the batch touches."""

    def noisy(x: np.ndarray, k: int, t: int) -> np.ndarray:
        g = gradient(x, k, t)
        noise = np.random.default_rng([k, t]).standard_normal(len(g))
        return g + DISTURBED * np.sqrt(np.mean(g * g)) * np.where(g == 0, 0.0, noise)

    return noisy
