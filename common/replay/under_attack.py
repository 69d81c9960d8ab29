"""Runs with hostile workers: what these compute, or put in place of what the others send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import UserError
from ..hostile import Attack, attack_of
from .reference.gradients import Gradient
from .reference.robust_rules import forged, forgery

ROBUST = "trimmed_mean", "krum", "centered_clipping", "rfa"  # their rules get the rows of an attack


def of_hostile(config: Mapping[str, Any], gradient: Gradient, false: Callable[[], Gradient]) -> Gradient:
    """Return the gradient of worker k's t-th batch in a run with hostile workers.

    Args:
        config: content of config.json.
        gradient: that of honest workers.
        false: returns that with labels counted from the other end.
    """
    attack, workers, name = attack_of(config["hostile"]), config["workers"], config["algorithm"]
    honest = workers - attack.workers
    if attack.kind == "label-flip":
        other = false()
        return lambda x, k, t: (gradient if k < honest else other)(x, k, t)
    if not attack.knows:
        return lambda x, k, t: gradient(x, k, t) * (1 if k < honest else attack.factor)
    if name in ROBUST:
        return gradient
    if name != "sync_sgd":
        raise UserError(
            f"replay follows the attack {attack.kind} only in sync_sgd and the robust algorithms: replay a run "
            f"without. Received: {name}"
        )

    def knowing(x: np.ndarray, k: int, t: int) -> np.ndarray:
        if k < honest:
            return gradient(x, k, t)
        return forgery(np.array([gradient(x, j, t) for j in range(honest)]), attack.kind, attack.of(workers))

    return knowing


def forging(attack: Attack, workers: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that puts an attack into the rows of hostile workers, of rows [W, P]."""
    if not attack.knows:
        return lambda rows: rows
    return lambda rows: forged(rows, attack.workers, attack.kind, attack.of(workers))
