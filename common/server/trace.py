"""The logs of a run, as rows of integers: events on the ps with their times, and rounds of the workers."""

from __future__ import annotations

import numpy as np

from ..record_format import EVENTS, RECORD

# One row of the log on the ps: an event, and times in microseconds or `UNKNOWN`. The worker sends the times with its
# message: `begun` and `ready` are of the round that ends with this event, `computed` and `replied` of the worker's
# round before, as they are later than its message. `released` is of the round before, too; the ps keeps it until then.
ROW = (*RECORD, "released", "begun", "ready", "computed", "replied")

# One round of a worker, times in microseconds on one clock, or `UNKNOWN`:
#   begun       the worker begins to compute
#   ready       its message is computed
#   computed    its last step before it uses the reply is done: equal to `ready` without steps in between (see
#               `Scheme.overlap`), unknown if the reply is lost
#   arrived     the message has arrived on the ps, and is under the lock
#   released    the synchronization rule lets the worker continue
#   replied     the worker has used the reply
ROUND = ("worker", "round", "begun", "ready", "computed", "arrived", "released", "replied")

UNKNOWN = -1


def ends_round(events: np.ndarray) -> np.ndarray:
    """Return the mask of the events that end a round of their worker, given the column `event`, [n]."""
    return events < EVENTS.index("join")


def spent(rounds: np.ndarray) -> np.ndarray:
    """Return the microseconds that workers computed, then stood still, and of these waited for others, [n, 3].

    Each is made of differences of two timestamps of one clock, so it is right even if the clocks of the machines
    differ. Steps after the message may last into the wait for others, or beyond it: only the rest of the wait counts.
    The end of the wait on the worker's clock is computed as if message and reply took equally long.

    Args:
        rounds: rounds whose times are known, [n, len(ROUND)].
    """
    begun, ready, computed, arrived, released, replied = rounds[:, 2:].T
    waited = released - arrived
    free = (replied - ready + waited) / 2  # from `ready` to the end of the wait
    return np.stack([computed - begun, replied - computed, np.clip(free - (computed - ready), 0, waited)], 1)
