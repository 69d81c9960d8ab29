"""The command line: `bash run.sh <algorithm>`, and what else there is."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn, cast

from ..cluster.cluster import Backend, Cluster, Isolation
from ..cluster.task_spec import JobName
from ..contract.schedules import Shape, shaped
from ..contract.scheme import Scheme
from ..errors import DistsgdError, Interrupted, UserError, positive
from ..record.run_directory import RecordMode
from ..run.options import Recovery
from ..spec import nearest, parse
from . import flags
from .flags import Parser
from .imports import import_schemes, split_imports

MEASUREMENTS = {
    "benchmark": "convergence",
    "throughput": "throughput",
    "collisions": "collisions",
    "stragglers": "stragglers",
    "soak": "soak",
    "endurance": "endurance",
}  # command: module

Discovery = Literal["auto", "local", "tf_config", "slurm"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that every algorithm has."""

    workers: int = 2
    """Worker tasks."""
    ps: int = 1
    """Parameter server tasks; the center is cut evenly over them."""
    epochs: int = 20
    """Passes over the training data."""
    steps: int | None = None
    """Local steps of each worker, instead of --epochs."""
    batch_size: int = 32
    """Examples of one local step."""
    dataset: str = "digits"
    """digits, synthetic, mnist, fashion_mnist, cifar10, sparse or libsvm; with options of its own as in
    synthetic:features=50 or libsvm:path=train.svm."""
    model: str | None = None
    """softmax, mlp (the default) or cnn; options as in mlp:hidden=256-128. logistic for sparse data sets."""
    backend: Backend = "processes"
    """A process for each task, or one process with a thread for each worker."""
    towers: int | None = None
    """Devices of each worker that share its batches: its GPUs in turn, else logical CPU devices. If not given: 1, but 2
    for multi_gpu and hierarchical."""
    clip_norm: float | None = None
    """Gradients longer than this, as one vector, are shortened to it."""
    l2: float = 0.0
    """Adds l2/2 |x|^2 to the loss."""
    ema_decay: float | None = None
    """Evaluate an exponential moving average of the center, with this decay, instead of the center."""
    lr_schedule: Shape = "constant"
    """How the learning rates fall over the run: keras.optimizers.schedules by name."""
    seed: int = 0
    """Of initial weights, shards and batches."""
    run_dir: Path | None = None
    """Folder of the record of the run; a fresh one in runs/ if not given."""
    isolation: Isolation = "auto"
    """Private network for the processes: where the kernel allows it, or demanded, or off."""
    wait_seconds: float = 60.0
    """How long a task waits for others before the run ends with the names of the missing ones."""
    ps_hosts: str = ""
    """Addresses of the ps tasks, as host:port,host:port."""
    worker_hosts: str = ""
    """Addresses of the workers; the first is the chief."""
    job_name: str = ""
    """Which job this task belongs to: ps, worker or evaluator."""
    task_index: int = 0
    """Which task of its job this is."""
    separate_evaluator: bool = False
    """The evaluator is a task of its own (--job_name=evaluator), not beside the chief."""
    cluster: Discovery = "auto"
    """Where the task learns its role: flags, then TF_CONFIG, else all tasks are here; slurm has to be asked for."""
    print_commands: bool = False
    """Print the command line of each machine, and start nothing."""
    stop_at_version: int | None = None
    """End the run after so many updates of the center."""
    stop_at_accuracy: float | None = None
    """End the run when the center has this accuracy on the test data."""
    record: RecordMode = "full"
    """Keep every event (48 bytes each, and as much again in trace.npz), or only what they add up to."""
    tensorboard: bool = False
    """Write summaries of the center for TensorBoard to tb/ in the run directory."""
    checkpoint_steps: int | None = None
    """Updates of the center between two checkpoints."""
    checkpoint_seconds: float | None = None
    """Seconds between two checkpoints; 60 if nothing is said, 10 with --max-restarts."""
    keep_checkpoints: int = 3
    """The last so many checkpoints are kept. The same command with the same --run-dir goes on from the newest."""
    resume: Path | None = None
    """Go on from the newest checkpoint of another run directory."""
    max_restarts: int = 0
    """Start killed tasks again, so many times in all."""
    min_workers: int | None = None
    """Go on with so many workers if the others do not come back; all are needed if not given."""
    on_nan: Literal["stop", "drop"] = "stop"
    """A message that is not finite never reaches the center. Then stop, or go on without it."""
    json: bool = False
    """Print the result as one line of JSON, the last of standard output."""


@dataclass(frozen=True, kw_only=True)
class AloneOptions(Options):
    """Options of an algorithm without parameter server."""

    workers: int = 1
    """Must be 1."""


