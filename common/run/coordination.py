"""How the workers of a run meet: through a parameter server or among themselves, and who can see who waits."""

from __future__ import annotations

from dataclasses import dataclass

from ..gates.gate import Gate


@dataclass(frozen=True)
class Coordination:
    """How the workers of a run meet.

    Attributes:
        gate: who waits for whom.
        in_process: one process has all of them, on one session.
    """

    gate: Gate
    in_process: bool

    @property
    def waits(self) -> bool:
        """True if workers wait for each other's messages."""
        return self.gate.waits

    @property
    def uses_ps(self) -> bool:
        """True if there is a parameter server; without one, worker 0 holds the center and the record."""
        return self.gate.uses_ps

    @property
    def alone(self) -> bool:
        """True if one worker is all there is."""
        return not self.gate.exchanges

    @property
    def is_collective(self) -> bool:
        """True if the workers reduce among themselves."""
        return not (self.uses_ps or self.alone)

    @property
    def sees_waiting(self) -> bool:
        """True if it can be seen who waits: on a ps, or in the memory of all threads."""
        return self.waits and (self.uses_ps or self.in_process)
