"""The attacks of hostile workers, as in `sign-flip:2`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import NormalDist

from .errors import UserError
from .spec import numbers

# Attacks, and the factor of a hostile worker's gradients; the strength of those of which the worker knows the others'.
ATTACKS = {
    **{"sign-flip": -1.0, "huge": 1e30, "inf": math.inf, "nan": math.nan},
    **{"label-flip": 1.0, "alie": 1.0, "ipm": 1.0},
}
STRENGTHS = {"alie": "z", "ipm": "epsilon"}


@dataclass(frozen=True)
class Attack:
    """What the last workers of a run do, see `RunOptions.hostile`.

    Attributes:
        kind: one of `ATTACKS`; empty for none.
        workers: number of hostile workers.
        strength: z of `alie` or ε of `ipm`; None for the default.
    """

    kind: str = ""
    workers: int = 0
    strength: float | None = None

    @property
    def factor(self) -> float:
        """Factor of their gradients."""
        return ATTACKS.get(self.kind, 1.0)

    @property
    def knows(self) -> bool:
        """True if they know what the others send."""
        return self.kind in STRENGTHS

    def of(self, workers: int) -> float:
        """Return the strength of the attack in a run of so many workers.

        By default ε is 0.1, and z that with which the hostile workers are nearer to the mean than enough honest ones,
        that both are more than half: Φ⁻¹((W − f − s)/(W − f)), s = ⌊W/2 + 1⌋ − f.
        """
        if self.strength is not None or self.kind != "alie":
            return 0.1 if self.strength is None else self.strength
        honest = workers - self.workers
        share = (honest - (workers // 2 + 1 - self.workers)) / honest
        return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0


NO_ATTACK = Attack()


def attack_of(text: str | None) -> Attack:
    """Return the attack that a text such as `sign-flip:2` or `alie:2,z=1.5` names; `UserError` if it names none."""
    if text is None:
        return NO_ATTACK
    kind, _, rest = text.partition(":")
    number, *options = rest.split(",")
    name = f"{STRENGTHS.get(kind)}="
    named = len(options) <= 1 and all(option.startswith(name) for option in options)
    if kind not in ATTACKS or not re.fullmatch(r"[1-9]\d{0,6}", number) or not named:
        raise UserError(
            f"hostile takes {', '.join(ATTACKS)} and a number of workers, as in sign-flip:2, and a strength as in "
            f"alie:2,z=1.5 or ipm:2,epsilon=0.1. Received: {text!r}"
        )
    strength = [numbers(f"{name[:-1]} of the attack {kind}", option.removeprefix(name), 0.1) for option in options]
    return Attack(kind, int(number), *strength)
