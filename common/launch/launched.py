"""The worker task that executes a script: at each join it builds the graph and the session of a worker."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..cluster.membership import Membership
from ..cluster.task_spec import Addresses
from ..contract.checks import limits_of, warnings_of
from ..errors import Interrupted, UserError
from ..files import own_folder, replacing, writing
from ..record import checkpoint
from ..record.run_directory import check_resumed
from ..reports import Report
from ..tasks.graph import TaskGraph
from ..tasks.job import CHIEF, Job, Script
from ..tasks.results import write_graph
from ..tasks.script_loop import LOOK_SECONDS, Handoff, ScriptLoop
from ..waiting import POLL_SECONDS, awake, reachable
from .by_value import dumps
from .server_process import import_path
from .sessions import connect_worker
from .terms import Terms, describe_script, of_later_join, place_of_terms

MOST_JOINS = 4

INTER_OP = 3 + MOST_JOINS  # threads of a worker: one for each join waits for the script


@dataclass
class Launched:
    """The worker task that executes a script.

    Attributes:
        membership: that of the task in a run on several machines.
        current: that of this process, if it has one.
        states: "joined" by the name of each join, and "left" after the end of its block.
        handoffs: the place of the gradients of each join, by its name.
    """

    current: ClassVar[Launched | None] = None
    job: Job
    script: Script
    addresses: Addresses
    index: int
    target: str
    report: Report
    membership: Membership | None = None
    states: dict[str, str] = field(default_factory=dict)
    handoffs: dict[str, Handoff] = field(default_factory=dict)

    def loop(self, terms: Terms, name: str, handoff: Handoff) -> ScriptLoop:
        """Agree with worker 0, build graph and session, and wait for the other workers."""
        job = terms.job(self.job, name, take=handoff.take)
        report = self._agree(terms, name, job)
        graph = TaskGraph(job, [self.index])
        session, connect = connect_worker(job, graph.graph, self.index, self.target, self.addresses, INTER_OP)
        loop = ScriptLoop(job, session, graph, self.index, report, connect, handoff=handoff)
        loop.prepare()
        loop.join()
        report(event="ready")
        loop.await_others()
        self.handoffs[name] = handoff
        return loop

    def all_stand(self) -> bool:
        """Return True if a signal has interrupted the run, and no join makes a further step here."""
        return all(handoff.stands for name, handoff in self.handoffs.items() if self.states.get(name) != "left")

    def exchange(self, name: str, numbers: Sequence[float]) -> dict[int, Sequence[float]]:
        """Leave numbers under a name, and return those that other workers have left there so far, by worker.

        On several machines the first numbers under a name stay.
        """
        others = [k for k in range(self.job.cluster.workers) if k != self.index]
        if self.membership is not None:
            self.membership.post(f"{name} {self.index}", {"numbers": list(numbers)})
            posted = {k: self.membership.posted(f"{name} {k}") for k in others}
            return {k: entry["numbers"] for k, entry in posted.items() if entry is not None}
        with replacing(self.script.folder / f"{name}-{self.index}.json") as file:
            file.write(json.dumps(list(numbers)).encode())
        paths = {k: self.script.folder / f"{name}-{k}.json" for k in others}
        return {k: json.loads(path.read_text()) for k, path in paths.items() if path.exists()}

    def note(self, name: str, state: str) -> None:
        """Note and report that the script has entered or left the block of a join."""
        self.states[name] = state
        self.report(event="blocks", open=list(self.states.values()).count("joined"))

    def leave_by(self, name: str, error: BaseException) -> bool:
        """Return True if the exception that ends a block ends it as usual: the first step raises it after Ctrl-C."""
        return isinstance(error, Interrupted)  # perhaps one of another join

    def _agree(self, terms: Terms, name: str, job: Job) -> Report:
        """Write the terms of worker 0; raise `UserError` on another worker that joins with others.

        Returns the function that reports the events of this join.
        """
        own_terms, place = terms.in_common(), place_of_terms(self.script, name)
        if self.index == CHIEF:
            agreed = {"name": name, "is_first": not self.states, "terms": own_terms}
            if not place.exists():
                with writing(job.run_dir):
                    own_folder(job.run_dir)
                    write_graph(job.run_dir, job.scheme.sync.topology, job.cluster.workers)
                with replacing(place) as file:
                    pickle.dump(agreed, file)
                    pickle.dump(import_path(), file)
                    file.write(dumps(terms))
            if self.membership is not None:
                self.membership.post(f"join {name}", agreed)
        agreed = self._await_terms(place, name)
        for term, value in own_terms.items():
            if value != (expected := agreed["terms"][term]):
                raise UserError(
                    f"all workers must join with the same {term}. Received: {value}, and {expected} on worker 0"
                )
        report = self.report if agreed["is_first"] else of_later_join(self.report, name)
        if self.index == CHIEF:
            config = describe_script(job, self.script)
            if checkpoint.found(job.run_dir):
                check_resumed(job.run_dir, config)
            report(event="joined", config=config)
            for warning in warnings_of(job.scheme, job.cluster.workers):
                report(event="warning", message=warning)
            for message in limits_of(job.scheme, job.cluster.workers):
                report(event="limits", message=message)
        return report

    def _agreed(self, place: Path, name: str) -> dict[str, Any] | None:
        """Return what worker 0 has agreed to; None if it has not joined yet."""
        if self.membership is not None:
            return self.membership.posted(f"join {name}")
        if not place.exists():
            return None
        with place.open("rb") as file:
            return pickle.load(file)

    def _await_terms(self, place: Path, name: str) -> dict[str, Any]:
        """Block until worker 0 has left its terms: its script may take any time, but must not have ended."""
        looked = last_reachable = awake.now()
        while (agreed := self._agreed(place, name)) is None:
            time.sleep(POLL_SECONDS)
            if (now := awake.now()) - looked < LOOK_SECONDS:
                continue
            looked = now
            if reachable(self.addresses.worker[CHIEF]):
                last_reachable = now
            elif now - last_reachable > self.job.cluster.wait_seconds and not self._agreed(place, name):
                # It has been unreachable for longer than a restart takes.
                raise UserError(
                    f"worker 0 has ended without a join named {name!r}: call join with the same names on all workers"
                )
        return agreed
