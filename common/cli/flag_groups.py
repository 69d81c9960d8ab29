"""Parsing of an algorithm's flags into scheme, options, cluster, and the command for each machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from ...algorithms import SCHEMES
from ..cluster import discovery
from ..cluster.cluster import PLACEMENTS, BackendName, Cluster, Isolation
from ..cluster.platform import Platform
from ..cluster.task_spec import JobName
from ..contract.schedules import Shape
from ..contract.scheme import Scheme, idea_of
from ..errors import UserError
from ..record.loggers import LogTarget
from ..spec import parse
from ..tasks.options import RunOptions
from . import flags
from .catalogue import meant_by, timing
from .config_file import expanded

Discovery = Literal["auto", "local", "tf_config", "slurm", "torchrun"]

RUN = RunOptions(epochs=20)  # `train` has 1, as Keras' `fit`

USUAL_MACHINES = Platform()


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command prints about its runs."""

    quiet: bool = False
    """Print warnings and errors alone, and with --json the result: no progress, no table."""
    verbose: bool = False
    """Print all settings of the run before it starts, defaults and automatic choices included."""
    json: bool = False
    """Print the result as one line of JSON, the last line of standard output."""


OUTPUT = Output()


@dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """The addresses of all tasks on several machines, and the task of this process."""

    ps_hosts: str = ""
    """Addresses of the ps tasks, as host:port,host:port."""
    worker_hosts: str = ""
    """Addresses of the workers; the first is the chief."""
    job_name: str = ""
    """Job of this task: ps, worker or evaluator."""
    task_index: int = 0
    """Index of this task in its job."""
    separate_evaluator: bool = False
    """Run the evaluator as a task of its own (--job_name=evaluator) instead of in the chief."""
    cluster: Discovery = "auto"
    """Source of the task's role. auto: flags, then TF_CONFIG, else all tasks run on this machine. Slurm and
    torchrun are used only with slurm and torchrun: their first --ps tasks are parameter servers."""
    print_commands: bool = False
    """Print the command line of each machine, and start nothing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every algorithm."""

    workers: int = 2
    """Number of worker tasks."""
    ps: int = 1
    """Number of parameter server tasks; each holds an equal slice of the center. With halos, R regions and R + 1 tasks
    are a global server, then a server for each region."""
    dataset: str | None = None
    """Data set: digits (the default; a simulation generates data), synthetic, mnist1d, text, mnist, fashion_mnist,
    cifar10, sparse or libsvm; or a problem of theory: quadratic, least_squares or logistic. With options of its own as
    in synthetic:features=50, libsvm:path=train.svm or quadratic:dim=1729,noise=0.01."""
    data: str | None = None
    """Data of your own instead of a data set: a Python file and a function in it that returns (x, y) or (train,
    validation), as in my_data.py:load."""
    model: str | None = None
    """Model: softmax, mlp (the default) or cnn; logistic for sparse data sets, transformer for text. Options as in
    mlp:hidden=256-128. Or a Python file and a function in it that returns a compiled Keras model, as in
    my_model.py:build."""
    backend: BackendName = "processes"
    """Execution: one process per task, one process with a thread per worker, or virtual time on described machines."""
    devices_per_worker: int | None = None
    """Number of devices that share each worker's batches: its GPUs in turn, else logical CPU devices. Default: 1, but 2
    for multi_gpu and hierarchical."""
    run: RunOptions = RUN
    isolation: Isolation = "auto"
    """Private network for the processes: if the kernel allows it, required, or off."""
    wait_seconds: float = 60.0
    """Seconds that a task waits for others; then the run ends and names the missing tasks."""
    lr_schedule: Shape = "constant"
    """Decay of the learning rates over the run: keras.optimizers.schedules by name."""
    period_rule: str = "constant"
    """Local steps of a round over the run: constant; post-local:N, one in each of the first N steps; qsr:ALPHA,H,
    (ALPHA/rate)^2 and at least H, as the learning rate falls; or adacomm:N,H, H at first and fewer after each N rounds,
    as the training loss falls (H by default: communication_period)."""
    machines: TaskFlags = TaskFlags()
    platform: Platform = USUAL_MACHINES
    like: Path | None = None
    """Folder of a recorded run, or `latest`: simulate machines whose computing, message and lock times are fitted to
    its rounds. Other flags of simulated machines override the fit."""
    config: Path | None = None
    """File with settings: config.json of a run (or its folder, or `latest`), which then runs again, or a TOML file with
    lines such as learning_rate = 0.1. Other flags override it."""
    dry_run: bool = False
    """Check all settings, print parameters, rounds, bytes, memory and least seconds of the run, and start nothing."""
    log: LogTarget | None = None
    """Also log settings, metrics of the center and result to Weights & Biases or MLflow, whose library must be
    installed."""
    output: Output = OUTPUT


