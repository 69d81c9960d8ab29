"""A script that `launch` has not started: its one worker runs in the process of the script, beside its server."""

from __future__ import annotations

import queue
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from ..cluster.cluster import Cluster
from ..cluster.discovery import other_starter
from ..errors import DistsgdError, Interrupted, TaskFailed, UserError, first_line
from ..lazy import require_tensorflow, tf
from ..packages import PROGRAM
from ..record.summary import summary
from ..tasks.evaluator import Evaluator
from ..tasks.graph import TaskGraph
from ..tasks.job import CHIEF, Job, Script
from ..tasks.options import RunOptions
from ..tasks.precision import arithmetic, precision
from ..tasks.script_loop import Handoff, ScriptLoop
from .gpus import report_devices
from .launched import INTER_OP
from .run import report_kernels, run
from .script import script_job
from .sessions import session_config
from .supervisor import OnEvent
from .terms import Terms, describe_script


class LoopHere(ScriptLoop):
    """The loop of the only worker, whose session the evaluator ends."""

    def await_end(self) -> None:
        """Return at once: no other process reads variables of this one."""


class RunHere:
    """The run of one join, with its record, in threads of this process.

    Attributes:
        outcome: the exception that has ended the block of the join; the record has it.
        abandoned: True if the run ends without the rest of its round.
    """

    def __init__(self, job: Job, script: Script, handoff: Handoff):
        self.job, self.handoff = job, handoff
        self.outcome: BaseException | None = None
        self.abandoned = False
        self._publish: OnEvent = lambda event: None
        self._begun: queue.SimpleQueue[ScriptLoop | None] = queue.SimpleQueue()
        self._ended: Any = None
        self._thread = threading.Thread(target=self._run, args=[describe_script(job, script)], daemon=True)
        self._thread.start()

    def loop(self) -> ScriptLoop:
        """Return the worker's loop as soon as it can begin; raises the error that has ended the run before."""
        loop = self._begun.get()
        if loop is None:
            self.finish()
            raise TaskFailed("the run ended before its first round")
        return loop

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """Note that Ctrl-C has ended the block; the run then ends as at the end of the block."""
        self.outcome = interrupted = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
        self._publish({"event": "stopped", "reason": interrupted.signal})

    def finish(self) -> dict[str, Any]:
        """Wait for the end of the run, and return its result; raises the error of the run."""
        self._thread.join()
        record, error = self._ended
        result = record.finish(error)
        if error is not None and error is not self.outcome:
            raise error
        return result

    def _run(self, config: dict[str, Any]) -> None:
        try:
            self._ended = run(self.job, config, verbose=False, begin=self._begin)
        finally:
            self._begun.put(None)

    def _begin(self, job: Job, on_event: OnEvent, model: Any, interrupted: Any) -> None:
        """Run the worker, whose gradients come from the script, and follow it, on one direct session."""

        def report(**event: Any) -> None:
            on_event(event)

        self._publish = on_event
        report_kernels(job, on_event)
        with precision(job):
            report(event="arithmetic", **arithmetic(job))
            report_devices(job, CHIEF, report)
            graph = TaskGraph(job, [CHIEF])
            session = tf.compat.v1.Session(graph=graph.graph, config=session_config(job.cluster, 1, INTER_OP))
            loop = LoopHere(job, session, graph, CHIEF, report, handoff=self.handoff)
            loop.prepare()
            loop.join()
            loop.await_others()
            self._begun.put(loop)
            try:
                Evaluator(job, session, graph, report).follow(stopped=lambda: self.abandoned)
            finally:
                if loop.state is not None:
                    loop.state.over.set()
                session.close()
        if self.outcome is not None:
            raise self.outcome


def refuse_copies(words: str) -> None:
    """Raise `UserError` in one of several copies of a script: each would be a run of its own, with one worker.

    Args:
        words: the script and its arguments, as for a shell.
    """
    starter, copies = other_starter()
    command = f"{PROGRAM} launch --workers {copies} {words}"
    if starter == "srun":
        command = f"srun -n {copies} {PROGRAM} launch --cluster slurm {words}, whose first task is the parameter server"
    elif starter == "torchrun":
        command += (
            f"; or, on several machines, torchrun with its options and -m distsgd launch --cluster torchrun {words}, "
            "whose first task is the parameter server"
        )
    if starter:
        raise UserError(
            f"{starter} has started {copies} copies of this script, and each would be a run of one worker. Start one "
            f"run with all of them: {command}"
        )


class Unlaunched:
    """The only worker of a script, in the process of the script; `join` treats it as a `Launched` one."""

    current: ClassVar[Unlaunched | None] = None
    index = CHIEF

    def __init__(self, script: Script):
        cluster = Cluster.local(1, backend="threads")
        self.script, self.job = script, script_job(script, cluster, RunOptions(batch_size=1))
        self.states: dict[str, str] = {}
        self.runs: dict[str, RunHere] = {}
        self.console = Console(stderr=True)

    @classmethod
    def of_this_process(cls) -> Unlaunched:
        """Return that of this process; a script has a new one when all blocks of the one before have ended."""
        if cls.current is None or "joined" not in cls.current.states.values():
            require_tensorflow()
            path = Path(sys.argv[0] or "script")
            name = path if path.suffix == ".py" and path.is_file() else Path("notebook")
            cls.current = cls(Script(name.resolve(), tuple(sys.argv[1:])))
            words = shlex.join(sys.argv) if name.suffix else "my_script.py"
            refuse_copies(words)
            several = f"{PROGRAM} launch --workers 4 {words}" if name.suffix else f"a script and {PROGRAM} launch"
            text = f"one worker, in this process; for several: {several}"
            cls.current.console.print(text, highlight=False, soft_wrap=True)
        return cls.current

    def report(self, **event: Any) -> None:
        """Print a message to the user."""
        self.console.print(event["message"], highlight=False, soft_wrap=True)

    def loop(self, terms: Terms, name: str, handoff: Handoff) -> ScriptLoop:
        """Start the run of a join, and wait until its worker can begin."""
        run = self.runs[name] = RunHere(terms.job(self.job, name, take=handoff.take), self.script, handoff)
        return run.loop()

    def all_stand(self) -> bool:
        """Return True: the signal reaches the script itself."""
        return True

    def exchange(self, key: str, numbers: Sequence[float]) -> dict[int, Sequence[float]]:
        """Return the numbers of the other workers, of which there are none."""
        return {}

    def note(self, name: str, state: str) -> None:
        """Note that the script has entered the block of a join, or left it: then show the result."""
        self.states[name] = state
        if state == "left":
            self.console.print(summary(self.runs[name].finish()))

    def leave_by(self, name: str, error: BaseException) -> bool:
        """Note the exception that ends a block: Ctrl-C ends it as usual, which the caller does; others end the run."""
        run = self.runs[name]
        if isinstance(error, KeyboardInterrupt):
            run.interrupt(error)
            return True
        run.outcome = error if isinstance(error, DistsgdError) else TaskFailed(first_line(error))
        run.abandoned, self.states[name] = True, "left"
        run.handoff.leave()
        run.finish()
        return False
