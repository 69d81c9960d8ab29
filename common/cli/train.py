"""Training by an algorithm of the catalogue: `bash run.sh downpour`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ...algorithms import SCHEMES
from ..cluster.fingerprint import flat, model_digest
from ..contract.rounding import codec_of
from ..contract.schedules import ruled, shaped
from ..contract.scheme import Scheme
from ..data.sparse_data import sparsity
from ..errors import CannotWrite, DistsgdError, Interrupted, UserError
from ..files import dumps
from ..launch.run import run
from ..lazy import require_tensorflow
from ..record import checkpoint
from ..record.loggers import LOGGERS
from ..record.run_directory import RunRecord
from ..record.summary import summary
from ..record.tables import aligned
from ..signals import added, held
from ..tasks.job import Job, describe, make_job
from ..training import try_on_a_batch
from .catalogue import meant_by
from .config_file import FLAG, read_config_file, split_config, with_settings
from .dry_run import expected, size_table, sizes
from .flag_groups import RUN, Options, Output, commands, find_cluster, options_of, parse_flags, with_machines
from .flags import Parser
from .imports import words_of_imports
from .own import find_problem

MOST_STEPS, STEPS_OF_ALL = 1000, 50_000  # of one worker, and of all workers together

LEAST_ROUNDS = 4

MOST_EXAMPLES = 4_000_000  # half a gigabyte

TEST_EXAMPLES = 2000


def with_data(options: Options, schemes: Iterable[Scheme]) -> tuple[Options, str]:
    """Choose data for a run without --dataset; return the options, and a line on the choice, "" if the user chose.

    A simulation gets generated data, and as many steps as take about a minute; each worker has at least a few rounds
    of each of the `schemes`, which all get the same data. Any other run gets digits.

    Raises:
        UserError: two options exclude each other.
    """
    if options.run.steps is not None and options.run.epochs != RUN.epochs:
        raise UserError(
            f"--steps and --epochs exclude each other. Received: {options.run.steps} and {options.run.epochs}"
        )
    if options.data is not None and options.dataset is not None:
        raise UserError(f"--data and --dataset exclude each other. Received: {options.data} and {options.dataset}")
    if options.data is not None:
        return options, ""
    if options.dataset is not None or options.backend != "simulation":
        return replace(options, dataset=options.dataset or "digits"), ""
    if options.run.epochs != RUN.epochs:
        raise UserError(
            "a simulation without --dataset generates new examples for each step: give --steps, not --epochs"
        )
    workers, batch = max(1, options.workers), options.run.batch_size
    least = LEAST_ROUNDS * max(scheme.period for scheme in schemes)
    steps = options.run.steps or max(least, min(MOST_STEPS, STEPS_OF_ALL // workers))
    wanted = workers * batch * steps
    examples = max(min(wanted, MOST_EXAMPLES), workers * batch)
    often = "none of them twice" if examples == wanted else f"each of them about {wanted / examples:.1f} times"
    chosen = replace(
        options, dataset=f"synthetic:examples={examples},test={TEST_EXAMPLES}", run=replace(options.run, steps=steps)
    )
    return chosen, f"no --dataset: {steps} steps of each worker on {examples:,} generated examples, {often}"


def run_algorithm(scheme: Scheme, options: Options, arguments: list[str]) -> int:
    """Run an algorithm, or print the command of each machine; `arguments` are the flags that describe it."""
    if options.machines.print_commands:
        words = [*words_of_imports(scheme, codec_of(options.run.codec)), scheme.name]
        print("\n".join(commands(words, options, arguments)))  # noqa: T201
        return 0
    return run_command(scheme, options)


def train_by_file(arguments: list[str]) -> int:
    """Run the algorithm that the file of `--config` names, with its settings; return the exit code."""
    path, rest = split_config(arguments)
    if path is None and {"-h", "--help", "--help-all"} & {*rest}:
        about = "Train with the settings of a file: config.json of a run, or TOML that names an algorithm."
        usage = f"run.sh train {FLAG} runs/downpour/latest [options of its algorithm]"
        Parser("run.sh train", about, usage=usage).print_help()
        return 0
    if path is None:
        raise UserError(
            f"train takes the algorithm from a file: give {FLAG} runs/downpour/latest. Or type: downpour ..."
        )
    content = read_config_file(path)
    if (name := content.get("algorithm")) is None:
        raise UserError(
            f'{path} names no algorithm: add a line such as algorithm = "downpour", or type: downpour {FLAG} ...'
        )
    scheme_type = SCHEMES[meant_by(str(name), f"{path}: ")[0]]
    words = with_settings(scheme_type, options_of(scheme_type), path, content, rest)
    return run_algorithm(*parse_flags(scheme_type, words), words)


def run_command(scheme: Scheme, options: Options) -> int:
    """Run an algorithm with these options, show the result, and return the exit code."""
    options, note = with_data(with_machines(options), [scheme])
    if options.dry_run:
        job, _, model = prepared(scheme, options)
        measured = expected(job, model)  # first: TensorFlow starts with the threads of a worker
        found = sizes(job, model) | measured
        Console().print(size_table(found))
        if options.output.json:
            print(dumps(found), flush=True)  # noqa: T201
        return 0
    with added(options.run.recovery.signals):
        return shown(performed(scheme, options, note), options.output)


def shown(ended: tuple[RunRecord, BaseException | None], output: Output) -> int:
    """Finish the record of a run, and show its result; return the exit code, which no signal changes any more."""
    with held() as noted:
        code = show(*finished(*ended), output)
        noted.clear()
    return code


def show(record: RunRecord, result: dict[str, Any], error: DistsgdError | Interrupted | None, output: Output) -> int:
    """Print the result of a run, or its error in one line; return the exit code."""
    if error is not None:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        if isinstance(error, UserError) and not record.rows:
            return error.exit_code
    elif output.quiet:
        for warning in result["recovery"]["warnings"]:
            print(f"warning: {warning}", file=sys.stderr)  # noqa: T201
    try:
        if (error is None or isinstance(error, Interrupted)) and not output.quiet:
            has_result = record.task is None or record.task.evaluates
            Console().print(summary(result) if has_result else f"{record.task}: {result['outcome']}")
        if result["outcome"] == Interrupted.outcome and checkpoint.found(record.run_dir):
            print(f"to continue: the same command with --resume {record.run_dir}", file=sys.stderr)  # noqa: T201
        if output.json:
            print(dumps(result), flush=True)  # noqa: T201
    except CannotWrite as problem:  # the run has completed, and its folder has the result
        print(f"error: {problem}. The result is in {record.run_dir}", file=sys.stderr)  # noqa: T201
    return result["exit_code"]


def perform(
    scheme: Scheme, options: Options, note: str = "", *, verbose: bool = True
) -> tuple[RunRecord, dict[str, Any], DistsgdError | Interrupted | None]:
    """Run an algorithm with these options; return its record, its result, and its error, None if it succeeded.

    Args:
        scheme: the algorithm.
        options: options that name data.
        note: a line on choices made for the user, printed after all options have been checked.
        verbose: show the progress of the run.
    """
    return finished(*performed(scheme, options, note, verbose=verbose))


def performed(
    scheme: Scheme, options: Options, note: str = "", *, verbose: bool = True
) -> tuple[RunRecord, BaseException | None]:
    """Do the same up to the end of the run: its record has yet to be finished."""
    job, config, model = prepared(scheme, options)
    begin(config, job.run_dir, options.output, note)
    loggers = [LOGGERS[options.log]()] if options.log is not None and job.cluster.evaluates else []
    verbose = verbose and not options.output.quiet
    return run(job, config, verbose=verbose, model=model, callbacks=loggers)


def begin(config: dict[str, Any], run_dir: Path, output: Output, note: str = "") -> None:
    """Print a line on choices made for the user, unless quiet; and all settings if verbose."""
    if output.quiet and output.verbose:
        raise UserError("--quiet and --verbose exclude each other")
    if note and not output.quiet:
        print(note, file=sys.stderr, flush=True)  # noqa: T201
    if output.verbose:
        print(aligned(flat({**config, "run_dir": str(run_dir)})), file=sys.stderr)  # noqa: T201


def prepared(scheme: Scheme, options: Options) -> tuple[Job, dict[str, Any], Any]:
    """Return the job of a run, its configuration, and the Keras model, None for a model by name; nothing starts."""
    require_tensorflow()
    cluster = find_cluster(options, scheme.sync.uses_ps)
    with Console(stderr=True).status(f"{scheme.name}: reading the data ..."):  # shown only on a terminal
        in_tasks = not (cluster.placement.in_process or options.dry_run)
        dataset, name, recipe, model = find_problem(options, only_tries=in_tasks)
    if options.run.exclude_from_weight_decay is not None or model is not None:
        recipe = recipe.excluding(options.run.exclude_from_weight_decay, model)
    scheme = ruled(scheme, options.period_rule)
    job = make_job(scheme, recipe, dataset.train, dataset.test, cluster, options.run)
    job.scheme = shaped(job.scheme, options.lr_schedule, job.steps)
    if model is not None:
        try_on_a_batch(job, model)
    config = describe(job, options.data or options.dataset or "", name)
    if model is not None:
        config["architecture"] = model_digest(model)
    if dataset.features:
        config["sparsity"] = sparsity(dataset.train[0], dataset.features)
    return job, config, model


def finished(
    record: RunRecord, error: BaseException | None
) -> tuple[RunRecord, dict[str, Any], DistsgdError | Interrupted | None]:
    """Finish the record of a run; return it with the result and the error. A bug of this package is raised."""
    result = record.finish(error)
    if error is not None and not isinstance(error, DistsgdError | Interrupted):
        raise error  # the traceback helps
    return record, result, error
