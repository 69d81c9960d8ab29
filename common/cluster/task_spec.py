"""Which task of several machines a program is, and where all of them listen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

JobName = Literal["ps", "worker", "evaluator"]

CHIEF_TASK = ("worker", 0)


@dataclass(frozen=True)
class Addresses:
    """Where every task listens: `host:port` by job and index."""

    ps: Sequence[str]
    worker: Sequence[str]

    def as_dict(self) -> dict[str, list[str]]:
        """As `tf.train.ClusterSpec` takes it; a job without tasks is left out."""
        return {job: list(hosts) for job, hosts in (("ps", self.ps), ("worker", self.worker)) if hosts}

    def of(self, job: str, index: int) -> str:
        """The address of a task; the evaluator has none, it does not listen."""
        return self.as_dict()[job][index] if job in ("ps", "worker") else ""


@dataclass(frozen=True)
class TaskSpec:
    """Which task of a cluster of several machines this program is.

    Attributes:
        job: "ps", "worker" or "evaluator".
        index: which one of them; worker 0 is the chief.
        addresses: of all tasks.
        separate_evaluator: the evaluator is a task of its own; otherwise the chief's program runs it too.
        origin: for people: who has given the tasks their places, and which to whom; empty if they were given by hand.
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
        """The tasks that this program runs."""
        beside = [("evaluator", 0)] if self.evaluates and self.job != "evaluator" else []
        return [(self.job, self.index), *beside]

    def all_tasks(self) -> list[tuple[str, int]]:
        """The tasks of the whole cluster; the others meet at the first."""
        listening = [(job, i) for job, hosts in self.addresses.as_dict().items() for i in range(len(hosts))]
        return [*listening, ("evaluator", 0)]