@dataclass(frozen=True, kw_only=True)
class AloneOptions(Options):
    """Options of an algorithm without parameter server."""

    workers: int = 1
    """Number of worker tasks: must be 1."""


GROUPS = {
    "training": (
        "devices_per_worker", "skew", "clip_norm", "l2", "exclude_from_weight_decay", "participation", "hostile",
        "ema_decay", "lr_schedule", "period_rule", "probe", "stop_at_version", "stop_at_accuracy", "evaluate_every",
    ),
    "processes": ("transport", "kernels", "jit", "tf32", "isolation", "wait_seconds"),
    "fault tolerance": ("recovery",),
    "several machines": ("machines",),
    "simulated machines": ("platform", "like"),
}  # options that the help shows under a title of their own  # fmt: skip


def parse_flags(scheme_type: type[Scheme], arguments: list[str]) -> tuple[Scheme, Options]:
    """Return the algorithm and the options that the flags describe."""
    scheme, options = read_flags(f"run.sh {scheme_type.name}", scheme_type, arguments)
    return scheme, options


def scheme_of(text: str) -> Scheme:
    """Build an algorithm with hyperparameters from text such as `sync_sgd:backup_workers=2`."""
    word, _, options = text.partition(":")
    name, *meant = meant_by(word)
    (scheme,) = flags.read(f"run.sh {name}", "", meant, {"hyperparameters": SCHEMES[name]})
    return replace(scheme, **parse("algorithm", f"{name}:{options}", SCHEMES)[1])


def read_flags(
    prog: str, scheme_type: type[Scheme], arguments: Sequence[str], before: Mapping[str, type] = {}
) -> list[Any]:
    """Return the dataclasses of a command that trains: those of `before`, the algorithm, and the options."""
    kinds = {**before, **_kinds(scheme_type)}
    words = expanded(scheme_type, kinds["options"], arguments)
    return flags.read(prog, _about(scheme_type), words, kinds, groups=GROUPS, folded=GROUPS)


def flag_parser(prog: str, scheme_type: type[Scheme]) -> flags.Parser:
    """Return the parser of an algorithm's flags."""
    return flags.parser_of(prog, _about(scheme_type), _kinds(scheme_type), GROUPS)


def options_of(scheme_type: type[Scheme]) -> type[Options]:
    """Return the class of the options of an algorithm."""
    return AloneOptions if timing(scheme_type) == "one process" else Options


def _kinds(scheme_type: type[Scheme]) -> dict[str, type]:
    """Return the dataclasses whose fields are the flags of an algorithm, by the title of their group in the help."""
    return {f"hyperparameters of {scheme_type.name}": scheme_type, "options": options_of(scheme_type)}


def _about(scheme_type: type[Scheme]) -> str:
    idea, paper = idea_of(scheme_type), f" ({scheme_type.paper})." * (scheme_type.paper != "none")
    return idea[:1].upper() + idea[1:] + paper


def with_machines(options: Options) -> Options:
    """Return the options of a run, with the machines of --like."""
    if options.like is None or not PLACEMENTS[options.backend].simulated:
        return options
    fitted = PLACEMENTS[options.backend].back_end.fitted
    return replace(options, platform=fitted(options.like, options.platform)[0], like=None)


