"""The trace of a run: what happened on the parameter server, in order, as rows of integers."""

from __future__ import annotations

from typing import Literal

from ..contract.rounds import Event

# One event of the trace: what happened on the ps, in order.
RECORD = ("version", "worker", "staleness", "accepted", "microseconds", "event")

# An event is recorded as its position in here. A worker that takes its slot again starts anew from the center: "join".
EVENTS: tuple[Event | Literal["join"], ...] = ("exchange", "push", "pull", "join")
