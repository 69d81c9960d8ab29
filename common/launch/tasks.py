"""The tasks of a run: parameter server, worker, evaluator; and all of them as threads of one process.

A task receives a `Job` and its own index, and reports events by calling `report(**event)`. It does not depend on how
the addresses were found.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..cluster.member import Member
from ..cluster.membership import Membership, announce_death, membership
from ..cluster.task_spec import Addresses, TaskSpec
from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from ..tasks.evaluator import Evaluator
from ..tasks.graph import TaskGraph
from ..tasks.job import CHIEF, Job
from ..tasks.precision import arithmetic, precision
from ..tasks.worker_loop import WorkerLoop
from ..waiting import awake, reachable, wait_until
from .gpus import report_devices
from .here import run_here
from .launched import INTER_OP, Launched
from .script import follow_joins, run_script, script_of
from .sessions import build_seconds, connect_worker, connector, open_session, session_config, start_server

ANSWER_SECONDS = 0.05  # for which a ps stays after its end, so that the evaluator receives its answer

LOOK_SECONDS = 5.0  # between two polls of a ps for reachable workers


@contextmanager
def joined(job: Job, task: tuple[str, int], report: Report) -> Iterator[tuple[Report, Membership | None]]:
    """Join the membership of a run on several machines, and yield it with the function for all further reports."""
    if job.cluster.task is None:
        yield report, None
        return
    with membership(member(job, job.cluster.task, task), report) as own_membership:
        job.earlier_step_targets = own_membership.earlier_step_targets
        yield own_membership.report, own_membership


def member(job: Job, spec: TaskSpec, task: tuple[str, int]) -> Member:
    """Return a task of a job as a member, known to the tasks on other machines."""
    return Member(
        spec=spec,
        task=task,
        identity=job.identity,
        program=job.program,
        restarts=job.restarts,
        earlier_step_targets=job.earlier_step_targets,
    )


def run_ps(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Serve until the evaluator announces the end of the run, or no worker has been reachable for long."""
    from ..messages.ops import end_queue

    server = start_server(addresses, "ps", index, _config(job, 4))
    report(event="listening")
    with joined(job, ("ps", index), report):
        if job.cluster.task is not None:
            return  # the end of the membership is the end of the run
        with tf.Graph().as_default() as graph, tf.device(f"/job:ps/task:{index}/device:CPU:0"):
            end = end_queue(index).dequeue()
        wait_seconds = job.cluster.wait_seconds
        filters = tf.compat.v1.ConfigProto(device_filters=[f"/job:ps/task:{index}"])
        session = open_session(server.target, graph, filters, build_seconds(wait_seconds))
        last_reachable = awake.now()
        while not _ended(session, end):
            if any(reachable(host) for host in addresses.worker):
                last_reachable = awake.now()
            elif awake.now() - last_reachable > wait_seconds:
                raise WaitTimeout(f"no worker has been reachable for {wait_seconds:g} s")
        time.sleep(ANSWER_SECONDS)


def _config(job: Job, inter_op: int) -> Any:
    return session_config(job.cluster, job.devices_per_worker, inter_op)


def _ended(session: Any, end: Any) -> bool:
    """Wait for up to `LOOK_SECONDS`; returns True once the evaluator has announced the end of the run."""
    try:
        session.run(end, options=tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * LOOK_SECONDS)))
    except tf.errors.DeadlineExceededError:
        return False
    return True


def run_worker(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Build the graph of one worker, wait for the others, run all rounds."""
    if job.script is not None:
        server = start_server(addresses, "worker", index, _config(job, INTER_OP))
        report_devices(job, index, report)
        with precision(job), joined(job, ("worker", index), report) as (report, own_membership):
            report(event="arithmetic", **arithmetic(job))
            run_script(Launched(job, job.script, addresses, index, server.target, report, own_membership))
            if own_membership is not None:
                own_membership.post(script_of(index), {"ended": True})
        return
    server = start_server(addresses, "worker", index, _config(job, 2))
    report_devices(job, index, report)
    with precision(job), joined(job, ("worker", index), report) as (report, own_membership):
        report(event="arithmetic", **arithmetic(job))
        graph = _worker_graph(job, index)
        session, connect = connect_worker(job, graph.graph, index, server.target, addresses, inter_op=2)
        silent = None if own_membership is None else own_membership.heartbeat.silent
        loop = WorkerLoop(job, session, graph, index, report, connect, silent)
        loop.prepare()
        loop.join()
        report(event="ready")
        loop.await_others()
        loop.run()
        loop.await_end()


def _worker_graph(job: Job, index: int) -> TaskGraph:
    """Return the worker's graph: loaded from the evaluator's file if the job has one, else built here."""
    path = job.shared_graph
    if path is None:
        return TaskGraph(job, [index])
    # The launcher reports an evaluator that dies or hangs. Wait longer for a restarted one, which builds once more.
    limit = build_seconds(job.cluster.wait_seconds) * job.restarts.patience
    wait_until(path.exists, limit, lambda: "evaluator-0, which builds the graph of all workers: is it short of CPU?")
    return TaskGraph.load(job, index, path)


def run_evaluator(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Follow the center from outside the cluster, as a client of the first ps."""
    with precision(job), joined(job, ("evaluator", index), report) as (report, own_membership):
        if job.script is None:
            return _evaluate(job, addresses, report)
        follow_joins(job, job.script, lambda job, report: _evaluate(job, addresses, report), report, own_membership)


def _evaluate(job: Job, addresses: Addresses, report: Report) -> None:
    wait_seconds = job.cluster.wait_seconds
    model = job.recipe.flat()
    if job.shared_graph is not None:  # the evaluator needs the Keras model anyway, the workers do not
        whole = TaskGraph(job, [CHIEF], model)
        whole.export(job.shared_graph)
        graph = whole.without_workers()
    else:
        graph = TaskGraph(job, model=model)
    hosts, filters = (addresses.ps, "/job:ps") if job.ps else (addresses.worker[:1], "/job:worker/task:0")
    config = tf.compat.v1.ConfigProto(device_filters=[filters])
    connect = connector(f"grpc://{hosts[0]}", graph.graph, config, hosts, build_seconds(wait_seconds))
    Evaluator(job, connect(wait_seconds), graph, report, connect).follow()


def run_death_notice(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Notify the other machines that a task of this one was killed, as the task itself could not."""
    if (spec := job.cluster.task) is not None:
        announce_death(member(job, spec, spec.tasks()[index]))


TASKS = {
    "ps": run_ps,
    "worker": run_worker,
    "evaluator": run_evaluator,
    # The only task of a run started from the command line.
    "threads": lambda job, addresses, index, report: run_here(job, report),
    "simulation": lambda job, addresses, index, report: run_here(job, report),
    "death_notice": run_death_notice,
}
