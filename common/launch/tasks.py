"""What each task of a run does: parameter server, worker, evaluator; and all of them as threads of one process.

A task is given a `Job`, knows its own place, and reports what it sees by calling `report(**event)`. It cannot tell
how the addresses were found.
"""

from __future__ import annotations

import time
from typing import Any

from ..cluster.membership import bury, meeting
from ..cluster.task_spec import Addresses
from ..errors import WaitTimeout
from ..reports import Report
from ..run.evaluator import Evaluator
from ..run.graph import TaskGraph
from ..run.job import CHIEF, REPAIR_WAITS, Job
from ..run.loop import WorkerLoop
from ..waiting import reachable, wait_until
from .sessions import _build_seconds, _config, _connector, _server, _session
from .threads import run_threads

ANSWER_SECONDS = 0.05  # a ps stays so long after its end, for the evaluator to have its answer

LOOK_SECONDS = 5.0  # a ps looks so often whether anybody is still there


def run_ps(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Serve until the evaluator says that the run has ended, or no worker has been there for long."""
    import tensorflow as tf

    from ..engine.ops import end_queue

    server = _server(job, addresses, "ps", index, 4)
    report(event="listening")
    with meeting(job, ("ps", index), report):
        if job.cluster.task is not None:
            return  # the end of the meeting is the end of the run
        with tf.Graph().as_default() as graph, tf.device(f"/job:ps/task:{index}/device:CPU:0"):
            end = end_queue(index).dequeue()
        filters = tf.compat.v1.ConfigProto(device_filters=[f"/job:ps/task:{index}"])
        session = _session(job, server.target, graph, filters)
        seen = time.monotonic()
        while not _ended(session, end):
            if any(reachable(host) for host in addresses.worker):
                seen = time.monotonic()
            elif time.monotonic() - seen > job.cluster.wait_seconds:
                raise WaitTimeout(f"no worker has been reachable for {job.cluster.wait_seconds:g} s")
        time.sleep(ANSWER_SECONDS)


def _ended(session: Any, end: Any) -> bool:
    """Wait for a while; True if the evaluator has said that the run has ended."""
    import tensorflow as tf

    try:
        session.run(end, options=tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * LOOK_SECONDS)))
    except tf.errors.DeadlineExceededError:
        return False
    return True


def run_worker(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Build the graph of one worker, meet the others, run all rounds."""
    server = _server(job, addresses, "worker", index, 2)
    with meeting(job, ("worker", index), report) as report:
        graph = _worker_graph(job, index)
        config = _config(job, 2)
        first = "/job:ps" if job.uses_ps else "/job:worker/task:0"
        config.device_filters.extend([first, f"/job:worker/task:{index}"])
        hosts = addresses.ps if job.uses_ps else addresses.worker[:1]
        connect = _connector(job, server.target, graph.graph, config, hosts)
        loop = WorkerLoop(connect(job.cluster.wait_seconds), graph, index, report, connect)
        loop.prepare()
        report(event="ready")
        loop.await_others()
        loop.run()
        if not job.uses_ps and index == CHIEF:  # this task is the ps of its bookkeeping
            while not _ended(loop.session, graph.ops["await_end"]):
                pass  # should the evaluator be gone, the launcher or the meeting says so


def _worker_graph(job: Job, index: int) -> TaskGraph:
    """Taken over from the evaluator, or built here where there is nothing to take over."""
    path = job.shared_graph
    if path is None:
        return TaskGraph(job, [index])
    # Should the evaluator die or stand still, the launcher says so; if it is started again, it builds once more.
    limit = _build_seconds(job) * (REPAIR_WAITS if job.recovers else 1)
    wait_until(path.exists, limit, lambda: "evaluator-0, which builds the graph of all workers: is it short of CPU?")
    return TaskGraph.load(job, index, path)


def run_evaluator(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Follow the center from outside the cluster, as a client of the first ps."""
    import tensorflow as tf

    with meeting(job, ("evaluator", index), report) as report:
        model = job.recipe.flat()
        if job.shared_graph is not None:  # the evaluator has the Keras model anyway; the workers can do without
            TaskGraph(job, [CHIEF], model).export(job.shared_graph)
        graph = TaskGraph(job, model=model)
        host = addresses.ps[0] if job.uses_ps else addresses.worker[0]
        config = tf.compat.v1.ConfigProto(device_filters=["/job:ps" if job.uses_ps else "/job:worker/task:0"])
        connect = _connector(job, f"grpc://{host}", graph.graph, config, addresses.ps if job.uses_ps else [host])
        Evaluator(connect(job.cluster.wait_seconds), graph, report, connect).follow()


def run_obituary(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Tell the other machines that a task of this one was killed: it could not do so itself."""
    del addresses, report
    if (spec := job.cluster.task) is not None:
        bury(job, spec, spec.tasks()[index])


TASKS = {"obituary": run_obituary, "ps": run_ps, "worker": run_worker, "evaluator": run_evaluator}


def run_all_as_threads(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """The threads back end as the one task of a run started from the command line."""
    del addresses, index
    run_threads(job, report)


TASKS["threads"] = run_all_as_threads
