"""`join`: a run whose workers are scripts, which take the gradients in loops of their own.

A worker task executes the script. At `join` it builds the graph and the session of a worker beside the script's eager
TensorFlow, and runs the rounds in a thread: the graph of a round passes each point to the script, and waits for the
gradient. The algorithm and the parameters are known when worker 0 joins: it writes them to a file, for the evaluator
and for the other workers, which must agree.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import pickle
import re
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from ..arguments import at_most
from ..cluster.cluster import Cluster
from ..cluster.fingerprint import class_digest, in_words
from ..cluster.task_spec import Addresses
from ..contract.checks import check_kind, check_update
from ..contract.rounds import ENDLESS
from ..contract.scheme import Scheme
from ..errors import DistsgdError, TaskFailed, UserError
from ..files import own_folder, replacing, write_json, writing
from ..lazy import tf
from ..messages.structure import Structure
from ..record.run_directory import new_run_dir
from ..record_format import read_arrays
from ..reports import Report
from ..tasks.calls import ObserverCalls
from ..tasks.graph import TaskGraph
from ..tasks.handoff import Handoff
from ..tasks.job import CHIEF, Job, Script, checked, describe
from ..tasks.options import RunOptions
from ..tasks.script_loop import LOOK_SECONDS, ScriptLoop
from ..waiting import POLL_SECONDS, reachable
from ..worker.parameters import Parameters
from .sessions import build_seconds, connector, session_config

MOST_CHARACTERS = 1500  # of the traceback of a script in an error

# Events of faults of workers. The record has the versions and restorations of one center, that of the first join.
OF_WORKERS = ("warning", "evicted", "silent", "refused", "rejoined", "lost")

USAGE = "with distsgd.join(DiLoCo(), variables) as worker"

MOST_JOINS = 4

INTER_OP = 3 + MOST_JOINS  # threads of a worker: one for each join waits for the script


class Undecided(Scheme):
    """The algorithm of a script, until worker 0 joins."""

    name = "launch"


def script_job(script: Script, cluster: Cluster, options: RunOptions) -> Job:
    """Return the job of a script, without the algorithm and the parameters, which are known after `join`."""
    nothing = Parameters([], np.zeros(0, np.float32))
    run_dir = options.run_dir or new_run_dir(script.path.stem)
    return Job(Undecided(), nothing, script_data, None, cluster, options, ENDLESS, run_dir, script=script)


def script_data(context: Any) -> Any:
    """Stand for the data of a run, which the script reads itself."""
    raise NotImplementedError


def describe_script(job: Job, script: Script) -> dict[str, Any]:
    """Return the configuration of a run of a script."""
    size = len(job.recipe.flat().pack())
    known = describe(job, dataset=script.path.name, model=f"{size:,} parameters" if size else "own loop")
    return {name: value for name, value in known.items() if name not in ("batch_size", "steps_per_worker")}


@dataclass(frozen=True)
class Terms:
    """The algorithm and the parameters of a run: those of worker 0, with which the others must agree."""

    scheme: Scheme
    shapes: list[tuple[int, ...]]
    initial: np.ndarray

    def job(self, job: Job, name: str = "", **how: Any) -> Job:
        """Return the job of a script with this algorithm and these parameters; `UserError` if it cannot be run."""
        check_kind(self.scheme, USAGE)
        at_most(len(self.initial), ps=job.cluster.ps)
        # All ps tasks have been started by now. An algorithm without a parameter server leaves them idle.
        cluster = job.cluster if self.scheme.sync.uses_ps else replace(job.cluster, ps=1)
        scheme = checked(self.scheme, job.train, cluster, job.options)
        if job.recovery.max_restarts and scheme.sync.is_collective:
            raise UserError(
                f"{scheme.name} cannot restart a worker, as it has no parameter server: leave --max-restarts out"
            )
        check_update(scheme, in_process=False)
        parameters = Parameters(self.shapes, self.initial, **how)
        job = replace(job, scheme=scheme, recipe=parameters, cluster=cluster, prefix=name, run_dir=job.run_dir / name)
        job.plan.check()
        return job

    def in_common(self) -> dict[str, str]:
        """Return the properties that must agree, in words."""
        own = ", ".join(f"{field.name}={in_words(getattr(self.scheme, field.name))}" for field in fields(self.scheme))
        algorithm = f"{type(self.scheme).__name__}({own}) {class_digest(type(self.scheme))}".rstrip()
        return {"algorithm": algorithm, "shapes of variables": str(self.shapes)}


def _place(job: Job, name: str) -> Path:
    """Return the path of the file in which worker 0 leaves the terms of a join."""
    return Path(str(job.graph_file)).with_name(f"terms-{name}.pkl")


def follow_joins(job: Job, script: Script, follow: Callable[[Job, Report], None], report: Report) -> None:
    """Follow the run of each join in a thread, until the launcher ends this task; raises the first failure."""
    sys.path.insert(0, str(script.path.parent))  # the algorithm may be in a module beside the script
    failures: list[BaseException] = []
    seen: set[Path] = set()

    def follow_one(path: Path) -> None:
        try:
            with path.open("rb") as file:
                agreed, terms = pickle.load(file), pickle.load(file)
            name = agreed["name"]
            follow(terms.job(job, name), report if agreed["is_first"] else of_later_join(report, name))
        except BaseException as error:  # raised again in the thread that started this one
            failures.append(error)

    while not failures:
        for path in set(_place(job, "").parent.glob("terms-*.pkl")) - seen:
            seen.add(path)
            threading.Thread(target=follow_one, args=(path,), daemon=True).start()
        time.sleep(POLL_SECONDS)
    raise failures[0]


def of_later_join(report: Report, name: str) -> Report:
    """Return a function that reports faults and figures: progress and result are those of the first join of a script.

    The figures have the name of the join before theirs.
    """

    def report_some(event: str, **known: Any) -> None:
        if event in OF_WORKERS:
            report(event=event, **known)
        elif event == "worker":
            figures = {
                f"{name}_{figure}": value for figure, value in known.items() if figure not in ("worker", "steps")
            }
            report(event="figures", worker=known["worker"], **figures)

    return report_some


class ScriptArrays:
    """The variables of a script: the point of the next gradient is written into them.

    Args:
        variables: `tf.Variable`s, Keras variables, NumPy arrays or PyTorch tensors, in lists, tuples and dicts, or a
            single one.
    """

    def __init__(self, variables: Any):
        variables = tf.nest.map_structure(
            lambda leaf: leaf.detach().numpy() if hasattr(leaf, "detach") else leaf, variables
        )
        self.leaves = tf.nest.flatten(variables)
        for leaf in self.leaves:
            if not hasattr(leaf, "assign") and not (isinstance(leaf, np.ndarray) and leaf.flags.writeable):
                raise UserError(
                    "variables must be TensorFlow or Keras variables, or NumPy arrays, which join writes in place. "
                    f"Received: {type(leaf).__name__}"
                )
        self.structure = Structure(variables)
        self.values = self.vector(variables, "variables")

    def vector(self, arrays: Any, name: str) -> np.ndarray:
        """Return arrays with the structure of the variables as one vector [P], which shares no memory with them."""
        return np.concatenate([np.asarray(part) for part in self.structure.parts(arrays, name)])

    def write(self, vector: np.ndarray) -> None:
        """Write a vector [P] into the variables; none of them keeps a view of it."""
        end = 0
        for leaf, shape, dtype in zip(self.leaves, self.structure.shapes, self.structure.dtypes, strict=True):
            begin, end = end, end + math.prod(shape)
            part = vector[begin:end].reshape(shape)
            if hasattr(leaf, "assign"):
                leaf.assign(part.astype(dtype.as_numpy_dtype, copy=False))
            else:
                leaf[...] = part


class JoinedWorker:
    """This worker of a run, as a script sees it.

    Attributes:
        index: number of this worker, from 0.
        num_workers: number of workers, W.
    """

    def __init__(self, launched: Launched, scheme: Scheme, variables: Any, name: str):
        self.index, self.num_workers = launched.index, launched.job.cluster.workers
        self._run_dir = launched.job.run_dir / name
        self._arrays = ScriptArrays(variables)
        self._handoff = Handoff(len(self._arrays.values))
        terms = Terms(scheme, self._arrays.structure.shapes, self._arrays.values)
        self._loop = launched.loop(terms, name, self._handoff)
        self._thread = self._loop.begin()
        self._is_over = False
        self._arrays.write(self._handoff.point())

    def step(self, gradient: Any, loss: Any = None) -> None:
        """Make one local step, and with the last step of a round the exchange with the other workers.

        Afterwards the variables hold the point of the next gradient. If the state was restored after a fault, the
        gradient is dropped, and they hold the point from which this worker continues.

        Args:
            gradient: the gradient at the values of the variables, with their structure.
            loss: the loss of this step, for algorithms that use it; reported as by `log(loss=loss)`.

        Raises:
            UserError: the gradient does not fit the variables; nothing was done.
        """
        vector = self._arrays.vector(gradient, "gradient")
        if self._is_over:
            raise UserError("this worker has left the run: call step in the block of distsgd.join")
        if loss is not None:
            self.log(loss=loss)
        self._handoff.give(vector, 0.0 if loss is None else float(loss))
        self._arrays.write(self._handoff.point())

    def log(self, **figures: Any) -> None:
        """Report numbers such as `loss`: their means go to metrics.jsonl and to the plot.

        The numbers of a second `join` have its name before theirs: `critic_loss`.
        """
        for name, value in figures.items():
            self._loop.progress.figures[name].append(float(value))

    def center(self) -> Any:
        """Return the center, with the structure of the variables."""
        if self._is_over:
            vector = read_arrays(self._run_dir, "center.npz")["center"]
        else:
            calls = self._loop.calls
            vector = ObserverCalls(calls.session, calls.graph, calls.wait_seconds).snapshot()["center"]
        return self._arrays.structure.arrays(tf.constant(vector))

    @property
    def steps_done(self) -> int:
        """Local steps of this worker so far; with those before a restart of the worker, which count as done."""
        return self._loop.progress.steps + self._handoff.taken

    def shard(self, data: Any) -> Any:
        """Return every W-th example or batch, beginning with the one at the index of this worker.

        Args:
            data: a `tf.data.Dataset`; arrays, alone or in tuples and dicts, whose first axis is that of the examples;
                or another iterable, such as a list of batches.
        """
        if isinstance(data, tf.data.Dataset):
            return data.shard(self.num_workers, self.index)
        if isinstance(data, tuple | dict) or hasattr(data, "__array__"):
            return tf.nest.map_structure(lambda array: array[self.index :: self.num_workers], data)
        return itertools.islice(data, self.index, None, self.num_workers)

    def _leave(self) -> None:
        """End the round, wait until all workers have left, and write the center into the variables."""
        self._handoff.leave()
        self._thread.join()
        self._handoff.check()
        self._is_over = True
        self._arrays.write(read_arrays(self._run_dir, "center.npz")["center"])


@dataclass
class Launched:
    """The worker task that executes a script.

    Attributes:
        states: "joined" by the name of each join, and "left" after the end of its block.
    """

    job: Job
    script: Script
    addresses: Addresses
    index: int
    target: str
    report: Report
    states: dict[str, str] = field(default_factory=dict)

    def loop(self, terms: Terms, name: str, handoff: Handoff) -> ScriptLoop:
        """Agree with worker 0, build graph and session, and wait for the other workers."""
        job = terms.job(self.job, name, take=handoff.take)
        report = self.report if self._agree(terms, name, job) else of_later_join(self.report, name)
        graph, wait_seconds = TaskGraph(job, [self.index]), job.cluster.wait_seconds
        config = session_config(job.cluster, 1, INTER_OP)
        config.device_filters.extend(["/job:ps", f"/job:worker/task:{self.index}"] if job.uses_ps else ["/job:worker"])
        hosts = self.addresses.ps if job.uses_ps else self.addresses.worker
        connect = connector(self.target, graph.graph, config, hosts, build_seconds(wait_seconds))
        loop = ScriptLoop(job, connect(wait_seconds), graph, self.index, report, connect, handoff)
        loop.prepare()
        loop.join()
        report(event="ready")
        loop.await_others()
        return loop

    def _agree(self, terms: Terms, name: str, job: Job) -> bool:
        """Write the terms of worker 0; raise `UserError` on another worker that joins with others.

        Returns True for the first join of worker 0.
        """
        mine, place = terms.in_common(), _place(job, name)
        if self.index == CHIEF and not place.exists():
            with writing(job.run_dir):
                own_folder(job.run_dir)
            with replacing(place) as file:
                pickle.dump({"name": name, "is_first": not self.states, "terms": mine}, file)
                cloudpickle.dump(terms, file)
        self._await_terms(place, name)
        with place.open("rb") as file:
            agreed = pickle.load(file)
        for what, value in mine.items():
            if value != (theirs := agreed["terms"][what]):
                raise UserError(
                    f"all workers must join with the same {what}. Received: {value}, and {theirs} on worker 0"
                )
        if self.index == CHIEF:
            config = describe_script(job, self.script)
            if agreed["is_first"]:
                self.report(event="joined", config=config)
            else:
                write_json(job.run_dir / "config.json", config)
            for warning in job.scheme.warnings(job.cluster.workers):
                self.report(event="warning", message=warning)
        return agreed["is_first"]

    def _await_terms(self, place: Path, name: str) -> None:
        """Block until worker 0 has written its terms: its script may take any time, but must not have ended."""
        looked = seen = time.monotonic()
        while not place.exists():
            time.sleep(POLL_SECONDS)
            if (now := time.monotonic()) - looked < LOOK_SECONDS:
                continue
            looked = now
            if reachable(self.addresses.worker[CHIEF]):
                seen = now
            elif now - seen > self.job.cluster.wait_seconds and not place.exists():  # longer than a restart takes
                raise UserError(f"worker 0 has ended without a join named {name!r}")


_launched: Launched | None = None


@contextmanager
def join(scheme: Scheme, variables: Any, name: str = "") -> Iterator[JoinedWorker]:
    """Join the run of this script as one of its workers: the loop in the block makes the local steps.

    `bash run.sh launch --workers 4 my_script.py` starts the script in a process for each worker, beside the parameter
    servers. The values that the variables have on worker 0 are the first center. After `join`, and after each
    `worker.step(gradient)`, the variables hold the point of the next gradient. Leaving the block ends the last round
    early; the variables then hold the center, on every worker, and center.npz in the run directory has it.

    Args:
        scheme: the algorithm, for instance `DiLoCo(communication_period=50)`; the same on all workers.
        variables: TensorFlow or Keras variables, NumPy arrays or PyTorch tensors, in lists, tuples and dicts, or a
            single one. They are written in place.
        name: a name for each join of a script that trains several groups of variables, such as generator and critic.
            The folder of this name in the run directory then has the results of the join.

    Example:
        >>> with distsgd.join(DiLoCo(communication_period=50), variables) as worker:
        ...     for step, batch in enumerate(worker.shard(data)):
        ...         with tf.GradientTape() as tape:
        ...             loss = my_loss(batch)
        ...         worker.step(tape.gradient(loss, variables))

    Raises:
        UserError: the script was not started by `launch`, or the workers do not agree.
    """
    if _launched is None:
        raise UserError("distsgd.join needs the tasks that launch starts: bash run.sh launch --workers 4 my_script.py")
    if not re.fullmatch(r"\w*", name, re.ASCII):
        raise UserError(f"the name of a join must have letters, digits and _ alone. Received: {name!r}")
    if name in _launched.states:
        raise UserError(
            f"each join of a script needs a name of its own, as in join(..., name='critic'). Received: {name!r}"
        )
    if len(_launched.states) == MOST_JOINS:
        raise UserError(f"a script can join {MOST_JOINS} times. Received: a join named {name!r}")
    worker = JoinedWorker(_launched, scheme, variables, name)
    _launched.states[name] = "joined"
    yield worker
    worker._leave()
    _launched.states[name] = "left"


class Echo(io.TextIOBase):
    """The standard output of a script: the log of its task, and on worker 0 the display, line by line."""

    def __init__(self, log: Any, report: Report):
        self.log, self.report, self.line = log, report, ""

    def write(self, text: str) -> int:
        """Write a text to the log, and report its complete lines."""
        *lines, self.line = (self.line + text).split("\n")
        for line in lines:
            self.report(event="printed", text=line)
        return self.log.write(text)

    def end(self) -> None:
        """Report a last line that has no newline."""
        if self.line:
            self.report(event="printed", text=self.line)

    def flush(self) -> None:
        """Flush the log."""
        self.log.flush()


def run_script(launched: Launched) -> None:
    """Execute the script of a worker task, as Python does.

    Raises:
        TaskFailed: the script raised an exception, which the message shows with its traceback.
        UserError: the script has not joined.
    """
    global _launched
    _launched, script = launched, launched.script
    tf.config.threading.set_intra_op_parallelism_threads(
        max(1, len(os.sched_getaffinity(0)) // launched.job.cluster.workers_here)
    )
    sys.argv, sys.path = [str(script.path), *script.arguments], [str(script.path.parent), *sys.path]
    echo = Echo(sys.stdout, launched.report)
    if launched.index == CHIEF:
        sys.stdout = echo
    name, ended = script.path.name, "ended"
    try:
        runpy.run_path(str(script.path), run_name="__main__")
    except DistsgdError:
        raise
    except SystemExit as end:
        ended = f"ended by sys.exit({end.code!r})"
        if end.code:
            raise TaskFailed(f"{name} {ended}") from None
    except BaseException as error:
        raise TaskFailed(f"{name} failed\n{_traceback(error, script)}") from error
    finally:
        echo.end()
    if not launched.states:
        raise UserError(f"{name} {ended} without a call of distsgd.join, as in: {USAGE}")
    if "joined" in launched.states.values():
        raise TaskFailed(f"{name} {ended} before the end of the block of distsgd.join")


def _traceback(error: BaseException, script: Script) -> str:
    """Return the traceback of an exception, from the frames of the script on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != str(script.path):
        frames = frames.tb_next
    lines = "".join(traceback.format_exception(type(error), error, frames)).rstrip().splitlines(keepends=True)
    while len(lines) > 1 and sum(map(len, lines)) > MOST_CHARACTERS:
        del lines[0]
    return "".join(lines)
