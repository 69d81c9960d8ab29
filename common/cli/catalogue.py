"""The catalogue as a table, for `run.sh list`, and the explanation of one algorithm.

The table needs no algorithm to be imported: it is read from their source.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import os
import re
import shlex
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from ...algorithms import SCHEMES
from ..arguments import nearest, spelt
from ..errors import UserError
from ..record.tables import columns
from ..sources import ClassSource, docstring, meanings, tree
from . import flags
from .flags import Parser, shown


@dataclasses.dataclass(frozen=True)
class Card:
    """What the catalogue says of an algorithm.

    Attributes:
        timing: the label of its synchronization rule: synchronous, asynchronous, bounded, one process or a user's own.
        idea: one line on what it does.
        paper: authors and year.
        aliases: its other names, each with the options that it means.
        equals: the command of another algorithm that is the same with its options; empty if there is none.
    """

    timing: str
    idea: str
    paper: str
    aliases: tuple[str, ...]
    equals: str


def card(name: str) -> Card:
    """Return the card of an algorithm: from its source, if that is not imported and says it plainly."""
    if SCHEMES.imported(name) is None:
        with contextlib.suppress(LookupError):
            return _card_from_source(name)
    scheme = SCHEMES[name]
    members = vars(scheme)
    from ..contract.scheme import idea_of  # not at the top: NumPy takes longer than most commands

    return Card(timing(scheme), idea_of(scheme), scheme.paper, members.get("aliases", ()), members.get("equals", ""))


@functools.cache
def _card_from_source(name: str) -> Card:
    """Raise `LookupError` if the source says something in another way."""
    source = ClassSource.find(f"{SCHEMES.package}.{name}", SCHEMES.names[name])
    words = (source.value(attribute) for attribute in ("paper", "aliases", "equals"))
    return Card(source.value("sync").value("label"), source.headline, *words)


def catalogue(arguments: list[str]) -> int:
    """Print the algorithms as a table; return the exit code."""
    about = "Show the catalogue, or the algorithms that have all given words in their names, rules, ideas or papers."
    parser = Parser("run.sh list", about, usage="run.sh list [word ...]")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="word",
        help="Words that an algorithm must have, as in: list gossip, list synchronous momentum.",
    )
    parser.add_argument(
        "--json", action="store_true", help="Print a line of JSON for each algorithm, instead of the table."
    )
    typed = parser.values(arguments)
    found = [name for name in SCHEMES if all(_has(name, word) for word in typed.words)]
    if not found:
        raise UserError(f"no algorithm has {' and '.join(map(repr, typed.words))} in its name, idea or paper. See list")
    if typed.json:
        from ..files import dumps  # not at the top: the table needs no NumPy

        for name in found:
            print(dumps({"algorithm": name, **dataclasses.asdict(card(name))}))  # noqa: T201
        return 0
    table = columns("algorithm", "", "idea", "paper")
    for name in found:
        entry = card(name)
        table.add_row(
            name, entry.timing, f"{entry.idea} (= {entry.equals})" if entry.equals else entry.idea, entry.paper
        )
    page = Console(highlight=False)
    page.print(table)
    others = [f"{alias} is {shlex.join(command)}" for alias, command in aliases().items() if command[0] in found]
    if others:
        page.print(f"\nOther names: {', '.join(others)}.")
    return 0


def _has(name: str, word: str) -> bool:
    """Return True if the card of an algorithm has a word, or one that begins so: not asynchronous, for synchronous."""
    entry = card(name)
    text = " ".join([name, entry.timing, entry.idea, entry.paper, *entry.aliases, entry.equals]).replace("_", " ")
    return re.search(rf"\b{re.escape(word.replace('_', ' '))}", text, re.IGNORECASE) is not None


def aliases() -> dict[str, list[str]]:
    """Return the other names of algorithms, and what each means: an algorithm, and options.

    An imported algorithm does not inherit other names, and its own name comes before another algorithm's other name.
    """
    words = [(name, *text.split()) for name in SCHEMES for text in card(name).aliases]
    return {alias: [name, *options] for name, alias, *options in words if alias not in SCHEMES}


LISTED = "The command list shows all algorithms"


def known_names() -> list[str]:
    """Return all names of algorithms."""
    return [*SCHEMES, *aliases()]


def meant_by(word: str, where: str = "") -> list[str]:
    """Return the algorithm with this name, and the options of another name; say what that means.

    Raises:
        UserError: there is none; the message begins with `where`.
    """
    if name := spelt(word, SCHEMES):
        return [name]
    if (name := spelt(word, aliases())) is None:
        raise UserError(f"{where}unknown algorithm {word!r}. {nearest(word, known_names(), LISTED)}")
    meant = aliases()[name]
    print(f"{name} is {shlex.join(meant)}", file=sys.stderr)  # noqa: T201
    return meant


def timing(scheme: type[Any]) -> str:
    """Return the label of the rule: 'synchronous', 'asynchronous', 'bounded', 'one process' or a user's own."""
    return scheme().sync.label


