"""The execution of a script by the tasks of a run: each worker runs it, and the evaluator follows its joins."""

from __future__ import annotations

import errno
import pickle
import runpy
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..cluster.cluster import Cluster
from ..cluster.membership import Membership
from ..contract.rounds import ENDLESS
from ..contract.scheme import Scheme
from ..errors import DistsgdError, Interrupted, TaskFailed, TaskLost, UserError
from ..kernels import choose
from ..lazy import tf
from ..packages import remedy
from ..record.run_directory import new_run_dir
from ..reports import Report
from ..system import usable_cores
from ..tasks.interruption import reason_to_stop
from ..tasks.job import CHIEF, Job, Script, config_before
from ..tasks.options import RunOptions
from ..waiting import POLL_SECONDS
from ..worker.parameters import Parameters
from .launched import Launched
from .terms import USAGE, names_of_joins, of_later_join, place_of_terms

LINES = 8  # of the standard error of a script, in an error

MOST_PENDING = 1 << 16  # characters of a line of a script that has not ended

UNREACHABLE = (errno.ENETUNREACH, socket.EAI_AGAIN, socket.EAI_NONAME)

MOST_CHARACTERS = 1500  # of the traceback of a script in an error


class Undecided(Scheme):
    """The algorithm of a script, until worker 0 joins."""

    name = "launch"


def script_job(script: Script, cluster: Cluster, options: RunOptions) -> Job:
    """Return the job of a script, without the algorithm and the parameters, which are known after `join`."""
    nothing, task = Parameters([], np.zeros(0, np.float32)), cluster.task
    if task is not None and task.separate_evaluator:
        raise UserError("launch has the evaluator beside worker 0: leave the evaluator task out of the cluster")
    if task is not None and options.recovery.min_workers is not None:
        raise UserError("launch on several machines needs all workers: leave --min-workers out")
    if script.records_gradients and (task is not None or options.recovery.resume is not None):
        raise UserError(
            "--record gradients records all steps of a run, on one machine: leave out --resume and the hosts"
        )
    run_dir = (options.run_dir or new_run_dir(script.path.stem)) / ("" if cluster.evaluates else str(task))
    kernels = choose(options.kernels, None, config_before(options.recovery.resume or run_dir).get("kernels"))
    return Job(Undecided(), nothing, script_data, None, cluster, options, ENDLESS, run_dir, kernels, script=script)


def script_data(context: Any) -> Any:
    """Stand for the data of a run, which the script reads itself."""
    raise NotImplementedError


class Echo:
    """The output of a script: the log of its task, and each line for a function.

    Of a line that was overwritten after a carriage return, as progress bars do, the function receives the last state.

    Args:
        log: the log.
        on_line: receives each line.
    """

    def __init__(self, log: Any, on_line: Callable[[str], object]):
        self.log, self.on_line, self.line = log, on_line, ""

    def write(self, text: str) -> int:
        """Write a text to the log, and pass on its complete lines."""
        *lines, rest = (self.line + text).split("\n")
        for line in lines:
            self.on_line(line.rstrip("\r").rpartition("\r")[2])
        self.line = rest[-MOST_PENDING:]
        return self.log.write(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Write each of the texts."""
        self.write("".join(texts))

    def __getattr__(self, name: str) -> Any:
        """Return what else a script may need, such as `fileno` and `buffer`: that of the log."""
        return getattr(self.log, name)


def script_of(worker: int) -> str:
    """Return the name of the note that the script of a worker has ended, for tasks on other machines."""
    return f"the script of worker {worker}"


def run_script(launched: Launched) -> None:
    """Execute the script of a worker task, as Python does.

    Raises:
        TaskFailed: the script raised an exception, which the message shows with its traceback.
        UserError: the script has not joined.
    """
    Launched.current, script = launched, launched.script
    tf.config.threading.set_intra_op_parallelism_threads(max(1, usable_cores() // launched.job.cluster.workers_here))
    sys.argv, sys.path = [str(script.path), *script.arguments], [str(script.path.parent), *sys.path]
    errors: deque[str] = deque(maxlen=LINES)
    echo = Echo(sys.stdout, lambda line: launched.report(event="printed", text=line))
    sys.stderr = Echo(sys.stderr, errors.append)
    if launched.index == CHIEF:
        sys.stdout = echo
    name, ended = script.path.name, "ended"
    try:
        runpy.run_path(str(script.path), run_name="__main__")
    except DistsgdError:
        raise
    except Interrupted:
        return
    except SystemExit as end:
        ended = f"ended by sys.exit({end.code!r})"
        if isinstance(end.code, int) and end.code:  # such as argparse, which has printed the reason
            raise TaskFailed("\n".join([f"{name} {ended}", *errors])) from None
        if end.code:
            raise TaskFailed(f"{name}: {end.code}") from None
    except BaseException as error:
        raise TaskFailed(f"{name} failed\n{_traceback(error, script)}{remedy(error)}{of_network(error)}") from error
    finally:
        echo.write("\n" if echo.line else "")  # a last line may have no newline
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


def of_network(error: BaseException | None) -> str:
    """Return a line on the private network for an exception of a script that has not reached the internet from it."""
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        return ""
    while error is not None:
        if isinstance(error, OSError) and error.errno in UNREACHABLE:
            return "\nThe processes have a private network, without the internet: start launch with --isolation off"
        error = error.__cause__ or error.__context__
    return ""


def follow_joins(
    job: Job, script: Script, follow: Callable[[Job, Report], None], report: Report, membership: Membership | None
) -> None:
    """Follow the run of each join in a thread; raises the first failure.

    On several machines (with a `membership`) returns when all scripts have ended, else the launcher ends this.
    """
    sys.path.insert(0, str(script.path.parent))  # the algorithm may be in a module beside the script
    failures: list[BaseException] = []
    threads: dict[str, threading.Thread] = {}
    scripts = [script_of(k) for k in range(job.cluster.workers)]

    def follow_one(name: str) -> None:
        try:
            with place_of_terms(script, name).open("rb") as file:
                agreed = pickle.load(file)
                sys.path += [folder for folder in pickle.load(file) if folder not in sys.path]  # of the script
                terms = pickle.load(file)
            follow(terms.job(job, name), report if agreed["is_first"] else of_later_join(report, name))
        except BaseException as error:  # raised again in the thread that started this one
            failures.append(error)

    while not failures:
        for name in set(names_of_joins(script)) - threads.keys():
            threads[name] = threading.Thread(target=follow_one, args=(name,), daemon=True)
            threads[name].start()
        time.sleep(POLL_SECONDS)
        if membership is None or failures or any(thread.is_alive() for thread in threads.values()):
            continue
        if all(map(membership.posted, scripts)):
            if (reason := reason_to_stop(job, lambda: 0, {})) is not None:
                raise TaskLost(f"the run was stopped: {reason}")
            return
    raise failures[0]
