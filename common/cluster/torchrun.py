"""Discovery of the task that this program is among those of `torchrun`, on one machine or several.

The variables of `torchrun` name one address: that of a store of PyTorch, which all programs can read and write. Each
leaves its own address there, and reads those of the others. It does so in a process of its own, since PyTorch starts
threads, and TensorFlow's processes are forked from one that has none.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ..errors import UserError
from .discovery import OWN_PORTS, shares, task_spec
from .task_spec import TaskSpec

USAGE = "torchrun --nproc-per-node 3 -m distsgd launch --cluster torchrun my_script.py"

STORE_STRIDE = 1021  # between the first ports of the tasks of two stores on neighbouring ports

# The store is in the program of torchrun; where there is none, the first task has it until all have read.
EXCHANGE = """
import os, sys
from datetime import timedelta
from torch.distributed import TCPStore
address, rank, size, seconds = sys.argv[1], *map(int, sys.argv[2:])
variables = os.environ
here = rank == 0 and variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
where, limit = (variables["MASTER_ADDR"], int(variables["MASTER_PORT"])), timedelta(seconds=seconds)
store = TCPStore(*where, is_master=here, timeout=limit, wait_for_workers=False)
key = "distsgd " + variables.get("TORCHELASTIC_RESTART_COUNT", "0")
store.set(f"{key} {rank}", address)
print(*(store.get(f"{key} {k}").decode() for k in range(size)))
store.set(f"{key} {rank} has read", "")
if here:
    store.wait([f"{key} {k} has read" for k in range(size)])
"""


def from_torchrun(ps: int, wait_seconds: float, environment: Mapping[str, str] = os.environ) -> TaskSpec:
    """Return the task of this program: the first `ps` tasks are parameter servers, the others workers.

    Raises:
        UserError: `torchrun` has not started this program, or another task has not come within `wait_seconds`.
    """
    try:
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    except KeyError as error:
        raise UserError(f"{error.args[0]} is not set: start the tasks with torchrun, as in {USAGE}") from None
    except ValueError as error:
        received = str(error).rpartition(": ")[2]
        raise UserError(
            f"the variables of torchrun must be whole numbers: start the tasks with torchrun. Received: {received}"
        ) from None
    if not 0 <= rank < size:
        raise UserError(f"torchrun's environment contradicts itself: task {rank} of {size}")
    if not 0 <= ps < size:
        raise UserError(f"{size} tasks are too few for {ps} ps and a worker: start more tasks, or give fewer --ps")
    own_address = f"{own_host(host, port)}:{free_port(port, rank, size)}"
    addresses = _exchanged(own_address, rank, size, wait_seconds, environment)
    job_name, index = ("ps", rank) if rank < ps else ("worker", rank - ps)
    task = task_spec(addresses[:ps], addresses[ps:], job_name, index)
    places = shares(ps, [address.rpartition(":")[0] for address in addresses])
    return replace(task, origin=f"torchrun at {host}:{port}: {places}.")


def own_host(host: str, port: int) -> str:
    """Return the address of this machine in the network in which the store is; the store's own if that is here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))  # sends nothing
        except (OSError, OverflowError) as error:
            raise UserError(
                f"cannot reach MASTER_ADDR and MASTER_PORT of torchrun from here ({error}): check the network "
                f"between the machines. Received: {host}:{port}"
            ) from None
        address = probe.getsockname()[0]
    return host if address.startswith("127.") else address


def free_port(store: int, rank: int, size: int) -> int:
    """Return a port that is free on this machine, and that no other task of the same store looks at."""
    for turn in range(len(OWN_PORTS) // size):
        port = OWN_PORTS[(STORE_STRIDE * store + size * turn + rank) % len(OWN_PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise UserError(f"no port from {OWN_PORTS[0]} to {OWN_PORTS[-1]} is free here for task {rank} of {size}")


def _exchanged(address: str, rank: int, size: int, wait_seconds: float, environment: Mapping[str, str]) -> list[str]:
    """Return the addresses of all tasks, each of which leaves its own."""
    words = [address, str(rank), str(size), str(max(1, round(wait_seconds)))]
    command = [sys.executable, "-c", EXCHANGE, *words]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"the tasks of torchrun did not all find its store within {wait_seconds:g} s: {last}")
    return done.stdout.split()
