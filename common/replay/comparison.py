"""The verdict on a run, and its limit: the largest distance from the equations that float32 alone explains.

The limit is computed for each run: ten times the error of the same equations, executed in the same order in float32. If
a GPU has rounded the factors of matrix products to TF32, this execution does, too.

Signs, largest elements and codecs are discontinuous: an element near a jump may fall on either side. For these runs the
equations are executed a third time, with gradients disturbed by a hundred times the rounding error of float32, which
causes all jumps that a run may have, and more. Two float32 executions of a long run with jumps diverge: it is judged by
its recorded test losses, which agree with the equations until then. The distance that jumps make is one of chance, so
that a run is said to differ only if it does from several disturbed executions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..errors import UserError, first_line
from .recorded import Execution, Hyperparameters, RecordedRun, distance
from .reference.gradients import Gradient, rounded_factors

LEAST = 2e-6  # least limit of the center's error: TensorFlow and NumPy sum in different orders
CERTAIN = 1e-5  # error of the center, or of a test loss: smaller without a jump, larger after one
SHARP = 0.005  # part of the center's distance from its start; a rate that is wrong by 1 % changes that by about 1 %
FLOAT32 = 10  # factor by which one float32 execution may be nearer than another by chance
DISTURBED = 1e-5  # disturbance in root mean squares of a gradient: about a hundred times the rounding of float32
MORE = 3  # number of further disturbed executions before a run counts as different
DIVERGED = 0.5  # distance of two centers beyond which their executions have little in common
JUMP = 1e-3  # error of a test loss that is larger than the effect of a few jumps
WRONG = 1.01  # factor of a wrong rate that must be detected

MANTISSA = {"float32": None, "TF32": 10, "bfloat16": 7}  # bits to which factors of products are rounded, of 23

NO_ROOM = "the run has no room in this machine's memory: replay one that has a smaller model, less data or fewer steps"


@dataclass(frozen=True)
class Verdict:
    """The result of a replay.

    Attributes:
        run: the replayed run.
        error: relative distance of the run's center from that of the equations; infinite if the equations cannot
            produce the record.
        reason: the difference, if it is not in the center alone.
        limit: largest error that float32 explains; a run with a larger error differs.
        moved: relative distance of the initial center from that of the equations.
        until: update up to which the recorded test losses are those of the equations; 0 if that was not needed.
        ordered: True if all events are those that the synchronization rule allows; False if that is unknown.
    """

    run: RecordedRun
    error: float
    reason: str = ""
    limit: float = LEAST
    moved: float = 1.0
    until: int = 0
    ordered: bool = False

    @property
    def differs(self) -> bool:
        """True if the run deviates from the equations."""
        return bool(self.reason) or not self.error < self.limit

    @property
    def agrees(self) -> bool:
        """True if the run follows the equations so closely that a factor wrong by 1 % would have been detected.

        If jumps have changed the center, this holds up to the update `until`.
        """
        sharp, jumps = self.error < SHARP * self.moved, self.run.equations.jumps
        near = self.error < CERTAIN if jumps else sharp
        # Where all losses are those of the equations, the center must be near theirs, too.
        return not self.differs and (near or 0 < self.until < self.run.result["updates"] + sharp)


def judge(run: RecordedRun) -> Verdict:
    """Execute the equations in the recorded order, and compare; raises `UserError` if they do not cover the run."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # `distance` raises if it is not finite
            exact = run.execute()
            error, moved = (distance(center, exact.center) for center in (run.center, run.start))
            references = References(run, exact)
            until, reason = (0, "") if error < CERTAIN else references.course()
            if references.disturbed and (reason or error >= references.limit):  # perhaps that one came near by chance
                references.disturb_more()
                until, reason = references.course()
            return Verdict(run, error, reason, references.limit, moved, until)
    except UserError:
        raise
    except MemoryError:
        raise UserError(NO_ROOM) from None
    except TypeError as problem:
        raise UserError(f"the equations of {run.algorithm} cannot have these values: {first_line(problem)}") from None
    except (ValueError, IndexError, ArithmeticError) as problem:  # the order of the record is impossible
        return Verdict(run, float("inf"), first_line(problem))