GROUPS = {
    "how it trains": (
        "towers", "clip_norm", "l2", "ema_decay", "lr_schedule", "stop_at_version", "stop_at_accuracy",
    ),
    "what survives a fault": (
        "checkpoint_steps", "checkpoint_seconds", "keep_checkpoints", "resume", "max_restarts", "min_workers", "on_nan",
    ),
    "several machines": (
        "ps_hosts", "worker_hosts", "job_name", "task_index", "separate_evaluator", "cluster", "print_commands",
    ),
}  # of the options that the help sets apart  # fmt: skip


def main() -> NoReturn:
    """Entry point: dispatch, and turn errors into one line and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.exit(dispatch(sys.argv[1:]))
    except (DistsgdError, Interrupted) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print(f"error: {Interrupted(signal.SIGINT)}", file=sys.stderr)  # noqa: T201
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


def dispatch(arguments: list[str]) -> int:
    """Run the command that the arguments name; returns the exit code."""
    from ...algorithms import SCHEMES

    files, arguments = split_imports(arguments)
    for file in files:
        SCHEMES.update(import_schemes(file, SCHEMES))
    commands: dict[str, Callable[[list[str]], int]] = {
        "list": catalogue,
        "explain": explanation,
        "evaluate": evaluate,
        "doctor": doctor,
        "test": test,
        "mutants": mutants,
        **{name: measurement(module) for name, module in MEASUREMENTS.items()},
    }
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return overview()
    if arguments[0] in ("-V", "--version", "version"):
        print(f"distsgd {version('distsgd')}")  # noqa: T201
        return 0
    command, *rest = name_first(arguments, [*SCHEMES, *commands])
    if command in commands:
        return commands[command](rest)
    if command in SCHEMES:
        return run_algorithm(SCHEMES[command], rest)
    raise UserError(f"unknown algorithm or command {command!r}. {nearest(command, [*SCHEMES, *commands])}")


def name_first(arguments: list[str], known: list[str]) -> list[str]:
    """`--workers 4 downpour` as `downpour --workers 4`."""
    if not arguments[0].startswith("-"):
        return arguments
    names = [word for word in arguments if word in known]
    if len(names) != 1:
        raise UserError(f"the algorithm or command comes first, as in: downpour {' '.join(arguments)}")
    rest = list(arguments)
    rest.remove(names[0])
    return [*names, *rest]


def overview() -> int:
    """What there is."""
    from rich.table import Table
    from rich.text import Text

    from ..record.display import Page

    console = Page(highlight=False)
    console.print("Distributed SGD algorithms on TensorFlow, on real processes.\n")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    for usage, meaning in (
        ("<algorithm>", "train: 1 ps + 2 workers on the digits data, unless told otherwise"),
        ("<algorithm> --help", "its hyperparameters and the common options"),
        ("explain <algorithm>", "its equations, origin, departures, limits"),
        ("--import file.py ...", "the same with an algorithm of your own"),
        ("list", "the catalogue"),
        ("evaluate <run dir>", "measure the checkpoints of a run as they appear, from wherever its folder is seen"),
        ("doctor", "versions, machine, and what a run may do here: for a bug report"),
        ("test", "the test suite (arguments go to pytest)"),
        ("mutants", "faults made on purpose, one at a time: does a test notice? (takes 20 minutes)"),
        ("benchmark", "every algorithm on the same task: plots and tables (--quick: three minutes)"),
        ("soak", "runs whose tasks are killed and stopped at random: --minutes 5 --seed 1"),
        ("endurance", "memory and disk of a run at full speed, and how they grow: --minutes 10"),
        ("throughput", "steps per second: one process, ParameterServerStrategy and the back ends here"),
        ("collisions", "hogwild on sparse data, with and without a lock"),
        ("stragglers", "sync_sgd with backup workers, where some batches come late"),
    ):
        table.add_row(Text(f"bash run.sh {usage}", style="bold"), meaning)
    console.print(table)
    console.print()
    return catalogue([])


def catalogue(arguments: list[str]) -> int:
    """The algorithms as a table."""
    from rich.table import Table

    from ...algorithms import SCHEMES
    from ..record.display import Page

    Parser("run.sh list", "The catalogue.").values(arguments)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("algorithm", "", "idea", "paper"):
        table.add_column(column)
    for name, scheme in SCHEMES.items():
        table.add_row(name, timing(scheme), scheme.idea, scheme.paper)
    Page(highlight=False).print(table)
    return 0


def explanation(arguments: list[str]) -> int:
    """What an algorithm does."""
    from ...algorithms import SCHEMES
    from .explain import explain

    parser = Parser("run.sh explain", "Equations, origin, departures, limits and hyperparameters of an algorithm.")
    parser.add_argument("algorithm", help=", ".join(SCHEMES))
    name = parser.values(arguments).algorithm
    if name not in SCHEMES:
        raise UserError(f"unknown algorithm {name!r}. {nearest(name, SCHEMES)}")
    explain(SCHEMES[name])
    return 0


def evaluate(arguments: list[str]) -> int:
    """Follow a run by its checkpoints."""
    about = "Measure the checkpoints of a run as they appear."
    parser = Parser("run.sh evaluate", about, usage="run.sh evaluate run_dir [options]")
    parser.add_argument("run_dir", type=flags.plain(Path), help="of the chief; it may be under way, or ended")
    parser.add_argument(
        "--wait-seconds",
        type=flags.plain(float),
        default=600.0,
        metavar="X",
        help="for the next checkpoint (default: 600)",
    )
    options = parser.values(arguments)
    positive(wait_seconds=options.wait_seconds)

    from ..run.follow import follow

    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    def show(line: dict[str, Any]) -> None:
        print("  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()), flush=True)  # noqa: T201

    if options.run_dir.is_file():
        raise UserError(f"{options.run_dir} is a file: give the run directory")
    if not options.run_dir.is_dir():
        print(f"{options.run_dir} is not there yet; waits up to {options.wait_seconds:g} s for it", file=sys.stderr)  # noqa: T201
    follow(options.run_dir, options.wait_seconds, show)
    return 0


def doctor(arguments: list[str]) -> int:
    """What a bug report should say about the machine."""
    from .doctor import main

    return main(arguments)


def readme_table() -> str:
    """The catalogue as the README shows it."""
    from ...algorithms import SCHEMES

    rows = [
        f"| [`{name}`](algorithms/{name}.py) | {timing(scheme)} | {scheme.idea} | {scheme.paper} |"
        for name, scheme in SCHEMES.items()
    ]
    return "\n".join(["| algorithm | timing | idea | paper |", "|---|---|---|---|", *rows])


def timing(scheme: type[Scheme]) -> str:
    """Who waits for whom: 'synchronous', 'asynchronous', 'one process' or what a gate of one's own says."""
    return scheme().gate.label


