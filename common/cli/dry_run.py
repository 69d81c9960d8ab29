"""The size of a run before it starts: parameters, rounds, bytes and memory, by `--dry-run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rich.filesize import decimal
from rich.table import Table

from ..contract.rounds import Rounds
from ..lazy import tf
from ..messages.codec import FLOAT_BYTES
from ..tasks.job import Job
from .imports import import_tensorflow


def sizes(job: Job, model: Any) -> dict[str, Any]:
    """Return the figures of a run that follow from its settings alone.

    Memory is that of vectors: parameters, gradient and message of a worker, the center, and the variables of the
    algorithm. TensorFlow itself, the activations of a batch and the data come on top.
    """
    import_tensorflow()
    flat = job.recipe.flat(model)
    scheme, plan, workers = job.scheme, job.plan, job.cluster.workers
    rounds, vector = plan.all_rounds, FLOAT_BYTES * flat.size
    up, down = moved(rounds[0], job.traffic(flat).of_events)
    own = (scheme.local_variables, job.codec.local_variables)  # the second: errors of messages
    worker = 3 * vector + sum(_bytes_of(variables, flat.size) for variables in own)
    rows = workers * (_bytes_of(scheme.worker_rows, flat.size) + vector * scheme.keeps_pulled_centers)
    server = vector + _bytes_of(scheme.global_variables, flat.size) + rows
    return {
        "algorithm": scheme.name,
        "backend": job.cluster.backend,
        "workers": workers,
        "ps": job.cluster.ps if job.uses_ps else 0,
        "parameters": flat.size,
        "steps_per_worker": job.steps,
        "rounds_per_worker": len(rounds[0]),
        "updates": plan.updates,
        "bytes_pushed_per_round": round(up / max(1, len(rounds[0]))),
        "bytes_pulled_per_round": round(down / max(1, len(rounds[0]))),
        "bytes_of_a_worker": round(up + down),
        "memory_of_a_worker": worker,
        "memory_of_the_server": server,
    }


def moved(rounds: Rounds, of_events: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """Return the bytes that a worker sends and receives in its rounds."""
    number: Counter[str] = Counter()
    for pattern, times in rounds.parts:
        for _, event in pattern:
            number[event] += times
    up, down = (sum(number[event] * of_events[event][way] for event in number) for way in (0, 1))
    return up, down


def _bytes_of(variables: Callable[[Any], Mapping[str, Any]], size: int) -> int:
    """Return the bytes of the variables that a function of the parameters makes; none of them is allocated."""

    def tensors(params: Any) -> list[Any]:
        return [tf.convert_to_tensor(value) for value in variables(params).values()]

    made = tf.function(tensors).get_concrete_function(tf.TensorSpec([size], tf.float32)).outputs
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in made)


def size_table(found: Mapping[str, Any]) -> Table:
    """Return the figures of a run as a table."""
    table = Table(title=f"{found['algorithm']}: not started", show_header=False, title_justify="left")
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
    for name, value in rows.items():
        table.add_row(name, value)
    return table
