"""What the chief may ask of the workers: a copy of their local states at some meeting, from 0; or one of these."""

from __future__ import annotations

NONE = -1  # no copy is asked for

NEVER = -2  # none is asked for, and there has been no checkpoint yet