def test(arguments: list[str]) -> int:
    """The test suite of the checkout."""
    return subprocess.call([sys.executable, "-m", "pytest", *arguments], cwd=_checkout())


def mutants(arguments: list[str]) -> int:
    """Faults made on purpose, which the test suite must find."""
    return subprocess.call([sys.executable, str(_checkout() / "tests" / "mutants.py"), *arguments])


def _checkout() -> Path:
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "tests").is_dir():
        raise UserError("the tests are part of the source checkout, which this installation is not")
    return root


def measurement(module: str) -> Callable[[list[str]], int]:
    """The command of a module of `benchmarks`."""
    return lambda arguments: importlib.import_module(f"...benchmarks.{module}", __package__).main(arguments)


def run_algorithm(scheme_type: type[Scheme], arguments: list[str]) -> int:
    """Parse the flags of an algorithm and run it."""
    scheme, options = parse_flags(scheme_type, arguments)
    if options.print_commands:
        return print_commands(scheme_type, options, arguments)
    return run_command(scheme, options)


def find_cluster(options: Options, uses_ps: bool = True) -> Cluster:
    """The cluster that flags and environment describe, for an algorithm that has a ps or has none."""
    from ..cluster.discovery import has_tf_config

    how = {"wait_seconds": options.wait_seconds, "towers": options.towers}
    by_flags = bool(options.ps_hosts or options.worker_hosts or options.job_name or options.task_index)
    if by_flags and options.cluster != "auto":
        raise UserError(f"--cluster {options.cluster} and --ps_hosts, --worker_hosts, --job_name exclude each other")
    if by_flags:
        cluster = cluster_of_flags(options, how)
    elif options.cluster == "slurm":
        cluster = Cluster.from_slurm(ps=options.ps if uses_ps else 0, **how)
    elif options.cluster == "tf_config" or (options.cluster == "auto" and has_tf_config()):
        cluster = Cluster.from_tf_config(separate_evaluator=options.separate_evaluator, **how)
    elif options.separate_evaluator:
        raise UserError("--separate-evaluator is for several machines: give --ps_hosts, --worker_hosts and --job_name")
    else:
        return Cluster.local(
            options.workers, ps=options.ps, backend=options.backend, isolation=options.isolation, **how
        )
    usual = type(options)()
    for name, there in (
        ("workers", cluster.workers),
        ("ps", cluster.ps),
        ("backend", cluster.backend),
        ("isolation", cluster.isolation),
    ):
        if (given := getattr(options, name)) not in (there, getattr(usual, name)):
            raise UserError(f"--{name} is for runs on this machine; this cluster has {there}. Received: {given}")
    return cluster


