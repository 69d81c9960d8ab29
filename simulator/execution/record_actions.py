"""The actions of a real run: its record drives the `Sequencer`, event by event, as in `replay`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from ...common.replay.order import OrderOfEvents
from ..virtual_time.program import Actions


def actions_of(trace: Mapping[str, np.ndarray], scheme: Scheme, rounds: Sequence[int], sparse: bool = False) -> Actions:
    """Return what is computed in the order of a record. A worker reads the center when the record says that it does.

    Args:
        trace: the columns of `RECORD`.
        scheme: the algorithm.
        rounds: number of rounds of each worker after which it leaves, [W].
        sparse: True if the model is sparse.

    Raises:
        UserError: the synchronization rule does not allow this order, or lets workers wait in a way that it does not
            declare.
    """
    actions = Actions(scheme.sync, len(rounds))
    if not scheme.sync.exchanges:
        for worker in trace["worker"].tolist():
            actions.note("alone", worker)
        return actions
    later = defaultdict[int, list[tuple[str, int]]](list)  # what happens once the center has that version

    def note(kind: str, worker: int) -> None:
        version, reads = order.rule.version, kind in ("reply", "start")
        if reads and (read := order.reads_next(worker)) > version:
            later[read].append((kind, worker))
            return
        for earlier in () if reads else later.pop(version, ()):
            actions.note(*earlier)
        actions.note(kind, worker)

    order = OrderOfEvents(scheme, len(rounds), trace, sparse, note)
    departure = order.departure()
    if departure != "":
        raise UserError(f"{scheme.name} has no run with these events: {departure or 'a message was left out'}")
    order.end(rounds)
    return actions
