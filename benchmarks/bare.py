"""Many processes that have TensorFlow and do nothing with it: what no workers of their own processes can beat.

    python -m distsgd.benchmarks.bare WORKERS

After the import a ps and the workers are forked. Each worker starts a server, opens a session, adds 1 to a number on
the ps fifty times, and ends. Prints one line of JSON: {"seconds", "cpu_seconds"} of that, CPU time of the workers.
Needs a process with one thread, so OPENBLAS_NUM_THREADS must be 1 from the start.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from ..common.lazy import tf
from .peers import free_addresses, serve

CALLS = 50


def measure(workers: int) -> dict[str, float]:
    """Return the seconds from the first fork to the last end, and the CPU seconds of the workers."""
    import tensorflow  # noqa: F401 # before the fork, which a lazy import would come after

    spec = free_addresses(workers)
    gc.freeze()  # what exists now stays shared with the children
    began = time.monotonic()
    ps = forked(lambda: serve(spec, "ps", 0))
    try:
        for pid in [forked(lambda k=k: work(spec, k)) for k in range(workers)]:
            status = os.waitpid(pid, 0)[1]
            if status:
                raise RuntimeError(f"a worker ended with code {os.waitstatus_to_exitcode(status)}")
        seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        os.kill(ps, signal.SIGKILL)
    return {"seconds": round(seconds, 2), "cpu_seconds": round(used.ru_utime + used.ru_stime, 2)}


def forked(act: Callable[[], None]) -> int:
    """Fork a child that runs `act` and ends; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        act()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def work(spec: dict[str, list[str]], index: int) -> None:
    """Do all that a worker does, from its server to its end."""
    config: Any = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    config.experimental.disable_thread_spinning = True
    server = tf.distribute.Server(spec, "worker", index, config=config)
    with tf.Graph().as_default() as graph, tf.device("/job:ps/task:0"):
        number = tf.compat.v1.get_variable("number", initializer=0.0, use_resource=True)
        add = number.assign_add(1.0)
    config.device_filters.extend(["/job:ps", f"/job:worker/task:{index}"])
    with tf.compat.v1.Session(server.target, graph=graph, config=config) as session:
        session.run(number.initializer)
        for _ in range(CALLS):
            session.run(add)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))), flush=True)
