"""Completion of commands, options and their values in a shell, by argcomplete."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import resolve_name
from typing import Any

import argcomplete
from argcomplete.completers import FilesCompleter
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from ...algorithms import SCHEMES
from ..arguments import spelt
from ..record.latest import LATEST, ROOT
from ..sources import Names
from .catalogue import known_names, meant_by
from .flags import Parser, add, in_source, plain

ACTIVE = "_ARGCOMPLETE"  # set by the shell's function; its value is the position of the program's name, from 1

SHELLS = ("bash", "zsh", "fish")

SCRIPT = "run.sh"  # of a checkout

OF_RUNS = ("replay", "compare", "plot", "timeline", "evaluate")  # commands that take folders of runs

OF_ALGORITHMS = ("explain", "sweep", "simulate", "bandwidth", "outputs", "leaderboard")  # those that take algorithms

NAMES = {
    "codec": ("..contract.rounding", "CODECS"),
    "model": ("..data.models", "MODELS"),
    "dataset": ("..data.named", "DATASETS"),
    "network": ("..cluster.platform", "NETWORKS"),
}  # options that take names: the module and the table that have them

# Completion of `bash run.sh` and `./run.sh`. It starts the program itself: the script would set up a fresh checkout.
OF_CHECKOUT = r"""
_distsgd_of_checkout() {
    local script="${COMP_WORDS[0]}"
    [[ $script == *run.sh ]] || script="${COMP_WORDS[1]-}"
    script="${script/#\~/$HOME}"
    local program="${script%run.sh}.venv/bin/distsgd"
    if [[ $script == *run.sh && $script != "${COMP_WORDS[COMP_CWORD]}" && -x $program ]]; then
        _python_argcomplete "$program"
    fi
}
complete -o nospace -o default -o bashdefault -F _distsgd_of_checkout bash run.sh
"""


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of the flags of an algorithm: from their source, if that says them plainly."""
    options = f"{__package__}.flag_groups", "Options"
    try:
        found = [*in_source(f"{SCHEMES.package}.{name}", SCHEMES.names[name]), *in_source(*options)]
    except LookupError:
        from .flag_groups import flag_parser

        return flag_parser(f"run.sh {name}", SCHEMES[name])
    parser = Parser(f"run.sh {name}", "", add_help=False)
    parser.add_argument("-h", "--help", action="help", help="Show the usual options and exit.")
    parser.add_argument("--help-all", action="help", help="Show all options with their full meanings and exit.")
    for option in found:
        add(parser, option, option.meaning.replace("%", "%%"))
    return parser


def main(arguments: list[str]) -> int:
    """Print the code by which a shell completes `distsgd`, and bash also `bash run.sh`; return the exit code."""
    parser = Parser("run.sh completion", "Print the code by which a shell completes distsgd, and bash also run.sh.")
    parser.add_argument("shell", choices=SHELLS, help='Name of the shell, as in: eval "$(bash run.sh completion bash)"')
    shell = parser.values(arguments).shell
    print(shellcode(["distsgd"], shell=shell) + OF_CHECKOUT * (shell == "bash"))  # noqa: T201
    return 0


def complete(commands: Sequence[str], **options: Any) -> None:
    """Print the completions of the line in COMP_LINE, and exit. No command is executed.

    Args:
        commands: names of the commands that are not algorithms.
        options: arguments of `argcomplete.autocomplete`.
    """
    words = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3]
    behind_bash = len(words) > 1 and words[1].endswith(SCRIPT)  # `bash run.sh ...`
    words = words[behind_bash:]
    place = next((i for i, word in enumerate(words[1:], 1) if spelt(word, known_names())), 0)
    os.environ[ACTIVE] = str(
        int(os.environ[ACTIVE]) + behind_bash + (place or len(words) - 1)
    )  # a parser reads the words after it
    parser = argparse.ArgumentParser(add_help=False)
    if place:
        name, *_ = meant_by(words[place])
        parser = parser_of(name)
        _complete_values(parser)
    else:
        choices = [*commands, *known_names()] if len(words) == 1 or words[1] == "help" else []
        if choices or words[1] in OF_ALGORITHMS:
            parser.add_argument("command", type=plain(str), choices=[*choices] or [*SCHEMES])
        elif words[1] in OF_RUNS:
            os.environ[ACTIVE] = str(int(os.environ[ACTIVE]) - len(words) + 2)  # several folders may come
            parser.add_argument("run_dir", nargs="*").completer = _runs  # pyright: ignore[reportAttributeAccessIssue]
        else:  # a script, a file of settings
            parser.add_argument("file", nargs="*").completer = FilesCompleter()  # pyright: ignore[reportAttributeAccessIssue]
            parser.add_argument("--config").completer = FilesCompleter()  # pyright: ignore[reportAttributeAccessIssue]
    argcomplete.autocomplete(parser, **options)


def _runs(prefix: str, **_: Any) -> list[str]:
    """Return the names of runs that begin so: `latest`, and the folders in `runs/`."""
    newest = [LATEST, *(f"{path.parent.name}/{LATEST}" for path in ROOT.glob(f"*/{LATEST}"))] if ROOT.is_dir() else []
    folders = [str(path) for path in sorted(ROOT.glob("*/*")) if path.is_dir() and path.name != LATEST]
    return [name for name in (*newest, *folders) if name.startswith(prefix)]


def _complete_values(parser: argparse.ArgumentParser) -> None:
    """Let the options of an algorithm that take names complete these, and others that take runs or files."""
    completers: dict[str, Callable[..., Any]] = {"resume": _runs, "like": _runs}
    completers |= {field: partial(_names, *place) for field, place in NAMES.items()}
    for action in parser._actions:
        if action.dest in completers:
            action.completer = completers[action.dest]  # pyright: ignore[reportAttributeAccessIssue]


def _names(module: str, table: str, **_: Any) -> list[str]:
    """Return the keys of a table in a module, from its source if that says them plainly: the module imports NumPy."""
    module = resolve_name(module, __package__)
    try:
        return [*Names(module)[table]]
    except LookupError:
        return [*getattr(import_module(module), table)]
