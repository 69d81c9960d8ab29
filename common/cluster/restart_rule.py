"""The rule for lost tasks: which are restarted, which a run can do without, which end it, and how long tasks wait.

Supervision applies it to the tasks that one launcher has started, membership to those of other machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from .task_spec import CHIEF_TASK

REPAIR_WAITS = 3  # times the limit of an ordinary wait


@dataclass(frozen=True)
class RestartRule:
    """The consequences of losing a task of a run.

    | lost                 | with restarts left   | else, with `min_workers`            | else         |
    |----------------------|----------------------|-------------------------------------|--------------|
    | a worker             | it is started again  | the run continues with enough left  | the run ends |
    | chief, ps, evaluator | it is started again  | the run ends                        | the run ends |

    Workers without a ps and threads are never started again, since no surviving task knows their progress: such
    workers reduce among themselves, and threads end with their process. Workers that gossip may be lost for good, once
    all of them were connected.

    Attributes:
        uses_ps: True if the run has a parameter server, which knows the progress of each worker.
        wait_seconds: seconds that tasks wait for each other.
        alone: True if the run has one worker only, which resumes from its checkpoint.
        max_restarts: number of restarts allowed, over all tasks.
        min_workers: number of workers with which the run continues if the others do not come back; None: all.
        loses_without_ps: True if workers without a ps continue without a lost one, as those that gossip do.
        awaits_workers: True if workers execute a script, which may do more after the result, and is not ended then.
    """

    uses_ps: bool
    wait_seconds: float
    alone: bool = False
    max_restarts: int = 0
    min_workers: int | None = None
    loses_without_ps: bool = False
    awaits_workers: bool = False

    @property
    def is_collective(self) -> bool:
        """True if the workers reduce among themselves: no task that all can reach knows which have arrived."""
        return not (self.uses_ps or self.alone)

    @property
    def recovers(self) -> bool:
        """True if tasks wait for each other to be started again."""
        return self.uses_ps and self.max_restarts > 0

    @property
    def repair_seconds(self) -> float:
        """The limit, in seconds, of a wait for a repair: the task that makes it may be silent, too."""
        return REPAIR_WAITS * self.wait_seconds

    @property
    def patience(self) -> int:
        """The factor on the limit of waits for tasks on which all depend: these may be started again."""
        return REPAIR_WAITS if self.recovers else 1

    @property
    def tolerates(self) -> bool:
        """True if the run continues after a worker is lost, with or without it."""
        return self.recovers or (self.can_lose and self.min_workers is not None)

    @property
    def can_lose(self) -> bool:
        """True if the others can continue without a worker: each message has other weights then."""
        return self.uses_ps or self.loses_without_ps

    def can_do_without(self, task: tuple[str, int], workers_left: int) -> bool:
        """Return True if the run continues without a task that does not come back, with `workers_left` workers."""
        enough = self.min_workers is not None and workers_left >= self.min_workers
        return self.can_lose and enough and _is_one_of_several(task)

    def is_needed(self, task: tuple[str, int]) -> bool:
        """Return True if the silence of a task ends the run; that of a worker may be left to those that wait for it."""
        return not (self.tolerates and _is_one_of_several(task))


def _is_one_of_several(task: tuple[str, int]) -> bool:
    """Return True for any worker but the chief, which alone saves the state."""
    return task[0] == "worker" and task != CHIEF_TASK
