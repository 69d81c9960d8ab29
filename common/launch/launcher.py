"""The launcher, which starts, supervises and ends the processes of a local run."""

from __future__ import annotations

import pickle
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..cards import ask, crowded, keep_off
from ..data.dataset import is_arrays, leaves
from ..data.mapped import Pickler, size_of
from ..errors import UserError
from ..files import own_folder, standard_error_to, writing
from ..messages import segments
from ..messages.codec import FLOAT_BYTES
from ..record.plot import import_ahead
from ..tasks.job import Job
from .by_value import dumps
from .client import fork_server
from .gpus import shares
from .supervisor import OnEvent, Supervision


def launch(job: Job, on_event: OnEvent, interrupted: Callable[[], object] = bool) -> None:
    """Run a job in processes until all of them have ended; `on_event` receives every event.

    Once `interrupted()` is true, the run has a limited time to end, and its failures do not count.

    Raises:
        DistsgdError: the first failure, with the task's name and the last lines of its log.
    """
    logs = job.run_dir / "logs"
    with writing(logs):
        own_folder(logs)
    names = task_names(job)
    check_descriptors(job, len(names), logs)
    answer = ask() if (sharing := shares(job)) else list  # the tool needs a second, while TensorFlow is imported
    threading.Thread(target=import_ahead, daemon=True).start()  # the plot of the end needs it: import it meanwhile
    with fork_server(job.cluster.isolation, job.kernels, logs) as server:
        on_event({"event": "network", "state": server.network})
        if used := server.kernels or job.kernels.name:
            on_event({"event": "kernels", "used": used, "why": job.kernels.why})
        for line in crowded(answer(), sharing, in_process=False):
            on_event({"event": "warning", "message": line})
        with tempfile.TemporaryDirectory(dir=server.folder.name) as scratch:
            if ("evaluator", 0) in names:
                job = replace(job, graph_file=Path(scratch) / "worker.graph")
            if job.script is not None:
                job = replace(job, script=replace(job.script, folder=Path(scratch)))
            task = job.cluster.task
            supervision = Supervision(server, names, job.cluster, job.restarts, logs, on_event)
            path = write(job, Path(scratch))
            try:
                addresses = asdict(task.addresses) if task else None
                further = job.options.recovery.signals
                server.start(job=str(path), tasks=names, logs=str(logs.resolve()), addresses=addresses, signals=further)
                supervision.run(interrupted)
            finally:
                supervision.end()


def check_descriptors(job: Job, tasks: int, logs: Path) -> None:
    """Raise `UserError` if the tasks may run out of file descriptors, of which shared memory takes some."""
    need, limit = segments.needed(tasks), segments.allowed()
    if limit >= need or job.transport != "memory":
        return
    with standard_error_to(logs / "launcher.log"):  # where TensorFlow, first imported here, prints its messages
        if "tensorflow" not in sys.modules:
            keep_off()
        size = job.recipe.flat().size
    if FLOAT_BYTES * size < segments.SHARED_BYTES:
        return
    raise UserError(
        f"{tasks} tasks that share memory need up to {need} file descriptors each, and {limit} are allowed here: raise "
        f"the limit (ulimit -n {need}), or use --transport sockets"
    )


def task_names(job: Job) -> list[tuple[str, int]]:
    """Return the tasks of a run that are started here."""
    if job.cluster.task is not None:
        return job.cluster.task.tasks()
    return job.cluster.placement.tasks(job.ps, job.cluster.workers)


def write(job: Job, folder: Path) -> Path:
    """Write the job to a file, and return its path: first the parts that all children share, then the rest.

    The children share plain arrays, and the module of the algorithm if it is part of this package. All else is loaded
    in each child: the modules that it needs may start threads, and the fork server must have only one.
    """
    arrays = [data if is_arrays(data) and _is_plain(data) else None for data in (job.train, job.test)]
    rest = replace(
        job,
        train=job.train if arrays[0] is None else None,
        test=job.test if arrays[1] is None else None,
        run_dir=job.run_dir.resolve(),  # a warm fork server may have been started in another folder
    )
    module = type(job.scheme).__module__
    module = module if module.split(".")[0] == __name__.split(".")[0] else None
    path = folder / "job.pkl"
    blob = pickle.dumps(dict(job.recipe.settings)) + dumps(rest)  # see `unpickled`
    size = len(blob) + size_of(*(leaf for part in arrays if part is not None for leaf in leaves(part)))
    with writing(path, f"data and model for the tasks, {size / 1e6:.1f} MB"), path.open("wb") as file:
        Pickler(file, protocol=5).dump((*arrays, module, blob))
    return path


def _is_plain(data: Any) -> bool:
    """Return True for arrays that NumPy reads from a pickle without other modules."""
    return all(type(leaf).__module__.split(".")[0] == "numpy" for leaf in leaves(data))
