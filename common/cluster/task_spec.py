"""The task of several machines that a program is, and the addresses of all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

JobName = Literal["ps", "worker", "evaluator"]

CHIEF_TASK = ("worker", 0)


@dataclass(frozen=True)
class Addresses:
    """The address `host:port` of every task, by job and index."""

    ps: Sequence[str]
    worker: Sequence[str]

    def as_dict(self) -> dict[str, list[str]]:
        """Return the addresses as `tf.train.ClusterSpec` takes them; jobs without tasks are left out."""
        return {job: list(hosts) for job, hosts in (("ps", self.ps), ("worker", self.worker)) if hosts}

    def of(self, job: str, index: int) -> str:
        """Return the address of a task; empty for the evaluator, which does not listen."""
        return self.as_dict()[job][index] if job in ("ps", "worker") else ""


@dataclass(frozen=True)
class TaskSpec:
    """The task of a cluster of several machines that this program is.

    Attributes:
        job: "ps", "worker" or "evaluator".
        index: number of the task in its job; worker 0 is the chief.
        addresses: of all tasks.
        separate_evaluator: True if the evaluator is a task of its own; otherwise the chief's program runs it too.
        origin: text for the user: the scheduler that has placed the tasks, and their places; empty if placed by hand.
    """

    job: JobName
    index: int
    addresses: Addresses
    separate_evaluator: bool = False
    origin: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.job}-{self.index}"

    @property
    def evaluates(self) -> bool:
        """True if the evaluator runs here, and so the results are written here."""
        return self.job == "evaluator" if self.separate_evaluator else self.is_chief

    @property
    def is_chief(self) -> bool:
        """True if this is worker 0, which makes and saves the global state."""
        return (self.job, self.index) == CHIEF_TASK

    def tasks(self) -> list[tuple[str, int]]:
        """Return the tasks that this program runs."""
        beside = [("evaluator", 0)] if self.evaluates and self.job != "evaluator" else []
        return [(self.job, self.index), *beside]

    def all_tasks(self) -> list[tuple[str, int]]:
        """Return the tasks of the whole cluster; the first has the tables of the rendezvous."""
        listening = [(job, i) for job, hosts in self.addresses.as_dict().items() for i in range(len(hosts))]
        return [*listening, ("evaluator", 0)]