class References:
    """Other executions of a run, which deviate from the equations in float64 as the run itself may.

    Args:
        run: the recorded run.
        exact: its execution in float64.

    Raises:
        ValueError: the center is not finite in float32.
    """

    def __init__(self, run: RecordedRun, exact: Execution):
        self.run, self.exact = run, exact
        with rounded_factors(MANTISSA[run.factors]):
            self.single = replace(run, start=run.start.astype(np.float32)).execute()
            self.disturbed = self._execute_disturbed(0) if run.has_jumps else None

    def _execute_disturbed(self, number: int) -> Execution:
        """Return an execution with noise of that number in each gradient."""
        bits = MANTISSA[self.run.factors]
        size = DISTURBED if bits is None else 2.0**-bits  # twice the rounding of a factor
        return replace(self.run, gradient=_disturbed(self.run.gradient, size, number)).execute()

    def disturb_more(self) -> None:
        """Execute the equations with other noise, too, and take the execution whose center ends furthest away."""
        with rounded_factors(MANTISSA[self.run.factors]):
            found = [self.disturbed, *(self._execute_disturbed(number) for number in range(1, MORE + 1))]
        self.disturbed = max(filter(None, found), key=lambda execution: distance(execution.center, self.exact.center))

    @property
    def limit(self) -> float:
        """Relative distance of the center that float32 explains."""
        single = distance(self.single.center, self.exact.center)
        if self.disturbed is None:
            return max(LEAST, FLOAT32 * single)
        apart = max(single, distance(self.disturbed.center, self.exact.center))
        # Once they have diverged, a distance is that of two chaotic runs, of which one may be several times another.
        return max(CERTAIN, (2 if apart < DIVERGED else FLOAT32) * apart)

    def course(self) -> tuple[int, str]:
        """Compare the recorded test losses with those of the equations.

        Returns:
            the last version at which they agree so closely that a rate wrong by 1 % would be detected (0 if none); and
            a description of the first difference that float32 does not explain, or an empty text.
        """
        run, losses = self.run, np.array(list(self.run.losses.values()))
        if self.disturbed is None or not len(losses):
            return 0, ""
        versions, apart = list(run.losses), self._apart(losses)
        near = np.maximum.accumulate(np.maximum(CERTAIN, FLOAT32 * self._apart(self.single.losses)))
        limit = np.maximum.accumulate(np.maximum(JUMP, FLOAT32 * self._apart(self.disturbed.losses)))
        if len(beyond := np.flatnonzero(apart > np.maximum(near, limit))):
            return 0, f"the test loss at update {versions[beyond[0]]} is {apart[beyond[0]]:.1e} from theirs"
        rate = WRONG * run.hyperparameters.learning_rate
        wrong = replace(run, hyperparameters=Hyperparameters(run.hyperparameters, learning_rate=rate)).execute()
        same = np.logical_and.accumulate(apart <= near)
        told = same & (near < np.minimum(JUMP, self._apart(wrong.losses)))
        return max((version for version, is_told in zip(versions, told, strict=True) if is_told), default=0), ""

    def _apart(self, losses: np.ndarray) -> np.ndarray:
        size = np.maximum(np.abs(self.exact.losses), JUMP * np.abs(self.exact.losses).max())  # some may vanish
        return np.abs(losses - self.exact.losses) / size


def _disturbed(gradient: Gradient, size: float, number: int = 0) -> Gradient:
    """Add noise to each gradient, except to zeros: weights that no example of the batch touches.

    Args:
        gradient: the gradient.
        size: of the noise, relative to the root mean square of the gradient.
        number: another one gives other noise.
    """

    def noisy(x: np.ndarray, k: int, t: int) -> np.ndarray:
        g = gradient(x, k, t)
        noise = np.random.default_rng([k, t, *[number] * (number > 0)]).standard_normal(len(g))
        return g + size * np.sqrt(np.mean(g * g)) * np.where(g == 0, 0.0, noise)

    return noisy
