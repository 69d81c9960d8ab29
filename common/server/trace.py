"""The logs of a run, as rows of integers: events on the ps with their times, and rounds of the workers."""

from __future__ import annotations

from ..record_format import RECORD

# One row of the log on the ps: an event, and times in microseconds or `UNKNOWN`. The worker sends the times with its
# message: `begun` and `ready` are of the round that ends with this event, `replied` is of its round before. So is
# `released`, which the ps keeps until then.
ROW = (*RECORD, "released", "begun", "ready", "replied")

# One round of a worker, times in microseconds on one clock, or `UNKNOWN`. The worker begins to compute (`begun`); its
# message is computed (`ready`) and `arrived` on the ps under the lock; the synchronization rule lets the worker
# continue (`released`); the worker has the reply (`replied`).
ROUND = ("worker", "round", "begun", "ready", "arrived", "released", "replied")

UNKNOWN = -1
