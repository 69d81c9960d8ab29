"""A member of a run over several machines: one task, as the others know it."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .restart_rule import RestartRule
from .task_spec import TaskSpec


@dataclass(frozen=True, kw_only=True)
class Member:
    """One task of a run over several machines, and what its membership depends on.

    Attributes:
        spec: which task of which cluster this program was started as.
        task: which of the program's tasks this is: ("worker", 0), or ("evaluator", 0) beside it.
        identity: what the tasks of a run must have in common, see `fingerprint`.
        program: which program has started the task; the same one may start it again.
        restarts: who may be lost, and how long tasks wait for each other.
        earlier_step_targets: of the runs that this one goes on from, if they were fewer steps.
        owner: a name that no other process has.
    """

    spec: TaskSpec
    task: tuple[str, int]
    identity: Mapping[str, Any]
    program: str
    restarts: RestartRule
    earlier_step_targets: Sequence[int] = ()
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        """As in events and names of logs."""
        return f"{self.task[0]}-{self.task[1]}"

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """Of the whole cluster; the first one has the tables."""
        return self.spec.all_tasks()

    @property
    def key(self) -> int:
        """The key of this task in the tables: its number among all tasks."""
        return self.tasks.index(self.task)

    @property
    def is_host(self) -> bool:
        """True if the tables are in the process of this task."""
        return self.key == 0

    @property
    def is_evaluator(self) -> bool:
        """True if this task says that the run is done."""
        return self.task[0] == "evaluator"

    @property
    def patience_seconds(self) -> float:
        """The limit of a wait for those on whom all depend."""
        return self.restarts.patience * self.restarts.wait_seconds

    def named(self, task: tuple[str, int] | int) -> str:
        """A task, or the one with that key, as messages name it, with its address."""
        job, index = self.tasks[task] if isinstance(task, int) else task
        address = self.spec.addresses.of(job, index)
        return f"{job} {index} at {address}" if address else "the evaluator"

    def registration(self) -> dict[str, Any]:
        """What this task tells the others of itself."""
        return {
            "where": f"process {os.getpid()} on {socket.gethostname()}",
            "program": self.program,
            "earlier_step_targets": list(self.earlier_step_targets),
            "identity": self.identity,
        }
