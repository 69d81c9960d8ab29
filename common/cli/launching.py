"""`launch`: a script whose own loop takes the gradients, in the processes of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..cluster.cluster import Cluster, Isolation
from ..errors import UserError
from ..kernels import Kernels
from ..launch.run import run
from ..launch.script import script_job
from ..launch.terms import describe_script
from ..lazy import require_tensorflow
from ..signals import added
from ..tasks.job import Script
from ..tasks.options import Recovery, RunOptions, TransportName
from . import flags
from .flag_groups import GROUPS, OUTPUT, Output, TaskFlags, commands, find_task
from .train import begin, shown

ABOUT = (
    "Run a Python script on every worker: its own loop takes the gradients, and distsgd.join makes the steps. The "
    "words after the script are its arguments."
)

USUAL_RECOVERY, ALONE = Recovery(), TaskFlags()


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of `launch`; the script has the algorithm, the data and the model."""

    workers: int = 2
    """Number of worker tasks: each executes the script."""
    ps: int = 1
    """Number of parameter server tasks; each holds an equal slice of the center."""
    seed: int = 0
    """Random seed of the algorithm."""
    run_dir: Path | None = None
    """Folder for the results of the run; the default is a new one in runs/, to which runs/latest then points."""
    codec: str = "float32"
    """Compression of messages, with the options of training: bf16 (half of the bytes), int8, topk:fraction=0.01, ..."""
    transport: TransportName = "memory"
    """Channel for vectors of a megabyte and more between processes of one machine: shared memory, or sockets."""
    kernels: Kernels = "auto"
    """Kernels with which TensorFlow computes on CPUs: Eigen's, or oneDNN's, which are faster for large models. auto:
    oneDNN's on Linux on x86-64, elsewhere TensorFlow's own choice, unless TF_ENABLE_ONEDNN_OPTS in the environment says
    otherwise."""
    tf32: bool = True
    """Let GPUs round the factors of matrix products and convolutions to TF32, 10 bits of mantissa in place of 23, as
    TensorFlow does where the card can; replay allows for it."""
    record: Literal["full", "gradients", "off"] = "full"
    """Record every round; or also the gradient of every local step, for replay (4 bytes for each parameter and step);
    or only aggregate statistics."""
    recovery: Recovery = USUAL_RECOVERY
    isolation: Isolation = "auto"
    """Private network for the processes: if the kernel allows it, required, or off. A script that needs the internet
    needs off."""
    wait_seconds: float = 60.0
    """Seconds that a task waits for others; then the run ends and names the missing tasks."""
    machines: TaskFlags = ALONE
    output: Output = OUTPUT


def main(arguments: list[str]) -> int:
    """Execute a script on every worker, show the result, and return the exit code."""
    place = _place_of_script(arguments)
    if place == len(arguments) and arguments and arguments[0][:1] not in ("", "-"):
        raise UserError(f"launch needs a script whose name ends in .py. Received: {arguments[0]}")
    usage = "run.sh launch [options] my_script.py [arguments of the script]"
    groups = {name: GROUPS[name] for name in ("fault tolerance", "several machines")}
    (options,) = flags.read(
        "run.sh launch", ABOUT, arguments[:place], {"options": LaunchOptions}, groups=groups, usage=usage, folded=groups
    )
    if place == len(arguments):
        raise UserError(f"launch needs a script whose name ends in .py: {usage.replace('run.sh', flags.PROGRAM)}")
    path, *words = arguments[place:]
    if not Path(path).is_file():
        raise UserError(f"there is no script of this name. Received: {path}")
    for word in words:
        if flags.field_of(word) in flags.names(LaunchOptions):
            note = f"{word} stands after the script, so the script gets it: options of launch stand before the script"
            print(f"note: {note}", file=sys.stderr)  # noqa: T201
    if options.machines.print_commands:
        print("\n".join(commands(["launch"], options, arguments[:place], arguments[place:])))  # noqa: T201
        return 0
    require_tensorflow()
    gradients = options.record == "gradients"
    script = Script(Path(path).resolve(), tuple(words), records_gradients=gradients)
    cluster_options: dict[str, Any] = {"wait_seconds": options.wait_seconds, "devices_per_worker": 1}
    cluster = find_task(options, options.ps > 0, cluster_options)
    if cluster is None:
        cluster = Cluster.local(options.workers, ps=options.ps, isolation=options.isolation, **cluster_options)
    run_options = {
        name: getattr(options, name)
        for name in ("seed", "run_dir", "codec", "transport", "kernels", "tf32", "recovery")
    }
    run_options["record"] = "full" if gradients else options.record
    job = script_job(script, cluster, RunOptions(batch_size=1, **run_options))
    config = describe_script(job, script)
    begin(config, job.run_dir, options.output)
    with added(options.recovery.signals):
        return shown(run(job, config, verbose=not options.output.quiet), options.output)


def _place_of_script(arguments: Sequence[str]) -> int:
    """Return the place of the first word that ends in .py and is not the value of an option; else their number."""
    before = ["", *arguments]
    for place, word in enumerate(arguments):
        is_value = flags.takes_value(LaunchOptions, before[place])
        if word.endswith(".py") and not word.startswith("-") and not is_value:
            return place
    return len(arguments)
