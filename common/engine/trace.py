"""What is on record of a run, as rows of integers: events on the ps in order, and the rounds of workers."""

from __future__ import annotations

from typing import Literal

from ..contract.rounds import Event

# One event of the trace: what happened on the ps, in order.
RECORD = ("version", "worker", "staleness", "accepted", "microseconds", "event")

# An event is recorded as its position in here. A worker that takes its slot again starts anew from the center: "join".
EVENTS: tuple[Event | Literal["join"], ...] = ("exchange", "push", "pull", "join")

# One round of a worker, in microseconds on one clock, or `UNKNOWN`. It begins to compute (`begun`), its
# message is `ready`, has `arrived` on the ps under the lock, it need not wait for others any more (`released`), it has
# the reply and goes on (`replied`).
ROUND = ("worker", "round", "begun", "ready", "arrived", "released", "replied")

UNKNOWN = -1
