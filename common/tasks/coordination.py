"""The topology of a run: a parameter server or a collective, and whether waiting workers are visible."""

from __future__ import annotations

from dataclasses import dataclass

from ..sync.gate import Gate


@dataclass(frozen=True)
class Coordination:
    """The topology of a run.

    Attributes:
        gate: the synchronization rule.
        in_process: one process runs all workers, on one session.
    """

    gate: Gate
    in_process: bool

    @property
    def waits(self) -> bool:
        """True if workers wait for each other's messages."""
        return self.gate.waits

    @property
    def uses_ps(self) -> bool:
        """True if the run has a parameter server; without one, worker 0 holds the center and the record."""
        return self.gate.uses_ps

    @property
    def alone(self) -> bool:
        """True if the run has a single worker, which exchanges nothing."""
        return not self.gate.exchanges

    @property
    def is_collective(self) -> bool:
        """True if the workers reduce among themselves."""
        return not (self.uses_ps or self.alone)

    @property
    def sees_waiting(self) -> bool:
        """True if tasks can read which workers wait: on a ps, or in the memory of all threads."""
        return self.waits and (self.uses_ps or self.in_process)
