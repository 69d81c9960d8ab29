"""The command line: `bash run.sh <algorithm>` and the other commands.

Each module imports at its top, but for this one, which imports the module of the command. Slow imports that few
commands need (TensorFlow, Keras, scikit-learn, SciPy, Matplotlib) stand in functions, here and everywhere. So `--help`
and `list` answer at once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...algorithms import SCHEMES
from ..arguments import nearest, spelt
from ..errors import DistsgdError, Interrupted, UserError
from ..signals import USUAL, interrupt
from . import flags
from .catalogue import aliases, known_names, meant_by

# The commands, as the overview shows them: usage and meaning.
GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "Train": (
        ("<algorithm>", "train with it: two workers and a parameter server (ps), on handwritten digits"),
        ("<algorithm> --help", "show its hyperparameters and the usual options (--help-all: all of them)"),
        ("<algorithm> --model file.py:build", "train your own model; --data file.py:load reads your own data"),
        ("--import file.py ...", "use an algorithm or a codec of your own with any command"),
        ("launch my_script.py", "train in a script's own loop, with distsgd.join: --workers 4"),
        ("deploy kubernetes --workers 8", "print what starts a run on several machines: or deploy slurm, deploy hosts"),
        ("train --config <file>", "train with the settings of a file: config.json of a run, or TOML"),
        ("sweep <a>,<b>", "train with several algorithms, values and seeds: --seeds 3 --table latex"),
        ("pip install <package>", "install a package of your own into the environment that runs use"),
    ),
    "Choose": (
        ("list", "show the catalogue"),
        ("explain <algorithm>", "show its equations, use, origin, departures and limits"),
        ("advise --workers 64", "recommend an algorithm for given workers, links and stragglers"),
        ("bandwidth <algorithm> ...", "compute how fast a link an algorithm needs: --parameters 1B"),
        ("tutorials", "open the notebooks in Jupyter Lab, installed at first (--execute: execute and save)"),
    ),
    "Inspect": (
        ("runs --filter algorithm=downpour", "list the runs in runs/, the newest last"),
        ("compare <run dir> <run dir> ...", "compare runs: settings and results in a table, and a plot"),
        ("plot <run dir> ...", "plot loss and error of runs: --x updates, examples, seconds or bytes"),
        ("replay <run dir>", "verify a run: re-execute its event log in NumPy and compare the weights"),
        ("timeline <run dir> [<run dir>]", "write a trace of computing, waiting and sending for Perfetto"),
        ("evaluate <run dir>", "measure the checkpoints of a run as they appear; needs only its folder"),
        ("doctor", "show versions, machine and permissions, for a bug report"),
        ("completion bash", 'code for a shell: eval "$(distsgd completion bash)" (or zsh, fish)'),
    ),
    "Simulate": (
        ("simulate <algorithm>", "train in virtual time on described machines: --workers 1000"),
        ("simulate --compare <a>,<b>", "compare several algorithms on the same machines, in a table"),
        ("leaderboard [<name> ...]", "rank algorithms by virtual time to a loss, of eight trials each"),
    ),
    "Develop": (
        ("test", "run the test suite (arguments go to pytest)"),
        ("mutants", "mutation testing: make one fault at a time, check that a test fails (6 minutes)"),
        ("docs", "build the site in build/site: a page for each algorithm, tutorials, reference"),
        (
            "check-devices",
            "run the catalogue on the GPUs (or CPUs) of this machine: a table to send (a quarter of an hour)",
        ),
    ),
}

# Commands that the pages in docs/ are made with, which `--help-all` shows, too.
MEASUREMENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "Measurements of this project": (
        ("benchmark", "measure each algorithm's virtual time to a target loss (--quick: three minutes)"),
        ("claims [<name> ...]", "test claims of the papers in virtual time, with verdicts"),
        ("reproduced [<name> ...]", "execute experiments of the papers with their settings"),
        ("outputs [<name> ...]", "train each algorithm with its defaults, and keep the output for its page"),
        ("choosing [<name> ...]", "execute the commands of docs/choosing.md and draw its pictures"),
        ("advice", "compute the answers of `advise` that docs/choose.md shows (half an hour)"),
        ("pictures [<name> ...]", "draw the measured pictures again that show something else than their results"),
        ("verdicts", "train and replay every algorithm with 1 to 8 workers (hours): no run may differ"),
        ("soak", "run while tasks are killed and stopped at random: --minutes 5 --seed 1"),
        ("endurance", "measure memory and disk use of a run at full speed: --minutes 10"),
        ("throughput", "steps per second beside one process, ParameterServerStrategy and PyTorch"),
        ("large", "train models of 21 and 100 million parameters; measure seconds and memory"),
        ("collisions", "hogwild on sparse data, with and without a lock"),
        ("stragglers", "sync_sgd with backup workers, where some batches are late"),
        ("validate-simulation", "compare real runs with a simulation that was fitted to other runs"),
    ),
}

# The functions of the commands, as module:function of this package, or as a module of `benchmarks`.
COMMANDS = {
    "launch": "launching:main",
    "deploy": "deploy:main",
    "train": "train:train_by_file",
    "sweep": "sweep:main",
    "pip": ".packages:pip",
    "list": "catalogue:catalogue",
    "explain": "catalogue:explanation",
    "advise": "..simulator.cli.advise:main",
    "bandwidth": "..simulator.cli.bandwidth:main",
    "tutorials": "tutorials:main",
    "runs": "runs:list_runs",
    "compare": "runs:compare",
    "plot": "runs:plot",
    "replay": "commands:replay_run",
    "timeline": "commands:timeline",
    "evaluate": "commands:evaluate",
    "doctor": "doctor:main",
    "completion": "completion:main",
    "simulate": "..simulator.cli.simulate:main",
    "leaderboard": "leaderboard",
    "benchmark": "convergence",
    "claims": "claims",
    "reproduced": "reproduced",
    "test": "commands:test",
    "mutants": "commands:mutants",
    "docs": "commands:docs",
    "outputs": "outputs",
    "choosing": "choosing",
    "advice": "advice",
    "pictures": "pictures",
    "check-devices": "check_devices",
    "verdicts": "verdicts",
    "soak": "soak",
    "endurance": "endurance",
    "throughput": "throughput",
    "large": "large",
    "collisions": "collisions",
    "stragglers": "stragglers",
    "validate-simulation": "validation",
}


def main() -> NoReturn:
    """Run the command of `sys.argv`; turn errors into one line and an exit code."""
    for number in USUAL:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    if "_ARGCOMPLETE" in os.environ:
        import_module(".completion", __package__).complete([*COMMANDS])
    try:
        sys.exit(dispatch(sys.argv[1:]))
    except (DistsgdError, Interrupted) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print(f"error: {Interrupted(signal.SIGINT)}", file=sys.stderr)  # noqa: T201
        sys.exit(130)


def dispatch(arguments: list[str]) -> int:
    """Run the command that the arguments name; return its exit code.

    Raises:
        UserError: they are wrong, or have a name that no file system takes.
    """
    try:
        return _dispatch(arguments)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or not error.filename:
            raise
        name = os.fspath(error.filename)
        raise UserError(f"the name of a file is too long ({len(name)} characters). Received: {name[:40]}...") from None


def _dispatch(arguments: list[str]) -> int:
    wanted = "a Python file that defines a scheme or a codec, as in --import my_scheme.py"
    files, arguments = flags.taken_out("--import", arguments, wanted)
    for file in files:
        function("imports:import_file")(file, SCHEMES)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        return overview(GROUPS)
    if arguments[0] == "--help-all":
        return overview(GROUPS | MEASUREMENTS)
    if arguments[0] in ("-V", "--version", "version"):
        from importlib.metadata import version

        print(f"distsgd {version('distsgd')}")  # noqa: T201
        return 0
    word, *rest = name_first(arguments)
    command = known_as(word)
    if place := COMMANDS.get(command):
        return function(place)(rest) if ":" in place else function("commands:measure")(place, rest)
    if command:
        name, *meant = meant_by(command)
        words = [*meant, *rest]
        with function(".launch.server_process:ahead")(rest):
            scheme, options = function("flag_groups:parse_flags")(SCHEMES[name], words)
            return function("train:run_algorithm")(scheme, options, words)
    otherwise = "See --help"
    if flag := spelt(word, flags.names(function("flag_groups:Options"))):
        otherwise = f"It is an option, as in: downpour {flags.flag_of(flag)} ..."
    names = [*known_names(), *COMMANDS]
    raise UserError(f"unknown algorithm or command {word!r}. {nearest(word, names, otherwise)}")


def known_as(word: str) -> str:
    """Return the algorithm or command of this name in its own spelling; "" if there is none."""
    return spelt(word, (*SCHEMES, *COMMANDS)) or spelt(word, aliases()) or ""


def function(place: str) -> Any:
    """Import a function of this package, given as `module:function`, and return it."""
    module, _, name = place.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


def name_first(arguments: list[str]) -> list[str]:
    """Move the command to the front: `--workers 4 downpour` becomes `downpour --workers 4`."""
    if not arguments[0].startswith("-"):
        return arguments
    names = [word for word in arguments if known_as(word)]
    if len(names) != 1:
        raise UserError(f"the algorithm or command comes first, as in: downpour {' '.join(arguments)}")
    rest = list(arguments)
    rest.remove(names[0])
    return [*names, *rest]


def overview(groups: Mapping[str, Iterable[tuple[str, str]]]) -> int:
    """Print commands with usage and meaning, in groups, and the names of the algorithms; return the exit code."""
    console = Console(highlight=False)
    console.print("Distributed SGD algorithms on TensorFlow, on real processes.\n")
    console.print(f"Usage: {flags.PROGRAM} <algorithm or command> ...")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    for group, rows in groups.items():
        table.add_row()
        table.add_row(Text(group, style="bold"))
        for usage, meaning in rows:
            table.add_row(f"  {usage}", meaning)
    console.print(table)
    console.print(f"\n[bold]Algorithms[/] ({len(SCHEMES)})\n  {', '.join(SCHEMES)}")
    if not groups.keys() & MEASUREMENTS.keys():
        console.print("\nThe commands that measure this project, too: --help-all")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
