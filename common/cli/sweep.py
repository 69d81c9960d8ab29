"""Runs of algorithms, with several seeds and values of options: `sweep downpour,diloco --seeds 3`."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from ...algorithms import SCHEMES
from ..cluster.cluster import Cluster
from ..cluster.fingerprint import class_digest
from ..cluster.platform import Platform
from ..contract.hyperparameters import Natural, check_fields
from ..contract.rounding import codec_of
from ..contract.scheme import Scheme
from ..errors import DistsgdError, Interrupted, UserError
from ..files import dumps
from ..launch.client import keep_warm
from ..record import checkpoint
from ..record.bands import Band
from ..record.latest import ROOT
from ..record.plot import FINE, Axis, Width, check_format, save
from ..record.repeats import FINISHED
from ..record.sheet import TableFormat
from ..record.tables import page
from ..record_format import read_json
from ..signals import StopSignals, added
from ..system import usable_cores
from ..tasks.job import checked
from . import flags
from .catalogue import meant_by
from .config_file import expanded
from .flag_groups import OUTPUT, Options, TaskFlags, find_cluster, options_of, read_flags, scheme_of, with_machines
from .imports import words_of_imports
from .sweep_report import Trial, best_of, curves, picture, report, table
from .train import perform, with_data

DISPLAY: dict[str, Any] = {"output": OUTPUT, "log": None, "dry_run": False}  # options that change no result

HOW = "as in: sweep downpour --learning-rate 0.05,0.1,0.2 --seeds 3, or: sweep downpour,diloco --seeds 3"


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options of a sweep itself."""

    seeds: Natural = 1
    """Number of runs of each setting, with the seeds from --seed on. Runs with the same seed have the same initial
    weights, shards and order of batches."""
    parallel: Natural | None = None
    """Number of runs at the same time; the default is the number of cores divided by that of the tasks of a run."""

    table: TableFormat | None = None
    """Print the table as CSV, Markdown or LaTeX (booktabs): means and standard deviations over the seeds."""
    x: Axis | None = None
    """Horizontal axis of the curves in the plot: a mean for each algorithm, with its best setting. Default: seconds for
    several algorithms; for one, the plot has its losses over the values of the first option."""
    band: Band = "deviation"
    """Extent of the band around a mean curve: standard deviation, or range, from the least to the greatest value."""
    width: Width | None = None
    """Width of the plot in a paper: one column (3.3 inches) or a page (6.9 inches), with texts of 7 points."""
    plot: Path | None = None
    """Path of the plot: .png, .svg or .pdf. Default: sweep-....png in runs/."""

    def __post_init__(self):
        check_fields(self)
        if self.plot is not None:
            check_format("--plot", self.plot)


def main(arguments: list[str]) -> int:
    """Train with each combination of values, print a table and write a plot; return the exit code."""
    if not arguments or (arguments[0].startswith("-") and not {"-h", "--help"} & set(arguments)):
        raise UserError(f"sweep needs the algorithm first, {HOW}")
    texts, words = _named(["downpour", *arguments] if arguments[0].startswith("-") else arguments)
    trials, sweeping, options = _trials(texts, words)
    if options.dry_run:
        for trial in trials:
            print(f"{trial.in_words()}: {'finished' if trial.result else 'to be trained'} ({trial.run_dir})")  # noqa: T201
        return 0
    interrupted: Interrupted | None = None
    if unfinished := [trial for trial in trials if not trial.result]:
        try:
            _train_all(unfinished, len(trials), sweeping.parallel or _fitting(options))
        except Interrupted as error:
            for trial in unfinished:  # the signal may have come while a completed run drew its plot, or have cut a run
                if trial.result.get("outcome", Interrupted.outcome) == Interrupted.outcome:
                    trial.result = result_in(trial.run_dir)
            interrupted, trials = error, [trial for trial in trials if trial.result]
    if trials:
        _show(",".join(texts), trials, sweeping, options)
    if interrupted is not None:
        print("to continue: the same command trains what is missing", file=sys.stderr)  # noqa: T201
        raise interrupted
    return min(trial.result["exit_code"] for trial in trials)  # one setting that diverges is a finding


