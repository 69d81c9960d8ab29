"""The command line: `bash run.sh <algorithm>` and the other commands.

Each module imports at its top. Slow imports that few commands need (TensorFlow, Keras, scikit-learn, SciPy, Matplotlib)
stand in functions, here and everywhere, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import NoReturn

from rich.table import Table
from rich.text import Text

from ...algorithms import SCHEMES
from ..arguments import nearest, spelt
from ..errors import DistsgdError, Interrupted, UserError
from ..record.display import Page
from ..replay.adapters import TRANSCRIPTIONS
from . import advise, doctor, flags, launching, simulate
from .catalogue import catalogue
from .commands import MEASUREMENTS, evaluate, explanation, measurement, mutants, replay_run, test, timeline
from .flag_groups import Options
from .imports import import_schemes, import_transcriptions, split_imports
from .train import run_algorithm
from .tutorials import main as tutorials


def main() -> NoReturn:
    """Run the command of `sys.argv`; turn errors into one line and an exit code."""
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
    """Run the command that the arguments name; return its exit code."""
    files, arguments = split_imports(arguments)
    for file in files:
        SCHEMES.update(import_schemes(file, SCHEMES))
        TRANSCRIPTIONS.update(import_transcriptions(file))
    commands: dict[str, Callable[[list[str]], int]] = {
        "list": catalogue,
        "explain": partial(explanation, files),
        "launch": launching.main,
        "evaluate": evaluate,
        "replay": replay_run,
        "timeline": timeline,
        "advise": advise.main,
        "simulate": simulate.main,
        "doctor": doctor.main,
        "tutorials": tutorials,
        "test": test,
        "mutants": mutants,
        **{name: measurement(module) for name, module in MEASUREMENTS.items()},
    }
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return overview()
    if arguments[0] in ("-V", "--version", "version"):
        print(f"distsgd {version('distsgd')}")  # noqa: T201
        return 0
    known = [*SCHEMES, *commands]
    word, *rest = name_first(arguments, known)
    command = spelt(word, known)
    if command in commands:
        return commands[command](rest)
    if command in SCHEMES:
        return run_algorithm(SCHEMES[command], rest)
    otherwise = "See --help"
    if (flag := spelt(word, flags.names(Options))) != word or flag in flags.names(Options):
        otherwise = f"It is an option, as in: downpour --{flag.replace('_', '-')} ..."
    raise UserError(f"unknown algorithm or command {word!r}. {nearest(word, known, otherwise)}")


def name_first(arguments: list[str], known: list[str]) -> list[str]:
    """Move the command to the front: `--workers 4 downpour` becomes `downpour --workers 4`."""
    if not arguments[0].startswith("-"):
        return arguments
    names = [word for word in arguments if spelt(word, known) in known]
    if len(names) != 1:
        raise UserError(f"the algorithm or command comes first, as in: downpour {' '.join(arguments)}")
    rest = list(arguments)
    rest.remove(names[0])
    return [*names, *rest]


def overview() -> int:
    """Print all commands and the catalogue; return the exit code."""
    console = Page(highlight=False)
    console.print("Distributed SGD algorithms on TensorFlow, on real processes.\n")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2))
    for usage, meaning in (
        ("<algorithm>", "train: by default 1 ps + 2 workers on the digits data"),
        ("<algorithm> --help", "show its hyperparameters and the common options"),
        (
            "<algorithm> --model file.py:build",
            "train a model of your own, and with --data file.py:load on data of your own",
        ),
        ("launch my_script.py", "train in a script's own loop, with distsgd.join, on every worker: --workers 4"),
        ("explain <algorithm>", "show its equations, origin, departures and limits"),
        ("--import file.py ...", "use an algorithm of your own with any command"),
        ("list", "show the catalogue"),
        ("evaluate <run dir>", "measure the checkpoints of a run as they appear; needs only access to its folder"),
        ("replay <run dir>", "verify a run: re-execute its event log in NumPy and compare the weights"),
        ("timeline <run dir> [<run dir>]", "write a trace of computing, waiting and communication for Perfetto"),
        ("advise --workers 64", "recommend an algorithm for given workers, links and stragglers, in virtual time"),
        ("simulate <algorithm>", "train in virtual time on described machines: --workers 1000"),
        ("simulate --compare <a>,<b>", "compare several algorithms on the same machines, in a table"),
        ("doctor", "show versions, machine and permissions, for a bug report"),
        ("tutorials", "open the notebooks in Jupyter Lab; installs it on first use (--execute: execute and save them)"),
        ("test", "run the test suite (arguments go to pytest)"),
        ("mutants", "mutation testing: make one fault at a time and check that a test fails (takes 6 minutes)"),
        ("benchmark", "measure each algorithm's virtual time to a target loss (--quick: three minutes)"),
        ("soak", "run while tasks are killed and stopped at random: --minutes 5 --seed 1"),
        ("endurance", "measure the growth of memory and disk use in a run at full speed: --minutes 10"),
        ("throughput", "steps per second: one process, ParameterServerStrategy, PyTorch and the back ends here"),
        ("large", "train models of 21 and 100 million parameters; measure seconds and memory"),
        ("collisions", "hogwild on sparse data, with and without a lock"),
        ("stragglers", "sync_sgd with backup workers, where some batches are late"),
        ("validate-simulation", "compare real runs with a simulation that was fitted to other runs"),
        ("claims [<name> ...]", "test claims of the papers in virtual time, with verdicts"),
    ):
        table.add_row(Text(f"bash run.sh {usage}", style="bold"), meaning)
    console.print(table)
    console.print()
    return catalogue([])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
