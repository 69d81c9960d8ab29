"""The workers of a recorded run that gossip: those that each hears, and which were lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UserError
from .recorded import Hyperparameters, RecordedRun
from .reference import gossip_rules


def mixing_of(run: RecordedRun, scheme: Hyperparameters) -> Callable[[int], np.ndarray]:
    """Return the mixing matrix of a round, [W, W], as a function of its number."""
    from ..sync.topology import Topology  # not at the top: few algorithms have a graph

    return lambda number: Topology(scheme.topology).weights(run.workers, number)


def members_of(run: RecordedRun) -> gossip_rules.Members:
    """Return the workers that took part in each round.

    Raises:
        UserError: workers were lost that the transcription does not know of.
        ValueError: no run has these lost workers.
    """
    entries = run.result["recovery"].get("lost_workers", [])
    members = gossip_rules.members_of(entries, run.workers, run.result["updates"])
    if any(lost.times > 1 for lost in members.lost) or (members.lost and not run.hyperparameters.get("topology")):
        raise UserError(f"workers were lost in a way that the transcription of {run.algorithm} cannot follow")
    return members


GOSSIP: dict[str, Any] = {"weights": mixing_of, "members": lambda run, s: members_of(run)}

MOMENTUM: dict[str, Any] = {"momentum": lambda run, s: s.get("momentum", 0.0)}  # older records have none
