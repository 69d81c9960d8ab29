"""The catalogue as a table, for `run.sh list`, and the explanation of one algorithm."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shlex
import sys

from rich.console import Console
from rich.text import Text

from ...algorithms import SCHEMES
from ..arguments import nearest, spelt
from ..contract.hyperparameters import meanings
from ..contract.scheme import Scheme
from ..errors import UserError
from ..record.tables import columns
from . import flags
from .flags import Parser, shown


def catalogue(arguments: list[str]) -> int:
    """Print the algorithms as a table; return the exit code."""
    Parser("run.sh list", "Show the catalogue.").values(arguments)
    table = columns("algorithm", "", "idea", "paper")
    for name, scheme in SCHEMES.items():
        table.add_row(name, timing(scheme), scheme.idea, scheme.paper)
    page = Console(highlight=False)
    page.print(table)
    known = ", ".join(f"{alias} is {shlex.join(command)}" for alias, command in aliases().items())
    page.print(f"\nOther names: {known}.")
    return 0


def aliases() -> dict[str, list[str]]:
    """Return the other names of algorithms, and what each means: an algorithm, and options.

    An imported algorithm does not inherit other names, and its own name comes before another algorithm's other name.
    """
    words = [(name, *text.split()) for name, scheme in SCHEMES.items() for text in vars(scheme).get("aliases", ())]
    return {alias: [name, *options] for name, alias, *options in words if alias not in SCHEMES}


def known_names() -> list[str]:
    """Return all names of algorithms."""
    return [*SCHEMES, *aliases()]


def meant_by(word: str, where: str = "") -> list[str]:
    """Return the algorithm with this name, and the options of another name; say what that means.

    Raises:
        UserError: there is none; the message begins with `where`.
    """
    if (name := spelt(word, known_names())) is None:
        raise UserError(f"{where}unknown algorithm {word!r}. {nearest(word, known_names())}")
    if (meant := aliases().get(name)) is None:
        return [name]
    print(f"{name} is {shlex.join(meant)}", file=sys.stderr)  # noqa: T201
    return meant


def timing(scheme: type[Scheme]) -> str:
    """Return the label of the rule: 'synchronous', 'asynchronous', 'bounded', 'one process' or a user's own."""
    return scheme().sync.label


def explain(scheme: type[Scheme], alias: str = "") -> None:
    """Print the docstring of the algorithm's module (or of its class), its hyperparameters, and the command."""
    console = Console(highlight=False)
    text = Text((sys.modules[scheme.__module__].__doc__ or scheme.__doc__ or scheme.idea).strip())
    text.highlight_regex(r"\A[^\n]*", "bold")
    text.highlight_regex(r"(?m)^(Use|Reference|Departures|Limits|Defaults|Memory):", "bold")
    text.highlight_regex(r"(?m)^    .*$", "cyan")
    console.print(text, soft_wrap=True)

    found = hyperparameters(scheme)
    if found:
        table = columns("hyperparameter", "default", "meaning")
        for name, (default, meaning) in found.items():
            table.add_row(flags.flag_of(name), Text(default), Text(meaning))
        console.print()
        console.print(table)
    imported = not scheme.__module__.startswith("distsgd.")
    imports = f"--import {shlex.quote(os.path.relpath(inspect.getfile(scheme)))} " if imported else ""
    console.print(f"\nTo run it: {flags.PROGRAM} {imports}{alias or scheme.name}", soft_wrap=True)


def hyperparameters(scheme: type[Scheme]) -> dict[str, tuple[str, str]]:
    """Return default and meaning of each hyperparameter; the meaning is the string below the field in the class."""
    meant = meanings(scheme)
    return {
        field.name: (shown(getattr(scheme(), field.name)), meant.get(field.name, ""))
        for field in dataclasses.fields(scheme)
    }
