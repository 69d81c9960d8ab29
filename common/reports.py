"""Reports of tasks: a report is an event by name, with its figures."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[..., None]

# Events of faults that the run survived, and of the reactions to them.
FAULTS = (
    "restarted",
    "resumed",
    "restored",
    "undone",
    "lost",
    "rejoined",
    "refused",
    "evicted",
    "checkpoint",
    "warning",
)