def _named(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the algorithms before the first flag, between commas or spaces, and the other words."""
    before = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    texts = [text.strip() for word in before for text in flags.listed(word) if text.strip()]
    return list(dict.fromkeys(texts)), list(arguments[len(before) :])


def _show(name: str, trials: Sequence[Trial], sweeping: SweepOptions, options: Options) -> None:
    """Print the table of the runs, and write their plot."""
    several = "algorithm" in trials[0].settings
    folder = ROOT if several else ROOT / trials[0].scheme.name
    file = sweeping.plot or folder / f"sweep-{_digest([trial.run_dir for trial in trials])}.png"
    if sweeping.x or several:
        figure = curves(trials, sweeping.x or "seconds", sweeping.band, sweeping.width)
    else:
        figure = picture(name, trials, sweeping.width)
    if figure is not None:
        save(figure, file, **({"dpi": FINE} if sweeping.width else {}))
    found = table(name, trials)
    plotted = [] if figure is None else [f"plot: {file}"]
    if sweeping.table:
        print(found.in_format(sweeping.table))  # noqa: T201
        print("\n".join([*report(trials), *plotted]), file=sys.stderr)  # noqa: T201
    elif not options.output.quiet:
        page().print(found.for_terminal(padding=(0, 1, 0, 0)))
        print("\n".join([*[found.note] * (sweeping.seeds > 1), *report(trials), *plotted]))  # noqa: T201
    if options.output.json:
        best, runs = best_of(trials), [{"settings": t.settings, "seed": t.seed, "result": t.result} for t in trials]
        content = {
            "algorithm": name,
            "best": best,
            "plot": figure and str(file),
            "table": found.records(),
            "runs": runs,
        }
        print(dumps(content), flush=True)  # noqa: T201


def split(scheme_type: type[Scheme], words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the flags with several values, `--learning-rate 0.1,0.2`, by name, and the other words."""
    fixed = {name for kind in (Platform, TaskFlags) for name in flags.names(kind)}  # lists of addresses and factors
    names = {*flags.names(scheme_type), *flags.names(Options)} - fixed
    axes: dict[str, list[str]] = {}
    rest, left = [], iter(words)
    for word in left:
        name, (_, equals, value) = flags.field_of(word, names), word.partition("=")
        if name not in names:
            rest.append(word)
            continue
        flag_words = [word] if equals else [word, *itertools.islice(left, 1)]
        values = flags.listed(value if equals else flag_words[-1])
        if len(values) > 1 and all(values):
            axes[name] = list(dict.fromkeys(values))
        else:
            rest += flag_words
    return axes, rest


def _trials(texts: Sequence[str], words: Sequence[str]) -> tuple[list[Trial], SweepOptions, Options]:
    """Return the runs of a sweep, all checked, with the results of those that are finished; and the options."""
    meant = [meant_by(text.partition(":")[0]) for text in texts]
    kinds = [SCHEMES[name] for name, *_ in meant]
    settings: list[SweptSetting] = []
    for text, kind, (_, *before) in zip(texts, kinds, meant, strict=True):
        options_of_text = flags.words(scheme_of(text)) if ":" in text else []
        typed = [*before, *_without(kinds, kind, words)]
        settings += _settings(text if len(texts) > 1 else "", kind, typed, options_of_text)
    sweeping, options = settings[0].sweep_options, settings[0].options
    found = [
        (setting, seed)
        for setting in settings
        for seed in range(setting.options.run.seed, setting.options.run.seed + sweeping.seeds)
    ]
    if len(found) == 1:
        raise UserError(f"sweep needs several values of an option, or --seeds, or several algorithms, {HOW}")
    fitted = with_machines(options)  # --like is fitted once
    schemes = [setting.scheme for setting in settings]
    trials = []
    for setting, seed in found:
        trial_options = replace(setting.options, run=replace(setting.options.run, seed=seed))
        trial_options, note = with_data(replace(trial_options, platform=fitted.platform, like=fitted.like), schemes)
        cluster = find_cluster(trial_options, setting.scheme.sync.uses_ps)
        _refuse(trial_options, cluster)
        checked(setting.scheme, None, cluster, trial_options.run)
        folder = run_dir_of(setting.scheme, trial_options)
        trial_options = replace(trial_options, run=replace(trial_options.run, run_dir=folder))
        kept = {name: value for name, value in setting.values.items() if name != "seed"}
        trials.append(Trial(kept, seed, folder, setting.scheme, trial_options, note, result_in(folder)))
    return trials, sweeping, options


class SweptSetting(NamedTuple):
    """A combination of values: as typed, and as the dataclasses that they make."""

    values: dict[str, str]
    sweep_options: SweepOptions
    scheme: Scheme
    options: Options


def _without(kinds: Sequence[type[Scheme]], kind: type[Scheme], words: Sequence[str]) -> list[str]:
    """Return the words without hyperparameters that other algorithms of the sweep have, and this one has not."""
    names = {*flags.names(kind), *flags.names(Options)}
    having = {name: other for other in kinds for name in flags.names(other) if name not in names}
    kept, left = [], iter(words)
    for word in left:
        name = flags.field_of(word, having)
        if word.startswith("-") and name in having:
            if flags.takes_value(having[name], word):
                next(left, None)
        else:
            kept.append(word)
    return kept


def _settings(text: str, kind: type[Scheme], words: Sequence[str], overrides: Sequence[str]) -> list[SweptSetting]:
    """Return the combinations of values of an algorithm.

    Args:
        text: the algorithm as typed; "" if it is the only one of the sweep.
        kind: the algorithm.
        words: the flags of the sweep.
        overrides: flags of this algorithm alone, which override these.
    """
    axes, rest = split(kind, words)
    axes = {name: values for name, values in axes.items() if name not in set(map(flags.field_of, overrides))}
    first = [f"{flags.flag_of(name)}={values[0]}" for name, values in axes.items()]
    rest = expanded(kind, options_of(kind), [*rest, *overrides, *first])  # a file of settings is read once

    def read(words: Sequence[str]) -> list[Any]:
        return read_flags(f"run.sh sweep {kind.name}", kind, words, {"sweep": SweepOptions})

    sweep_options, *_ = read(rest)
    if "seed" in axes and sweep_options.seeds > 1:
        raise UserError(
            f"--seeds and several values of --seed exclude each other. Received: --seeds {sweep_options.seeds}"
        )
    found = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        _, scheme, options = read([*rest, *(f"{flags.flag_of(name)}={value}" for name, value in chosen.items())])
        found.append(SweptSetting({**({"algorithm": text} if text else {}), **chosen}, sweep_options, scheme, options))
    return found


def _refuse(options: Options, cluster: Cluster) -> None:
    """Raise `UserError` for an option that a sweep cannot give to each of its runs."""
    if options.run.run_dir is not None or options.run.recovery.resume is not None:
        raise UserError("each run of a sweep has a folder of its own: leave --run-dir and --resume out")
    if options.machines != TaskFlags() or cluster.task is not None:
        raise UserError("a sweep trains on this machine: leave the flags of several machines and TF_CONFIG out")


def run_dir_of(scheme: Scheme, options: Options) -> Path:
    """Return the folder of the run with these settings: the finished one, one that can be resumed, or a new one."""
    files = [Path(text.rpartition(":")[0]) for text in (options.model, options.data) if text and flags.in_file(text)]
    # Flags as typed: an option that a later version adds and the user does not give changes no name.
    identity = [class_digest(type(scheme)), scheme, flags.words(replace(options, **DISPLAY))]
    stem = f"sweep-{_digest([*identity, *(path.read_bytes() for path in files if path.is_file())])}"
    attempts = (ROOT / scheme.name / f"{stem}{f'-{number}' * (number > 1)}" for number in itertools.count(1))
    return next(path for path in attempts if result_in(path) or checkpoint.found(path) or not _failed(path))


def _failed(run_dir: Path) -> bool:
    return (run_dir / "result.json").exists()


def _digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:10]