def explanation(arguments: list[str]) -> int:
    """Explain an algorithm of the catalogue or of an imported file; return the exit code."""
    parser = Parser("run.sh explain", "Show equations, origin, departures, limits and hyperparameters of an algorithm.")
    parser.add_argument("algorithm", help="Name of an algorithm, as `list` shows it.")
    parser.add_argument("--json", action="store_true", help="Print one line of JSON, instead of the text.")
    typed = parser.values(arguments)
    word, name = typed.algorithm, meant_by(typed.algorithm)[0]
    if typed.json:
        from ..files import dumps

        text, fields = _explained(name)
        found = {field: {"default": default, "meaning": meaning} for field, (default, meaning) in fields.items()}
        print(dumps({"algorithm": name, **dataclasses.asdict(card(name)), "text": text, "hyperparameters": found}))  # noqa: T201
        return 0
    explain(name, "" if name == spelt(word, SCHEMES) else spelt(word, aliases()) or "")
    return 0


def explain(name: str, alias: str = "") -> None:
    """Print the docstring of the algorithm's module (or of its class), its hyperparameters, and the command."""
    console = Console(highlight=False)
    words, found = _explained(name)
    text = Text(words)
    text.highlight_regex(r"\A[^\n]*", "bold")
    text.highlight_regex(r"(?m)^(Use|Reference|Departures|Limits|Defaults|Memory):", "bold")
    text.highlight_regex(r"(?m)^    .*$", "cyan")
    console.print(text, soft_wrap=True)

    if found:
        table = columns("hyperparameter", "default", "meaning")
        for field, (default, meaning) in found.items():
            table.add_row(flags.flag_of(field), Text(default), Text(meaning))
        console.print()
        console.print(table)
    imports, scheme = "", SCHEMES.imported(name)
    if scheme is not None and not scheme.__module__.startswith("distsgd."):
        imports = f"--import {shlex.quote(os.path.relpath(inspect.getfile(scheme)))} "
    console.print(f"\nTo run it: {flags.PROGRAM} {imports}{alias or name}", soft_wrap=True)


def _explained(name: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return docstring and hyperparameters of an algorithm; as in `card` from its source, in a third of the time."""
    if SCHEMES.imported(name) is None:
        with contextlib.suppress(LookupError):
            module = f"{SCHEMES.package}.{name}"
            fields = ClassSource.find(module, SCHEMES.names[name]).fields()
            words = ast.get_docstring(tree(module)) or ""
            return words, {field: (shown(default), meaning) for field, (default, meaning) in fields.items()}
    scheme = SCHEMES[name]
    from ..contract.scheme import idea_of  # not at the top, as above

    return docstring(sys.modules[scheme.__module__]) or docstring(scheme) or idea_of(scheme), hyperparameters(scheme)


def hyperparameters(scheme: type[Any]) -> dict[str, tuple[str, str]]:
    """Return default and meaning of each hyperparameter; the meaning is the string below the field in the class."""
    meant = meanings(scheme)
    return {
        field.name: (shown(getattr(scheme(), field.name)), meant.get(field.name, ""))
        for field in dataclasses.fields(scheme)
    }
