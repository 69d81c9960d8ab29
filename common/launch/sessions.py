"""Servers and sessions of the tasks of a run: thread pools and time limits."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from ..cluster.cluster import Cluster
from ..cluster.task_spec import Addresses
from ..errors import UserError
from ..lazy import tf
from ..system import usable_cores
from ..tasks.calls import Connect
from ..tasks.job import Job
from ..waiting import awake, reachable, wait_until

# The runtime's optimizations of the graph of a call before its first execution, in that order. All that it has would
# take twice as long, for each of some ten calls of a task, most of them a handful of operations, and speed up no round.
OPTIMIZERS = ("pruning", "function", "constfold", "arithmetic", "layout", "remap", "dependency")

BUILD_SECONDS = 30.0  # lower bound of the limit for a graph to be built or sent


def build_seconds(wait_seconds: float) -> float:
    """Return the time limit for building or sending a graph, which may take longer than waits for other machines."""
    return max(BUILD_SECONDS, wait_seconds)


def session_config(cluster: Cluster, devices: int, inter_op: int) -> Any:
    """Return a session configuration with thread pools such that the tasks of one machine share its cores.

    Args:
        cluster: the machines of the run.
        devices: number of CPU devices of a worker.
        inter_op: number of operations that may run at once.
    """
    cores = usable_cores()
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": devices},
        intra_op_parallelism_threads=max(1, cores // cluster.workers_here),
        inter_op_parallelism_threads=inter_op,
        allow_soft_placement=True,
    )
    config.experimental.disable_thread_spinning = True  # an idle task leaves its core to busy tasks
    return config


def start_server(addresses: Addresses, job_name: str, index: int, config: Any) -> Any:
    """Start and return the server of a task, on its port of all interfaces; raises `UserError` if the port is taken."""
    try:
        return tf.distribute.Server(addresses.as_dict(), job_name, index, config=config)
    except tf.errors.UnknownError as error:
        address = addresses.of(job_name, index)
        slurm = " Submit the Slurm job again, or reserve ports: srun --resv-ports=<tasks per node>."
        raise UserError(
            f"{job_name} {index} cannot listen on the port of {address}: is it taken by another program, or is this "
            f"task running already?{slurm if os.environ.get('SLURM_STEP_ID') else ''} ({str(error).splitlines()[0]})"
        ) from None


def open_session(target: str, graph: Any, config: Any, call_seconds: float) -> Any:
    """Return a session whose calls end after `call_seconds`, and which closes with its last reference."""

    class Session(tf.compat.v1.Session):
        def __del__(self):
            # Close in a thread of its own. Closing notifies the peers, which may have ended already; it would block.
            threading.Thread(target=super().__del__, daemon=True).start()

    # Limit all calls. A stopped process still accepts connections, so a session with it would wait for ever.
    config.operation_timeout_in_ms = round(1000 * call_seconds)
    rewrites = config.graph_options.rewrite_options
    rewrites.optimizers[:] = OPTIMIZERS
    rewrites.experimental_disable_compressed_tensor_optimization = True  # it would keep zeros as constants for ever
    return Session(target, graph=graph, config=config)


def connect_worker(
    job: Job, graph: Any, index: int, target: str, addresses: Addresses, inter_op: int
) -> tuple[Any, Connect | None]:
    """Open the session of a worker with the ps tasks, or with all workers where these send to each other.

    Args:
        job: the run.
        graph: the graph that the session runs.
        index: number of the worker.
        target: address of the worker's own server.
        addresses: addresses of all tasks.
        inter_op: number of operations that may run at once.

    Returns:
        the session, and the function that opens another. Without a ps that is None, and the session lasts for the run:
        a new one would wait for a worker that was lost.
    """
    config = session_config(job.cluster, job.devices_per_worker, inter_op)
    config.device_filters.extend(["/job:ps", f"/job:worker/task:{index}"] if job.ps else ["/job:worker"])
    hosts = addresses.ps if job.ps else addresses.worker
    connect = connector(target, graph, config, hosts, build_seconds(job.cluster.wait_seconds))
    return connect(job.cluster.wait_seconds), connect if job.ps else None


def connector(target: str, graph: Any, config: Any, hosts: Sequence[str], call_seconds: float) -> Connect:
    """Return a function that opens a session, given the seconds to wait for the `hosts` that it needs."""

    def connect(seconds: float) -> Any:
        deadline = awake.now() + seconds
        for host in hosts:
            wait_until(lambda host=host: reachable(host), max(0.0, deadline - awake.now()), lambda h=host: h)
        sessions: list[Any] = []

        def make() -> None:
            sessions.append(open_session(target, graph, config, call_seconds))

        maker = threading.Thread(target=make, daemon=True)  # it waits for ever if a host ends now
        maker.start()
        left = max(1.0, deadline - awake.now())
        wait_until(lambda: bool(sessions), left, lambda: f"a session with {', '.join(hosts)}")
        return sessions[0]

    return connect
