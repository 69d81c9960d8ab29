"""The logs of a run, as rows of integers: events on the ps with their times, and rounds of the workers."""

from __future__ import annotations

import numpy as np

from ..record_format import RECORD

# One row of the log on the ps: an event, and times in microseconds or `UNKNOWN`. The worker sends the times with its
# message: `begun` and `ready` are of the round that ends with this event, `computed` and `replied` are of its round
# before. So is `released`, which the ps keeps until then.
ROW = (*RECORD, "released", "begun", "ready", "computed", "replied")

# One round of a worker, times in microseconds on one clock, or `UNKNOWN`. The worker begins to compute (`begun`); its
# message is computed (`ready`), and the last step before it uses the reply is (`computed`: equal to `ready` without
# steps in between, and unknown if the reply is lost, see `Scheme.overlap`); the message has `arrived` on the ps under
# the lock; the synchronization rule lets the worker continue (`released`); the worker has used the reply (`replied`).
ROUND = ("worker", "round", "begun", "ready", "computed", "arrived", "released", "replied")

UNKNOWN = -1


def spent(rounds: np.ndarray) -> np.ndarray:
    """Return the microseconds that workers computed, then stood still, and of these waited for others, [n, 3].

    Each is made of differences of two timestamps of one clock, so it is right even if the clocks of the machines
    differ. A wait may end before the steps after the message do: when it ends on the worker's clock follows if message
    and reply take equally long.

    Args:
        rounds: rounds whose times are known, [n, len(ROUND)].
    """
    begun, ready, computed, arrived, released, replied = rounds[:, 2:].T
    waited = released - arrived
    free = (replied - ready + waited) / 2  # after `ready`
    return np.stack([computed - begun, replied - computed, np.clip(free - (computed - ready), 0, waited)], 1)