def find_cluster(options: Options, uses_ps: bool = True) -> Cluster:
    """Return the cluster that flags and environment describe, for an algorithm with or without a ps."""
    platform = options.platform
    if options.like is not None and options.backend != "simulation":
        raise UserError("--like describes simulated machines: give --backend simulation too")
    if platform != USUAL_MACHINES and options.backend != "simulation":
        other = next(name for name, value in vars(platform).items() if value != getattr(USUAL_MACHINES, name))
        raise UserError(f"{flags.flag_of(other)} describes simulated machines: give --backend simulation too")
    common: dict[str, Any] = {"wait_seconds": options.wait_seconds, "devices_per_worker": options.devices_per_worker}
    if (cluster := find_task(options, uses_ps, common)) is not None:
        return cluster
    given = platform if options.backend == "simulation" else None
    return Cluster.local(
        options.workers, ps=options.ps, backend=options.backend, isolation=options.isolation, platform=given, **common
    )


def find_task(options: Any, uses_ps: bool, arguments: dict[str, Any]) -> Cluster | None:
    """Return the cluster of several machines that flags and environment describe; None for a run on this machine.

    Args:
        options: options with the `machines`, and with those of runs on this machine.
        uses_ps: the run has a parameter server.
        arguments: further arguments of the cluster.
    """
    machines = options.machines
    by_flags = bool(machines.ps_hosts or machines.worker_hosts or machines.job_name or machines.task_index)
    if by_flags and machines.cluster != "auto":
        raise UserError(f"--cluster {machines.cluster} and --ps_hosts, --worker_hosts, --job_name exclude each other")
    if by_flags:
        cluster = _cluster_of_flags(machines, arguments)
    elif machines.cluster == "slurm":
        cluster = Cluster.from_slurm(ps=options.ps if uses_ps else 0, **arguments)
    elif machines.cluster == "torchrun":
        cluster = Cluster.from_torchrun(ps=options.ps if uses_ps else 0, **arguments)
    elif machines.cluster == "tf_config" or (machines.cluster == "auto" and discovery.has_tf_config()):
        cluster = Cluster.from_tf_config(separate_evaluator=machines.separate_evaluator, **arguments)
    elif machines.separate_evaluator:
        raise UserError("--separate-evaluator is for several machines: give --ps_hosts, --worker_hosts and --job_name")
    else:
        return None
    usual = vars(type(options)())
    for name in ("workers", "ps", "backend", "isolation"):
        actual = getattr(cluster, name)
        wanted = getattr(options, name, actual)
        if wanted not in (actual, usual.get(name)):
            raise UserError(f"--{name} is for runs on this machine; this cluster has {actual}. Received: {wanted}")
    return cluster


def _cluster_of_flags(machines: TaskFlags, arguments: dict[str, Any]) -> Cluster:
    """Return the cluster and task that --ps_hosts, --worker_hosts, --job_name and --task_index describe."""
    if not machines.job_name:
        raise UserError("which task is this? Give --job_name and --task_index, or --print-commands to see all")
    return Cluster.at(
        ps_hosts=discovery.split_hosts(machines.ps_hosts),
        worker_hosts=discovery.split_hosts(machines.worker_hosts),
        job_name=cast(JobName, machines.job_name),
        task_index=machines.task_index,
        separate_evaluator=machines.separate_evaluator,
        **arguments,
    )


def commands(program: Sequence[str], options: Any, arguments: Sequence[str], script: Sequence[str] = ()) -> list[str]:
    """Return the command line for each machine: the given flags, except those of `TaskFlags`, which name the task.

    Args:
        program: the words before the flags: the algorithm, with the files to import, or `launch`.
        options: options with the `machines`.
        arguments: the given flags.
        script: the script and its arguments.
    """
    if options.machines.worker_hosts:
        as_worker = replace(options.machines, job_name=options.machines.job_name or "worker")
        options = replace(options, machines=as_worker)
    cluster = find_task(options, True, {})
    if cluster is None or cluster.task is None:
        raise UserError("--print-commands needs the addresses: --ps_hosts=host:port,... --worker_hosts=host:port,...")
    task_flags, kept, words = flags.names(TaskFlags), [], iter(arguments)
    for word in words:
        if flags.field_of(word) in task_flags:
            if flags.takes_value(TaskFlags, word):
                next(words, None)
        else:
            kept.append(word)
    return discovery.commands(cluster.task, [*flags.PROGRAM.split(), *program, *kept], script)
