"""The mean over the workers of tensors of a script that are no part of the algorithm, such as batch statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import UserError
from ..waiting import wait_until

Numbers = Sequence[float]

POLL_SECONDS = 0.05


def mean_of_workers(
    key: str,
    vector: np.ndarray,
    others: Sequence[int],
    exchange: Callable[[str, Numbers], dict[int, Numbers]],
    wait: float,
) -> np.ndarray:
    """Return the mean of the vectors [N] that all workers leave under a key.

    Args:
        key: the same on all workers for one mean.
        vector: the vector of this worker.
        others: the other workers.
        exchange: leaves numbers of this worker under a key, and returns those of the other workers so far.
        wait: seconds to wait for the other workers.

    Raises:
        WaitTimeout: a worker has left no vector; the message names it.
        UserError: a vector has another length.
    """
    numbers, found = vector.tolist(), dict[int, Numbers]()

    def all_there() -> bool:
        found.update(exchange(key, numbers))
        return len(found) == len(others)

    def missing() -> str:
        absent = ", ".join(f"worker {k}" for k in others if k not in found)
        return f"the tensors of {absent}: each worker must call average as often as the others"

    wait_until(all_there, wait, missing, poll=POLL_SECONDS)
    for other, other_numbers in found.items():
        if len(other_numbers) != len(numbers):
            raise UserError(
                f"all workers must call average with tensors of the same shapes. Received: {len(numbers)} "
                f"numbers, and {len(other_numbers)} on worker {other}"
            )
    vectors = [numbers, *(found[k] for k in sorted(found))]
    return np.mean(np.array(vectors, np.float64), 0).astype(np.float32)
