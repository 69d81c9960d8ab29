"""What tasks tell: a report is an event by name, with its figures."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[..., None]

# Events of faults that were survived, and of what was done about them.
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
