"""What each task of a run does: parameter server, worker, evaluator; and all of them as threads of one process.

A task is given a `Job`, knows its own place, and reports what it sees by calling `report(**event)`. It cannot tell
how the addresses were found.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .cluster import Addresses
from .errors import UserError, WaitTimeout
from .evaluator import END_SECONDS, Evaluator
from .graph import TaskGraph
from .job import CHIEF, REPAIR_WAITS, Job, Report
from .loop import WorkerLoop
from .meeting import bury, meeting
from .models import FlatModel
from .waiting import reachable, wait_until

ANSWER_SECONDS = 0.05  # a ps stays so long after its end, for the evaluator to have its answer
LOOK_SECONDS = 5.0  # a ps looks so often whether anybody is still there
BUILD_SECONDS = 30.0  # at least, for a graph to be built or sent
TURN_SECONDS = 0.0005  # between two looks at a scripted interleaving: a turn takes about a millisecond


# Processes: one task each.


def _session(job: Job, target: str, graph: Any, config: Any) -> Any:
    """A session whose calls all have an end, and which is closed when nobody has it any more."""
    import tensorflow as tf

    class Session(tf.compat.v1.Session):
        def __del__(self):
            # Closing tells peers, which may have gone already: nobody should wait for that.
            threading.Thread(target=super().__del__, daemon=True).start()

    # A process that is stopped still accepts connections: making a session there has no end of its own.
    config.operation_timeout_in_ms = round(1000 * _build_seconds(job))
    return Session(target, graph=graph, config=config)


def _build_seconds(job: Job) -> float:
    """For a graph to be built or sent: the limit of waits for other machines may be less than that takes."""
    return max(BUILD_SECONDS, job.cluster.wait_seconds)


def _connector(job: Job, target: str, graph: Any, config: Any, hosts: Sequence[str]) -> Callable[[float], Any]:
    """A function that makes a session, given how long to wait for the hosts that it needs."""

    def connect(seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        for host in hosts:
            wait_until(lambda host=host: reachable(host), max(0.0, deadline - time.monotonic()), lambda h=host: h)
        made: list[Any] = []
        # Making a session waits for ever if a host goes away now.
        maker = threading.Thread(target=lambda: made.append(_session(job, target, graph, config)), daemon=True)
        maker.start()
        maker.join(max(1.0, deadline - time.monotonic()))
        if not made:
            raise WaitTimeout(f"waited {seconds:g} s for a session with {', '.join(hosts)}")
        return made[0]

    return connect


def _config(job: Job, inter_op: int) -> Any:
    """Thread pools of one task, so that the tasks of one machine share its cores."""
    import tensorflow as tf

    cores = len(os.sched_getaffinity(0))
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": job.towers},
        intra_op_parallelism_threads=max(1, cores // job.cluster.workers_here),
        inter_op_parallelism_threads=inter_op,
        allow_soft_placement=True,
    )
    if not job.uses_ps:
        config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    config.experimental.disable_thread_spinning = True  # an idle task leaves the core to those that work
    return config


def _server(job: Job, addresses: Addresses, job_name: str, index: int, inter_op: int) -> Any:
    """The server of a task, on its port of all interfaces."""
    import tensorflow as tf

    try:
        return tf.distribute.Server(addresses.as_dict(), job_name, index, config=_config(job, inter_op))
    except tf.errors.UnknownError as error:
        address = addresses.of(job_name, index)
        slurm = " Submit the Slurm job again, or reserve ports: srun --resv-ports=<tasks per node>."
        raise UserError(
            f"{job_name} {index} cannot listen on the port of {address}: is it taken by another program, or is this "
            f"task running already?{slurm if os.environ.get('SLURM_STEP_ID') else ''} ({str(error).splitlines()[0]})"
        ) from None


def run_ps(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """Serve until the evaluator says that the run has ended, or no worker has been there for long."""
    import tensorflow as tf

    from .parameter_server import end_queue

    server = _server(job, addresses, "ps", index, 4)
    report(event="listening")
    with meeting(job, ("ps", index), report):
        if job.cluster.place is not None:
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
    if (place := job.cluster.place) is not None:
        bury(job, place, place.tasks()[index])


TASKS = {"obituary": run_obituary, "ps": run_ps, "worker": run_worker, "evaluator": run_evaluator}


# Threads: all tasks in one process.


def run_threads(job: Job, report: Report, model: FlatModel | None = None) -> Evaluator:
    """Workers as threads of this process, on one direct session; returns the evaluator at the end."""
    import tensorflow as tf

    workers = range(job.cluster.workers)
    graph = TaskGraph(job, workers, model)
    config = _config(job, max(2, len(workers)))
    config.graph_options.place_pruned_graph = True  # each call prepares only what it runs: a third of the start-up
    session = tf.compat.v1.Session(graph=graph.graph, config=config)
    loops = [WorkerLoop(session, graph, k, report) for k in workers]
    for loop in loops:
        loop.prepare()
    crew = Crew(loops, scripted=bool(job.schedule))
    try:
        for number, worker in enumerate(job.schedule, 1):
            crew.give_turn(worker, number)
        evaluator = Evaluator(session, graph, report)
        evaluator.follow(stopped=lambda: bool(crew.failures))
    finally:
        crew.leave()
    return evaluator


class Crew:
    """The threads of all workers, running freely or, if scripted, each only when it is given a turn."""

    def __init__(self, loops: Sequence[WorkerLoop], scripted: bool):
        self.loops, self.scripted = loops, scripted
        self.failures: list[BaseException] = []
        self.turns = [threading.Semaphore(0) for _ in loops]
        self.threads = [threading.Thread(target=self._run, args=(loop,), daemon=True) for loop in loops]
        for thread in self.threads:
            thread.start()

    def _run(self, loop: WorkerLoop) -> None:
        def turn() -> None:
            if self.scripted:
                self.turns[loop.index].acquire()
            if self.failures:
                raise self.failures[0]

        try:
            loop.run(turn)
        except BaseException as error:  # raised again in the thread that made the crew
            self.failures.append(error)

    def give_turn(self, worker: int, number: int) -> None:
        """Let a worker do one round; returns when its message, the `number`-th of all, is on the ps."""
        first = self.loops[0]
        self.turns[worker].release()
        wait_until(
            lambda: bool(self.failures) or first.session.run(first.ops["recorded"]) >= number,
            first.wait_seconds,
            lambda: f"worker {worker}, turn {number} of the schedule",
            TURN_SECONDS,
        )

    def leave(self) -> None:
        """End the session, wait for the threads; raise what went wrong in one of them before that."""
        failed = list(self.failures)
        self.loops[0].session.close()  # wakes those that wait at a barrier; their complaints come too late to count
        if self.scripted and failed:
            for turn in self.turns:
                turn.release()
        for thread, loop in zip(self.threads, self.loops, strict=True):
            thread.join(max(END_SECONDS, loop.saving_seconds))
            if thread.is_alive() and loop.saving_seconds:
                loop.report(event="warning", message="no checkpoint of the end: it could not be written to its end")
        if failed:
            raise failed[0]


def run_all_as_threads(job: Job, addresses: Addresses, index: int, report: Report) -> None:
    """The threads back end as the one task of a run started from the command line."""
    del addresses, index
    run_threads(job, report)


TASKS["threads"] = run_all_as_threads
