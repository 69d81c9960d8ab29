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
from .catalogue import aliases, without_alias
from .flag_groups import flag_parser
from .flags import Parser, plain

ACTIVE = "_ARGCOMPLETE"  # set by the shell's function; its value is the position of the program's name, from 1

SHELLS = ("bash", "zsh", "fish")


def main(arguments: list[str]) -> int:
    """Print the code by which a shell completes the command `distsgd`; return the exit code."""
    parser = Parser("run.sh completion", "Print the code by which a shell completes the command distsgd.")
    parser.add_argument("shell", choices=SHELLS, help='as in: eval "$(distsgd completion bash)"')
    shell = parser.values(arguments).shell
    print(shellcode(["distsgd"], shell=shell))  # noqa: T201
    return 0


def complete(commands: Sequence[str], **options: Any) -> None:
    """Print the completions of the line in COMP_LINE, and exit. No command is executed.

    Args:
        commands: names of the commands that are not algorithms.
        options: arguments of `argcomplete.autocomplete`.
    """
    words = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3]
    place = next((i for i, word in enumerate(words[1:], 1) if spelt(word, [*SCHEMES, *aliases()])), 0)
    os.environ[ACTIVE] = str(int(os.environ[ACTIVE]) + (place or len(words) - 1))  # a parser reads the words after it
    if place:
        name, *_ = without_alias([words[place]])
        parser = flag_parser(f"run.sh {name}", SCHEMES[spelt(name, SCHEMES) or name])
    else:
        parser = argparse.ArgumentParser(add_help=False)
        known = [*commands, *SCHEMES, *aliases()] if len(words) == 1 else SCHEMES
        parser.add_argument("command", type=plain(str), choices=[*known])
    argcomplete.autocomplete(parser, **options)
