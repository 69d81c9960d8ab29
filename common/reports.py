"""Reports of tasks: a report is an event by name, with its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Report = Callable[..., None]

OF_LATER_JOIN = "of_later_join"  # an event of a later join of a script: `join` has its name, `its` that of the event

# Events of faults that the run survived, and of the reactions to them.
FAULTS = (
    "restarted", "resumed", "restored", "undone", "lost", "rejoined", "refused", "left_out", "evicted", "checkpoint",
    "warning",
)  # fmt: skip


def name_of(event: Mapping[str, Any]) -> str:
    """Return the name of an event: that within the join for an event of a later join of a script."""
    return event.get("its", event["event"])
