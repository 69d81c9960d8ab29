"""Completion of commands, options and their values in a shell, by argcomplete."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import argcomplete
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from ...algorithms import SCHEMES
from ..arguments import spelt
from .catalogue import known_names, meant_by
from .flags import Parser, plain

ACTIVE = "_ARGCOMPLETE"  # set by the shell's function; its value is the position of the program's name, from 1

SHELLS = ("bash", "zsh", "fish")

SCRIPT = "run.sh"  # of a checkout

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


def main(arguments: list[str]) -> int:
    """Print the code by which a shell completes `distsgd`, and bash also `bash run.sh`; return the exit code."""
    parser = Parser("run.sh completion", "Print the code by which a shell completes distsgd, and bash also run.sh.")
    parser.add_argument("shell", choices=SHELLS, help='as in: eval "$(bash run.sh completion bash)"')
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
    if place:
        from .flag_groups import flag_parser  # with NumPy, which the names of algorithms and commands do without

        name, *_ = meant_by(words[place])
        parser = flag_parser(f"run.sh {name}", SCHEMES[name])
    else:
        parser = argparse.ArgumentParser(add_help=False)
        known = [*commands, *known_names()] if len(words) == 1 else SCHEMES
        parser.add_argument("command", type=plain(str), choices=[*known])
    argcomplete.autocomplete(parser, **options)
