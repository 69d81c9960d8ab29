"""The command line: `bash run.sh <algorithm>` and the other commands.

Each module imports at its top. Slow imports that few commands need (TensorFlow, Keras, scikit-learn, SciPy, Matplotlib)
stand in functions, here and everywhere, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...algorithms import SCHEMES
from ..arguments import nearest, spelt
from ..errors import DistsgdError, Interrupted, UserError
from . import advise, bandwidth, completion, doctor, flags, launching, runs, simulate, sweep
from .catalogue import catalogue, known_names, meant_by
from .commands import docs, evaluate, explanation, measure, mutants, replay_run, test, timeline
from .flag_groups import Options
from .imports import import_file
from .train import run_algorithm, train_by_file
from .tutorials import main as tutorials

# The commands, as the overview shows them: usage, meaning, and a function, or a module of `benchmarks`.
Row = tuple[str, str, Callable[[list[str]], int] | str | None]
GROUPS: dict[str, tuple[Row, ...]] = {
    "Train": (
        ("<algorithm>", "train: by default 1 ps + 2 workers on the digits data", None),
        ("<algorithm> --help", "show its hyperparameters and the usual options (--help-all: all of them)", None),
        ("<algorithm> --model file.py:build", "train your own model; --data file.py:load reads your own data", None),
        ("--import file.py ...", "use an algorithm or a codec of your own with any command", None),
        ("launch my_script.py", "train in a script's own loop, with distsgd.join: --workers 4", launching.main),
        ("train --config <file>", "train with the settings of a file: config.json of a run, or TOML", train_by_file),
        ("sweep <algorithm>", "train with several values: --learning-rate 0.05,0.1 --seeds 3", sweep.main),
    ),
    "Choose": (
        ("list", "show the catalogue", catalogue),
        ("explain <algorithm>", "show its equations, use, origin, departures and limits", explanation),
        ("advise --workers 64", "recommend an algorithm for given workers, links and stragglers", advise.main),
        ("bandwidth <algorithm> ...", "compute how fast a link an algorithm needs: --parameters 1B", bandwidth.main),
        ("tutorials", "open the notebooks in Jupyter Lab, installed at first (--execute: execute and save)", tutorials),
    ),
    "Inspect": (
        ("runs --filter algorithm=downpour", "list the runs in runs/, the newest last", runs.list_runs),
        ("compare <run dir> <run dir> ...", "compare runs: settings and results in a table, and a plot", runs.compare),
        ("plot <run dir> ...", "plot loss and error of runs: --x updates, examples, seconds or bytes", runs.plot),
        ("replay <run dir>", "verify a run: re-execute its event log in NumPy and compare the weights", replay_run),
        ("timeline <run dir> [<run dir>]", "write a trace of computing, waiting and sending for Perfetto", timeline),
        ("evaluate <run dir>", "measure the checkpoints of a run as they appear; needs only its folder", evaluate),
        ("doctor", "show versions, machine and permissions, for a bug report", doctor.main),
        ("completion bash", 'code for a shell: eval "$(distsgd completion bash)" (or zsh, fish)', completion.main),
    ),
    "Simulate": (
        ("simulate <algorithm>", "train in virtual time on described machines: --workers 1000", simulate.main),
        ("simulate --compare <a>,<b>", "compare several algorithms on the same machines, in a table", None),
        ("leaderboard [<name> ...]", "rank algorithms by virtual time to a loss, of eight trials each", "leaderboard"),
        ("benchmark", "measure each algorithm's virtual time to a target loss (--quick: three minutes)", "convergence"),
        ("claims [<name> ...]", "test claims of the papers in virtual time, with verdicts", "claims"),
        ("reproduced [<name> ...]", "execute experiments of the papers with their settings", "reproduced"),
    ),
    "Develop": (
        ("test", "run the test suite (arguments go to pytest)", test),
        ("mutants", "mutation testing: make one fault at a time, check that a test fails (6 minutes)", mutants),
        ("docs", "build the site in build/site: a page for each algorithm, tutorials, reference", docs),
        ("outputs [<name> ...]", "train each algorithm with its defaults, and keep the output for its page", "outputs"),
        ("choosing [<name> ...]", "execute the commands of docs/choosing.md and draw its pictures", "choosing"),
        ("soak", "run while tasks are killed and stopped at random: --minutes 5 --seed 1", "soak"),
        ("endurance", "measure memory and disk use of a run at full speed: --minutes 10", "endurance"),
        ("throughput", "steps per second beside one process, ParameterServerStrategy and PyTorch", "throughput"),
        ("large", "train models of 21 and 100 million parameters; measure seconds and memory", "large"),
        ("collisions", "hogwild on sparse data, with and without a lock", "collisions"),
        ("stragglers", "sync_sgd with backup workers, where some batches are late", "stragglers"),
        ("validate-simulation", "compare real runs with a simulation that was fitted to other runs", "validation"),
    ),
}

COMMANDS = {usage.split()[0]: run for rows in GROUPS.values() for usage, _, run in rows if run is not None}


def main() -> NoReturn:
    """Run the command of `sys.argv`; turn errors into one line and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if completion.ACTIVE in os.environ:
        completion.complete([*COMMANDS])
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
    """Run the command that the arguments name; return its exit code."""
    wanted = "a Python file that defines a scheme or a codec, as in --import my_scheme.py"
    files, arguments = flags.taken_out("--import", arguments, wanted)
    for file in files:
        import_file(file, SCHEMES)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return overview()
    if arguments[0] in ("-V", "--version", "version"):
        print(f"distsgd {version('distsgd')}")  # noqa: T201
        return 0
    known = [*known_names(), *COMMANDS]
    word, *rest = name_first(arguments, known)
    command = spelt(word, known) or ""
    if run := COMMANDS.get(command):
        return measure(run, rest) if isinstance(run, str) else run(rest)
    if command:
        name, *options = meant_by(command)
        return run_algorithm(SCHEMES[name], [*options, *rest])
    otherwise = "See --help"
    if flag := spelt(word, flags.names(Options)):
        otherwise = f"It is an option, as in: downpour {flags.flag_of(flag)} ..."
    raise UserError(f"unknown algorithm or command {word!r}. {nearest(word, known, otherwise)}")


def name_first(arguments: list[str], known: list[str]) -> list[str]:
    """Move the command to the front: `--workers 4 downpour` becomes `downpour --workers 4`."""
    if not arguments[0].startswith("-"):
        return arguments
    names = [word for word in arguments if spelt(word, known)]
    if len(names) != 1:
        raise UserError(f"the algorithm or command comes first, as in: downpour {' '.join(arguments)}")
    rest = list(arguments)
    rest.remove(names[0])
    return [*names, *rest]


def overview() -> int:
    """Print all commands, in groups, and the names of the algorithms; return the exit code."""
    console = Console(highlight=False)
    console.print("Distributed SGD algorithms on TensorFlow, on real processes.\n")
    console.print(f"Usage: {flags.PROGRAM} <algorithm or command> ...")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    for group, rows in GROUPS.items():
        table.add_row()
        table.add_row(Text(group, style="bold"))
        for usage, meaning, _ in rows:
            table.add_row(f"  {usage}", meaning)
    console.print(table)
    console.print(f"\n[bold]Algorithms[/] ({len(SCHEMES)})\n  {', '.join(SCHEMES)}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