def result_in(run_dir: Path) -> dict[str, Any]:
    """Return the result of the finished run in a folder; an empty one if it has none."""
    path = run_dir / "result.json"
    result = dict(read_json(path)) if path.is_file() else {}
    return result if result.get("outcome") in FINISHED else {}


def _fitting(options: Options) -> int:
    """Return how many runs fit on the cores of this machine; a simulation takes two."""
    tasks = 2 if options.backend == "simulation" else options.workers + options.ps
    return max(1, usable_cores() // tasks)


def _train_all(trials: Sequence[Trial], total: int, parallel: int) -> None:
    """Make the runs that are not finished, and report each on standard error."""
    already = total - len(trials)
    if already and not trials[0].options.output.quiet:
        print(f"{already} of {total} runs are finished already", file=sys.stderr)  # noqa: T201
    if trials[0].note and not trials[0].options.output.quiet:
        print(trials[0].note, file=sys.stderr)  # noqa: T201
    runs = _at_once(trials, parallel) if parallel > 1 and len(trials) > 1 else _in_turn(trials)
    with added(trials[0].options.run.recovery.signals):
        for number, trial in enumerate(runs, already + 1):
            if not trial.options.output.quiet:
                print(f"{number} of {total}: {trial}", file=sys.stderr, flush=True)  # noqa: T201


def _in_turn(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Make the runs one after the other, in one warm fork server."""
    with keep_warm():
        for trial in trials:
            with Console(stderr=True).status(f"{trial.in_words()} ..."):  # shown only on a terminal
                _, trial.result, error = perform(trial.scheme, trial.options, verbose=False)
            if isinstance(error, UserError | Interrupted):
                raise error
            yield trial


def _at_once(trials: Sequence[Trial], parallel: int) -> Iterator[Trial]:
    """Make several runs at the same time, each by a command of its own."""
    running: set[subprocess.Popen[str]] = set()

    def train(trial: Trial) -> Trial:
        command = [sys.executable, "-m", "distsgd.common.cli.main", *command_of(trial)]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        # In a session of its own: Ctrl-C would reach it twice, from the terminal and from here, and end it at once.
        with subprocess.Popen(command, start_new_session=True, **pipes) as process:
            running.add(process)
            if stop.number is not None:  # the signal came while the process was started
                process.send_signal(stop.number)
            _, errors = process.communicate()
            running.discard(process)
        path = trial.run_dir / "result.json"
        if path.is_file():
            trial.result = dict(read_json(path))
            return trial
        error = f"{trial.in_words()}: {(errors.splitlines() or ['no result'])[-1]}"
        if stop.number is not None or not (process.returncode == DistsgdError.exit_code or process.returncode < 0):
            raise UserError(error)  # wrong options, an interruption
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        trial.result = {"outcome": "failed", "exit_code": DistsgdError.exit_code}  # the other runs remain
        return trial

    with (
        StopSignals(trials[0].options.run.recovery.signals, lambda name: None) as stop,
        ThreadPoolExecutor(parallel) as pool,
    ):
        try:
            for trial in [pool.submit(train, trial) for trial in trials]:
                yield trial.result()
        except BaseException:
            # The runs know the signal that has come here, and name it in their results. A second one ends them at once.
            for number in (stop.number or signal.SIGTERM, signal.SIGTERM):
                with contextlib.suppress(Interrupted):
                    pool.shutdown(wait=False, cancel_futures=True)
                    for process in list(running):
                        process.send_signal(number)
                    pool.shutdown()
                    break
            raise


def command_of(trial: Trial) -> list[str]:
    """Return the words of the command that makes one run of a sweep."""
    imports = words_of_imports(trial.scheme, codec_of(trial.options.run.codec))
    return [*imports, trial.scheme.name, *flags.words(trial.scheme), *flags.words(trial.options)]
