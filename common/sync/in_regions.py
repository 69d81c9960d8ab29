"""The rule of workers whose region has a server of its own, below a global one, see `Scheme.regions`."""

from __future__ import annotations

from dataclasses import dataclass

from .asynchronous import Async
from .store import Message, Store, Tensor, WorkerSlot


@dataclass(frozen=True)
class InRegions(Async):
    """Asynchronous: the ps task of a worker's region applies its message when it arrives, under a lock of its own.

    The messages between regions and the global server are no part of a worker's round: see `server.region`.
    """

    kind = "regions"
    simulated = False  # in virtual time regions are part of the machines

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Lock the region, update its model, read the reply, unlock."""
        return ps.regions[slot.index % len(ps.regions)].exchange(slot, message)
