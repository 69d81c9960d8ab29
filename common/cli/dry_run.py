"""The size of a run before it starts: parameters, rounds, bytes, memory and seconds, by `--dry-run`."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.filesize import decimal
from rich.table import Table

from ..contract.kept import kept
from ..contract.scheme import Scheme
from ..contract.two_levels import two_levels
from ..data.dataset import leaves
from ..kernels import set_here
from ..lazy import tf
from ..messages.codec import FLOAT_BYTES
from ..record.tables import figures
from ..settings import using
from ..system import free_bytes, usable_cores
from ..tasks.job import Job
from ..worker.flat_model import FlatModel
from .imports import import_tensorflow

WARM_UP, CALLS = 2, 10  # calls that are not measured, and the most that are

CALL_SECONDS, MOST_SECONDS = 0.05, 10.0  # of one call, which has at least one step; and of all calls

# Bytes of private memory with TensorFlow: of the process that all tasks are forked from, and of each task beside its
# vectors (measured on Linux: 23 MB for the evaluator, 43 MB for a ps, 45 to 70 MB for a worker).
OF_ALL, OF_TASK = 550e6, 70e6

RATE = 1e-6  # learning rate of measured steps: the weights hardly move


def sizes(job: Job, model: Any) -> dict[str, Any]:
    """Return the figures of a run that follow from its settings alone.

    Memory is that of vectors: parameters, gradient and message of a worker, the center, and the variables of the
    algorithm. TensorFlow itself, the activations of a batch and the data come on top.
    """
    import_tensorflow()
    flat = job.recipe.flat(model)
    scheme, plan, workers = job.scheme, job.plan, job.cluster.workers
    rounds, vector = plan.all_rounds, FLOAT_BYTES * flat.size
    up, down = job.traffic(flat).moved(rounds[0].kinds())
    makers = (scheme.worker_variables, job.codec.local_variables)  # the second: errors of messages
    worker = 3 * vector + sum(_bytes_of(variables, flat.size) for variables in makers)
    server = vector + _bytes_of(lambda center: _of_server(two_levels(scheme), center, workers), flat.size)
    return {
        "algorithm": scheme.name,
        "backend": job.cluster.backend,
        "workers": workers,
        "ps": job.ps,
        "parameters": flat.size,
        "steps_per_worker": job.steps,
        "rounds_per_worker": len(rounds[0]),
        "updates": plan.updates,
        "bytes_pushed_per_round": round(up / max(1, len(rounds[0]))),
        "bytes_pulled_per_round": round(down / max(1, len(rounds[0]))),
        "bytes_of_a_worker": round(up + down),
        "memory_of_a_worker": worker,
        "memory_of_the_server": server,
        **_of_processes(job, workers * worker + server),
    }


def _of_processes(job: Job, vectors: int) -> dict[str, int]:
    """Return the number of processes of a run on this machine, and their memory with that of all vectors."""
    if job.cluster.task is not None or job.cluster.placement.in_process:
        return {}
    tasks = len(job.cluster.placement.tasks(job.ps, job.cluster.workers))
    return {"processes": tasks, "memory_of_processes": round(OF_ALL + tasks * OF_TASK + vectors)}


def expected(job: Job, model: Any) -> dict[str, Any]:
    """Return the cores of this machine and the least seconds of the steps of a run on them, from measured gradients.

    There are none for virtual time, for tasks on several machines, and where a worker computes otherwise than here: on
    several devices, on the coordinates of sparse batches, or on data from a function.
    """
    elsewhere = job.cluster.simulated is not None or job.cluster.task is not None or job.devices_per_worker > 1
    if elsewhere or job.sparse or callable(job.train):
        return {}
    kernels: Any = job.kernels.name or "auto"
    set_here(kernels)
    import_tensorflow()
    cores, steps = usable_cores(), [rounds.steps() for rounds in job.plan.all_rounds]
    with contextlib.suppress(RuntimeError):  # TensorFlow has started already, for a model from a file
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // job.cluster.workers))  # as in a worker
    with using(job.recipe.settings):
        wall, cpu = step_seconds(job, job.recipe.flat(model))
    return {"cores": cores, "least_seconds": round(least_seconds(wall, cpu, steps, cores), 3)}


def least_seconds(wall: float, cpu: float, steps: Sequence[int], cores: int) -> float:
    """Return the seconds that workers on one machine need for their steps: no worker, and no core, may be faster.

    Args:
        wall: seconds of a step of a worker that waits for no core.
        cpu: CPU seconds of a step.
        steps: steps of each worker.
        cores: number of cores that the workers share.
    """
    return max(wall * max(steps), cpu * sum(steps) / cores)


def step_seconds(job: Job, flat: FlatModel) -> tuple[float, float]:
    """Measure gradients on batches of the run's data in this process; return seconds and CPU seconds of a step.

    A call has many steps of a small model, so that Python's share of it does not count. Both results are medians.
    """
    size = job.options.batch_size
    arrays = [tf.constant(leaf[: CALLS * size]) for leaf in leaves(job.train)]
    params, state, *frozen = map(tf.constant, (flat.pack(), flat.pack_state(), *flat.frozen_values()))

    @tf.function(autograph=False)
    def train(steps: Any) -> Any:
        def step(t: Any, params: Any, state: Any, seeds: Any) -> Any:
            rows = (t * size + tf.range(size)) % len(arrays[0])
            batch = tf.nest.pack_sequence_as(job.train, [tf.gather(array, rows) for array in arrays])
            _, gradient, state, seeds, _ = flat.gradient(params, state, seeds, frozen, batch)
            return t + 1, params - RATE * tf.concat(gradient, 0), state, seeds

        start = 0, params, state, list(map(tf.constant, flat.initial_seeds))
        return tf.while_loop(lambda t, *_: t < steps, step, start)[1][0]

    def measured(steps: int) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        float(train(tf.constant(steps)))
        return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps

    first = [measured(1)[0] for _ in range(WARM_UP)]
    steps, until = max(1, round(CALL_SECONDS / first[-1])), time.perf_counter() + MOST_SECONDS
    found = [measured(steps)]
    while len(found) < CALLS and time.perf_counter() < until:
        found.append(measured(steps))
    wall, cpu = map(median, zip(*found, strict=True))
    return wall, cpu


def _of_server(scheme: Scheme, center: Any, workers: int) -> dict[str, Any]:
    """Return the variables that a ps keeps for a scheme, besides the center, by name."""
    single, rows, numbers, pulled = kept(scheme.global_variables, center)
    each = {**rows, **numbers, **dict.fromkeys(pulled[:1], center)}
    return {**single, **{name: tf.stack([value] * workers) for name, value in each.items()}}


def _bytes_of(variables: Callable[[Any], Mapping[str, Any]], size: int) -> int:
    """Return the bytes of the variables that a function of the parameters makes; none of them is allocated."""

    def tensors(params: Any) -> list[Any]:
        return [tf.convert_to_tensor(value) for value in variables(params).values()]

    outputs = tf.function(tensors).get_concrete_function(tf.TensorSpec([size], tf.float32)).outputs
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in outputs)


def size_table(found: Mapping[str, Any]) -> Table:
    """Return the figures of a run as a table."""
    up, down = found["bytes_pushed_per_round"], found["bytes_pulled_per_round"]
    tasks = f"{found['ps']} ps + {found['workers']} workers" if found["ps"] else f"{found['workers']} workers, no ps"
    on_server = f", ps {decimal(found['memory_of_the_server'])} in all" if found["ps"] else ""
    rows = {
        "tasks": f"{tasks} ({found['backend']})",
        "parameters": f"{found['parameters']:,}",
        "steps": f"{found['steps_per_worker']:,} of each worker",
        "rounds": f"{found['rounds_per_worker']:,} of each worker, {found['updates']:,} updates in all",
        "a round": f"{decimal(up)} pushed, {decimal(down)} pulled by each worker",
        "the run": f"{decimal(found['bytes_of_a_worker'])} of each worker",
        "vectors": f"worker {decimal(found['memory_of_a_worker'])}{on_server}",
    }
    if tasks := found.get("processes"):
        memory, free = found["memory_of_processes"], free_bytes()
        beside = f"; {decimal(int(free))} are free" if math.isfinite(free) else ""
        warning = "Warning: more than this machine has free: " * (memory > free)
        rows["processes"] = f"{warning}{tasks}, about {decimal(memory)} without data and activations{beside}"
    if seconds := found.get("least_seconds"):
        steps, workers = found["steps_per_worker"], found["workers"]
        step = f"{steps:,} steps of {1e3 * seconds / steps:,.2f} ms"
        rows["seconds"] = f"at least {seconds:,.3f}: {step}, {workers} workers on {found['cores']} cores"
    return figures(f"{found['algorithm']}: not started", rows)
