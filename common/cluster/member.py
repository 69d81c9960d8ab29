"""A member of a run over several machines: one task, as the other tasks know it."""

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
    """One task of a run over several machines, and the data of its membership.

    Attributes:
        spec: the task and the cluster as which this program was started.
        task: the one of the program's tasks that is meant: ("worker", 0), or ("evaluator", 0) beside it.
        identity: the properties that all tasks of a run must share, see `fingerprint`.
        program: name of the program that has started the task; the same program may start it again.
        restarts: the rule for lost tasks, and for the time that tasks wait for each other.
        earlier_step_targets: step targets of the runs that this one resumes, if these were shorter.
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
        """The name of the task in events and names of logs."""
        return f"{self.task[0]}-{self.task[1]}"

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """The tasks of the whole cluster; the first one has the tables."""
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
        """True if this task announces the end of the run."""
        return self.task[0] == "evaluator"

    @property
    def patience_seconds(self) -> float:
        """The limit, in seconds, of a wait for the tasks on which all depend."""
        return self.restarts.patience * self.restarts.wait_seconds

    def named(self, task: tuple[str, int] | int) -> str:
        """Return the name in messages, with the address, of a task or of the task with a key."""
        job, index = self.tasks[task] if isinstance(task, int) else task
        address = self.spec.addresses.of(job, index)
        return f"{job} {index} at {address}" if address else "the evaluator"

    def registration(self) -> dict[str, Any]:
        """Return the description of this task that the others read."""
        return {
            "where": f"process {os.getpid()} on {socket.gethostname()}",
            "program": self.program,
            "earlier_step_targets": list(self.earlier_step_targets),
            "identity": self.identity,
        }
