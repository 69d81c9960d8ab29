"""Servers and sessions of the tasks of a run: thread pools, and limits of time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..cluster.cluster import Cluster
from ..cluster.task_spec import Addresses
from ..errors import UserError, WaitTimeout
from ..lazy import tf
from ..waiting import reachable, wait_until

# What the runtime does to the graph of a call before its first time, in that order. All that it knows takes twice as
# long, for each of some ten calls of a task, most of which are a handful of operations; rounds gain nothing by it.
OPTIMIZERS = ("pruning", "function", "constfold", "arithmetic", "layout", "remap", "dependency")

BUILD_SECONDS = 30.0  # at least, for a graph to be built or sent


def build_seconds(wait_seconds: float) -> float:
    """For a graph to be built or sent: the limit of waits for other machines may be less than that takes."""
    return max(BUILD_SECONDS, wait_seconds)


def session_config(cluster: Cluster, devices: int, inter_op: int) -> Any:
    """Thread pools of one task, so that the tasks of one machine share its cores.

    Args:
        cluster: where the run is.
        devices: of a worker.
        inter_op: operations that may be under way at once.
    """
    cores = len(os.sched_getaffinity(0))
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": devices},
        intra_op_parallelism_threads=max(1, cores // cluster.workers_here),
        inter_op_parallelism_threads=inter_op,
        allow_soft_placement=True,
    )
    config.experimental.disable_thread_spinning = True  # an idle task leaves the core to those that work
    return config


def start_server(addresses: Addresses, job_name: str, index: int, config: Any) -> Any:
    """The server of a task, on its port of all interfaces; `UserError` if it cannot have that port."""
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
    """A session whose calls end after `call_seconds`, and which is closed when nobody has it any more."""

    class Session(tf.compat.v1.Session):
        def __del__(self):
            # Closing tells peers, which may have gone already: nobody should wait for that.
            threading.Thread(target=super().__del__, daemon=True).start()

    # A process that is stopped still accepts connections: making a session there has no end of its own.
    config.operation_timeout_in_ms = round(1000 * call_seconds)
    rewrites = config.graph_options.rewrite_options
    rewrites.optimizers[:] = OPTIMIZERS
    rewrites.experimental_disable_compressed_tensor_optimization = True  # lest zeros are kept for ever, as constants
    return Session(target, graph=graph, config=config)


def connector(
    target: str, graph: Any, config: Any, hosts: Sequence[str], call_seconds: float
) -> Callable[[float], Any]:
    """A function that opens a session, given how many seconds to wait for the `hosts` that it needs."""

    def connect(seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        for host in hosts:
            wait_until(lambda host=host: reachable(host), max(0.0, deadline - time.monotonic()), lambda h=host: h)
        made: list[Any] = []

        def make() -> None:
            made.append(open_session(target, graph, config, call_seconds))

        maker = threading.Thread(target=make, daemon=True)  # if a host goes away now, it waits for ever
        maker.start()
        maker.join(max(1.0, deadline - time.monotonic()))
        if not made:
            raise WaitTimeout(f"waited {seconds:g} s for a session with {', '.join(hosts)}")
        return made[0]

    return connect
