"""Values of the chief's request for copies of local states: the index of a meeting, from 0, or one of these."""

from __future__ import annotations

NONE = -1  # no copy is requested

NEVER = -2  # no copy is requested, and the run has no checkpoint yet