def cluster_of_flags(options: Options, how: dict[str, Any]) -> Cluster:
    """The task that --ps_hosts, --worker_hosts, --job_name and --task_index name."""
    from ..cluster.discovery import split_hosts

    if not options.job_name:
        raise UserError("which task is this? Give --job_name and --task_index, or --print-commands to see all")
    return Cluster.at(
        ps_hosts=split_hosts(options.ps_hosts),
        worker_hosts=split_hosts(options.worker_hosts),
        job_name=cast(JobName, options.job_name),
        task_index=options.task_index,
        separate_evaluator=options.separate_evaluator,
        **how,
    )


def print_commands(scheme_type: type[Scheme], options: Options, arguments: list[str]) -> int:
    """What to type on each machine."""
    import dataclasses

    from ..cluster.discovery import commands

    if options.worker_hosts:
        options = dataclasses.replace(options, job_name=options.job_name or "worker")
    task = find_cluster(options).task
    if task is None:
        raise UserError("--print-commands needs the addresses: --ps_hosts=host:port,... --worker_hosts=host:port,...")
    own = {"ps_hosts", "worker_hosts", "job_name", "task_index", "separate_evaluator", "cluster", "print_commands"}
    kept, words = [], iter(arguments)
    for word in words:
        flag, equals, _ = word.removeprefix("--").replace("-", "_").partition("=")
        if word.startswith("--") and flag in own:
            if not equals and flag not in ("separate_evaluator", "print_commands"):
                next(words, None)  # its value
        else:
            kept.append(word)
    print("\n".join(commands(task, ["bash", "run.sh", scheme_type.name, *kept])))  # noqa: T201
    return 0


def parse_flags(scheme_type: type[Scheme], arguments: list[str]) -> tuple[Scheme, Options]:
    """The algorithm and the options that the flags describe."""
    alone = timing(scheme_type) == "one process"
    scheme, options = flags.read(
        f"run.sh {scheme_type.name}",
        scheme_type.idea[0].upper() + scheme_type.idea[1:] + f" ({scheme_type.paper})." * (scheme_type.paper != "none"),
        arguments,
        {f"hyperparameters of {scheme_type.name}": scheme_type, "options": AloneOptions if alone else Options},
        GROUPS,
    )
    return scheme, options


def run_command(scheme: Scheme, options: Options) -> int:
    """Run an algorithm as the options say; shows the result, returns the exit code."""
    import dataclasses

    from rich.console import Console

    from ..files import dumps
    from ..problems import data, models
    from ..problems.sparse import sparsity
    from ..record.display import summary
    from ..record.run_directory import new_run_dir
    from ..training import describe, make_job, run

    cluster = find_cluster(options, scheme.gate.uses_ps)
    if options.model:
        parse("model", options.model, models.MODELS)
    with Console(stderr=True).status(f"{scheme.name}: reading the data ..."):  # on a terminal, until there is more
        dataset = data.load(options.dataset)
    model = models.name_for(options.model, sparse=dataset.features > 0)
    recipe = models.ModelRecipe.named(model, dataset.shape, dataset.classes, options.seed)
    job = make_job(
        scheme,
        recipe,
        dataset.train,
        dataset.test,
        cluster,
        epochs=options.epochs,
        steps=options.steps,
        batch_size=options.batch_size,
        seed=options.seed,
        run_dir=options.run_dir or new_run_dir(scheme.name),
        clip_norm=options.clip_norm,
        l2=options.l2,
        ema_decay=options.ema_decay,
        stop_at_version=options.stop_at_version,
        stop_at_accuracy=options.stop_at_accuracy,
        tensorboard=options.tensorboard,
        record=options.record,
        recovery=Recovery(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Recovery)}),
    )
    job.scheme = shaped(job.scheme, options.lr_schedule, job.steps)
    config = describe(job, options.dataset, model)
    if dataset.features:
        config["sparsity"] = sparsity(dataset.train[0], dataset.features)
    record, error = run(job, config, verbose=True)
    result = record.finish(error)
    if error is not None and not isinstance(error, DistsgdError | Interrupted):
        raise error  # a fault of ours: the traceback helps
    if error is not None:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        if isinstance(error, UserError) and not record.rows:
            return error.exit_code
    elif cluster.evaluates:
        Console().print(summary(result))
    else:
        Console().print(f"{cluster.task}: {result['outcome']}")
    if options.json:
        print(dumps(result), flush=True)  # noqa: T201
    return result["exit_code"]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
