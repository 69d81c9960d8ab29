"""The one rule of what is lost: what is started again, what a run can do without, what ends it, and how long all wait.

Supervision asks it for the tasks that one launcher has started, membership for those of other machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from .task_spec import CHIEF_TASK

REPAIR_WAITS = 3  # times the limit of an ordinary wait


@dataclass(frozen=True)
class RestartRule:
    """What happens when a task of a run is lost.

    | lost               | with restarts left               | else, with `min_workers`            | else     |
    |--------------------|----------------------------------|-------------------------------------|----------|
    | a worker           | it is started again              | the run goes on if enough are left  | the end  |
    | chief, ps, results | it is started again              | the end                             | the end  |

    Two things are never started again, since nothing that lives on knows how far they were: workers that reduce among
    themselves, and threads, which end with their process.

    Attributes:
        uses_ps: there is a parameter server, which knows how far each worker was.
        wait_seconds: how long tasks wait for each other.
        alone: one worker is all there is; it goes on from its checkpoint.
        max_restarts: how many times, over all tasks.
        min_workers: with how many workers a run goes on if the others do not come back; None: it needs all of them.
    """

    uses_ps: bool
    wait_seconds: float
    alone: bool = False
    max_restarts: int = 0
    min_workers: int | None = None

    @property
    def is_collective(self) -> bool:
        """True if the workers reduce among themselves: nothing that all can reach knows who has arrived."""
        return not (self.uses_ps or self.alone)

    @property
    def recovers(self) -> bool:
        """True if tasks wait for each other to be started again."""
        return self.uses_ps and self.max_restarts > 0

    @property
    def repair_seconds(self) -> float:
        """The limit of a wait for what is being repaired: who has to do it may be silent, too."""
        return REPAIR_WAITS * self.wait_seconds

    @property
    def patience(self) -> int:
        """How many times the limit of a wait tasks wait for those on whom all depend: they may be started again."""
        return REPAIR_WAITS if self.recovers else 1

    @property
    def tolerates(self) -> bool:
        """True if a worker may be lost and the run goes on, with or without it."""
        return self.uses_ps and (self.max_restarts > 0 or self.min_workers is not None)

    def can_restart(self, restarts: int) -> bool:
        """True if one more task may be started again after that number of restarts."""
        return not self.is_collective and restarts < self.max_restarts

    def can_do_without(self, task: tuple[str, int], workers_left: int) -> bool:
        """True if the run goes on without a task that does not come back, with that number of workers."""
        enough = self.min_workers is not None and workers_left >= self.min_workers
        return self.uses_ps and enough and _is_one_of_several(task)

    def is_needed(self, task: tuple[str, int]) -> bool:
        """True if the silence of a task ends the run; that of a worker may not: who waits for it knows better."""
        return not (self.tolerates and _is_one_of_several(task))


def _is_one_of_several(task: tuple[str, int]) -> bool:
    """True for a worker that is not the chief, which alone saves the state."""
    return task[0] == "worker" and task != CHIEF_TASK
