"""Flags from dataclasses: one flag per field, with the docstring of the field as its help; dataclasses may be nested.

A wrong flag raises a `UserError` of one line, which suggests the nearest names.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from ..arguments import SAME, nearest, with_tuples
from ..errors import UserError
from ..packages import PROGRAM
from ..sources import ClassSource, Names, meanings

WIDE, NARROW = 100, 60  # columns: the largest width of help; below the second, a meaning starts on a line of its own

LARGEST = 10**12  # the largest whole number: every counter can hold it

WANTED = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}


def read(prog: str, description: str, arguments: Sequence[str], kinds: Mapping[str, type], **shown: Any) -> list[Any]:
    """Return the dataclasses that the arguments describe; `--help` prints and exits.

    Args:
        prog: the command, as shown in its help.
        description: the description of the command in its help.
        arguments: the words of the command line.
        kinds: dataclasses by the title of their flags in the help.
        shown: further arguments of `parser_of`.

    Raises:
        UserError: a flag or its value is wrong.
    """
    parser = parser_of(prog, description, kinds, **shown)
    values = with_tuples(vars(parser.values(arguments)))
    return [kind(**_given(kind, values)) for kind in kinds.values()]


def parser_of(
    prog: str,
    description: str,
    kinds: Mapping[str, type],
    groups: Mapping[str, Sequence[str]] | None = None,
    positional: str = "",
    usage: str = "",
    folded: Collection[str] = (),
) -> Parser:
    """Return the parser of the flags of dataclasses.

    Args:
        prog: the command, as shown in its help.
        description: the description of the command in its help.
        kinds: dataclasses by the title of their flags in the help.
        groups: names of fields to show under another title, by title; the name of a dataclass stands for its fields.
        positional: the field that takes the arguments without a flag, several if it is a tuple.
        usage: the first line of the help, if it has more than these and options.
        folded: titles of which `--help` shows only the names of the flags, and `--help-all` everything.

    Raises:
        UserError: two dataclasses have a field of the same name.
    """
    parser = Parser(prog, description, usage=usage or f"{prog} [options]", add_help=False)
    titles = {name: title for title, names in (groups or {}).items() for name in names}
    sections = {title: parser.add_argument_group(title) for title in [*kinds, *(groups or {})]}
    for_help, parser.folded = sections[list(kinds)[-1]], folded
    if folded:
        for_help.add_argument("-h", "--help", action=_ShortHelp, nargs=0, help="Show the usual options and exit.")
        for_help.add_argument("--help-all", action="help", help="Show all options with their full meanings and exit.")
    else:
        parser.add_help_to(for_help)
    names_so_far: set[str] = set()
    for title, kind in kinds.items():
        for option in _options(kind):
            if option.name in names_so_far:
                raise UserError(
                    f"hyperparameter {option.name} has the name of an option of the command: rename the field"
                )
            names_so_far.add(option.name)
            section = sections[next((titles[name] for name in option.path if name in titles), title)]
            help = (option.meaning + _default(option.default)).replace("%", "%%")
            if option.name == positional:
                parser.usage = f"{parser.prog} {_add_positional(section, option, help)} [options]"
            else:
                add(section, option, help)
    return parser


@dataclasses.dataclass(frozen=True)
class Option:
    """A field of a dataclass, or of a nested one, as a flag."""

    path: tuple[str, ...]  # its name, then the names of the fields that contain it, innermost first
    kind: Any
    default: Any
    meaning: str

    @property
    def name(self) -> str:
        """Name of the field."""
        return self.path[0]


def _options(kind: type, usual: Any = None, within: tuple[str, ...] = ()) -> Iterator[Option]:
    """Yield the flags of a dataclass and nested ones; defaults come from `usual`, or from the class without it."""
    hints, meant = typing.get_type_hints(kind), meanings(kind)
    for field in _flagged(kind):
        default = default_of(field) if usual is None else getattr(usual, field.name)
        if dataclasses.is_dataclass(default):
            yield from _options(type(default), default, (field.name, *within))
        else:
            yield Option((field.name, *within), hints[field.name], default, meant.get(field.name, ""))


def in_source(module: str, name: str, within: tuple[str, ...] = ()) -> Iterator[Option]:
    """Yield the flags of a dataclass and nested ones from its source, with the defaults of switches and lists alone.

    To import the classes takes twice as long.

    Raises:
        LookupError: the source does not say them plainly.
    """
    for field, (owner, node, meaning) in ClassSource.find(module, name).statements().items():
        names, value = Names(owner), node.value
        if isinstance(value, ast.Call) and any(word.arg == "metadata" for word in value.keywords):
            continue  # no flag
        if isinstance(kind := names.value(node.annotation), ClassSource):
            yield from in_source(kind.module, kind.node.name, (field, *within))
        else:
            kind = typing.get_type_hints(type(name, (), {"__annotations__": {field: kind}}))[field]
            decides = kind is bool or typing.get_origin(kind) in (tuple, list)  # of the form of the flag
            yield Option((field, *within), kind, names.value(value) if decides and value else None, meaning)


def names(kind: type) -> list[str]:
    """Return the names of the fields of a dataclass, and of nested ones, that are flags."""
    return [option.name for option in _options(kind)]


def flag_of(name: str) -> str:
    """Return the flag of a field, `--run-dir` for `run_dir`."""
    return "--" + name.replace("_", "-")


def field_of(word: str, field_names: Collection[str] = ()) -> str:
    """Return the name of the field of a flag, `run_dir` for `--run-dir=x`; an empty text for any other word.

    Another system's flag, such as `--lr`, has the field that it means among `field_names`.
    """
    name = word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""
    return SAME[name] if name not in field_names and SAME.get(name) in field_names else name


def listed(text: str) -> list[str]:
    """Return the values between commas; a comma before `key=` is inside one, as in `synthetic:test=50,classes=5`."""
    return re.split(r",(?!\w+=)", text)


def takes_value(kind: type, word: str) -> bool:
    """Return True for a flag of the dataclass, `--run-dir`, whose value is the next word."""
    name = "" if "=" in word else field_of(word, names(kind))
    return any(option.name == name and option.kind is not bool for option in _options(kind))


def taken_out(flag: str, arguments: Iterable[str], wanted: str) -> tuple[list[Path], list[str]]:
    """Return the paths of `--flag PATH` or `--flag=PATH`, and the other arguments.

    Raises:
        UserError: the flag has no value; the message says what is `wanted`.
    """
    paths, rest, left = [], [], iter(arguments)
    for word in left:
        name, equals, value = word.partition("=")
        if name != flag:
            rest.append(word)
        elif value := value if equals else next(left, ""):
            paths.append(Path(value))
        else:
            raise UserError(f"{flag} needs {wanted}")
    return paths, rest


def in_file(text: str | None) -> bool:
    """Return True for a function in a Python file, `my_model.py:build`, and False for a name."""
    return bool(re.search(r"\.py(:|$)", text or ""))


def words(value: Any) -> list[str]:
    """Return the flags by which `read` gives this dataclass; those of default values are left out."""
    values = {option.name: functools.reduce(getattr, reversed(option.path), value) for option in _options(type(value))}
    return words_of(values, type(value))


def words_of(values: Mapping[str, Any], kind: type) -> list[str]:
    """Return the flags by which `read` gives these fields of a dataclass; those of default values are left out."""
    found: list[str] = []
    for option in _options(kind):
        value, flag = values.get(option.name, option.default), flag_of(option.name)
        value = tuple(value) if isinstance(value, list) else value
        if value == option.default and type(value) is type(option.default):
            continue
        if option.kind is bool and isinstance(value, bool):
            found.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, tuple):
            found += [flag, *map(str, value)]
        else:
            found.append(f"{flag}={value}")
    return found


def _given(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Select the given fields of a dataclass; nested dataclasses are their defaults with the given fields replaced."""
    found = {field.name: values[field.name] for field in _flagged(kind) if field.name in values}
    for field in _flagged(kind):
        if dataclasses.is_dataclass(inner := default_of(field)) and not isinstance(inner, type):
            found[field.name] = dataclasses.replace(inner, **_given(type(inner), values))
    return found


def _flagged(kind: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(kind) if field.metadata.get("flag", True)]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default value of a field."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def shown(value: object) -> str:
    """Format a default as on the command line."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _default(value: object) -> str:
    unsaid = isinstance(value, bool) or value in (None, "", (), dataclasses.MISSING)
    return "" if unsaid else f" (default: {shown(value)})"


def _add_positional(section: Any, option: Option, help: str) -> str:
    """Add the arguments without a flag; return them as the usage shows them."""
    name, several = option.name, typing.get_origin(option.kind) is tuple
    convert, _ = _reader(name, typing.get_args(option.kind)[0] if several else option.kind)
    if option.default is dataclasses.MISSING:
        section.add_argument(name, nargs="+" if several else None, type=convert, help=help)
        return f"{name} [{name} ...]" if several else name
    section.add_argument(name, nargs="*" if several else "?", type=convert, default=option.default, help=help)
    return f"[{name} ...]" if several else f"[{name}]"


def add(section: Any, option: Option, help: str) -> None:
    """Add one flag; a flag that is not given leaves no value, so that the dataclass supplies its default."""
    name, kind, default = option.name, option.kind, option.default
    flag = flag_of(name)
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": help}
    if kind is bool:
        # A flag inverts its default.
        if default:
            flag, options["help"] = "--no-" + flag[2:], f"Do not {help[:1].lower()}{help[1:]}"
        section.add_argument(flag, action="store_false" if default else "store_true", **options)
        return
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (tuple, list):
        kind = parts[0]
        # A flag without values empties a list that has some by default.
        options["nargs"] = ("*" if default else "+") if origin is list or Ellipsis in parts else len(parts)
    convert, metavar = _reader(name, kind)
    added = section.add_argument(flag, type=convert, metavar=metavar, **options)
    if typing.get_origin(kind) is Literal:
        added.completer = lambda **_: [str(part) for part in typing.get_args(kind)]  # for argcomplete


def _reader(name: str, kind: Any) -> tuple[Callable[[str], Any], str]:
    """Return the parser of a type's values, and their placeholder in the help."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return one_of(parts), "{" + ",".join(map(str, parts)) + "}"
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        typed = [part for part in parts if typing.get_origin(part) is not Callable]  # a function cannot be typed
        if int in typed:  # a rule in words has a flag of its own
            typed = [part for part in typed if part is not str]
        (inner, *others) = [part for part in typed if part is not types.NoneType]
        if not others:
            convert, metavar = _reader(name, inner)
            return lambda text: None if text in ("None", "none") else convert(text), metavar
    if kind not in WANTED:
        raise UserError(
            f"{name} has a type that no flag can give: {kind}. Take int, float, str, bool, Literal or tuple"
        )
    return plain(kind), {int: "N", float: "X", str: "TEXT", Path: "PATH"}[kind]


def one_of(values: Iterable[Any]) -> Callable[[str], Any]:
    """Return the parser of a value that must be one of some."""
    words = {str(value): value for value in values}

    def convert(text: str) -> Any:
        if text not in words:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(words)}. Received: {text!r}")
        return words[text]

    return convert


def plain(kind: type) -> Callable[[str], Any]:
    """Return the parser of values of a type: int, float, str or Path."""

    def convert(text: str) -> Any:
        if kind is Path and not text:  # from an unset shell variable; Path("") is the current folder
            raise argparse.ArgumentTypeError("must not be empty")
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"takes {WANTED[kind]}. Received: {text!r}") from None
        if isinstance(value, int) and abs(value) > LARGEST:
            raise argparse.ArgumentTypeError(f"must be at most {LARGEST:.0e}. Received: {text!r}")
        return value

    return convert


class Parser(argparse.ArgumentParser):
    """A parser with errors of one line; `--ps_hosts` means `--ps-hosts`.

    Attributes:
        folded: titles of groups of which the short help shows only the names of the flags.
        command: the words after the name of the program, such as `explain`.
    """

    folded: Collection[str] = ()

    def __init__(self, prog: str, description: str, add_help: bool = True, **options: Any):
        program = PROGRAM.removeprefix("bash ")
        if "usage" in options:
            options["usage"] = options["usage"].replace("run.sh", program)
        prog = prog.replace("run.sh", program)
        settings: dict[str, Any] = {"formatter_class": _Help, "allow_abbrev": False, "add_help": False}
        super().__init__(prog, description=description, **settings, **options)
        self.command = prog.partition(" ")[2] or prog
        if add_help:
            self.add_help_to(self)

    @staticmethod
    def add_help_to(section: Any) -> None:
        """Add `--help` to a parser or to one of its groups; `--help-all` shows the same."""
        section.add_argument("-h", "--help", action="help", help="Show this and exit.")
        section.add_argument("--help-all", action="help", help=argparse.SUPPRESS)

    def values(self, arguments: Iterable[str]) -> argparse.Namespace:
        """Return the values by name.

        Raises:
            UserError: a flag or its value is wrong.
        """
        names = [action.dest for action in self._actions]
        words = [re.sub(r"^--[^=]+", lambda flag: flag_of(field_of(flag[0], names)), word) for word in arguments]
        found, strange = self.parse_known_args(words)
        if strange:
            self._refuse(strange[0])
        return found

    def shorten_help(self) -> None:
        """Reduce the help to names of flags in the folded groups, and to first sentences in the others."""
        for group in self._action_groups:
            for action in group._group_actions:
                action.help = argparse.SUPPRESS if group.title in self.folded else _first_sentence(action.help or "")
            if group.title in self.folded:
                group.description = ", ".join(action.option_strings[-1] for action in group._group_actions)
        self.epilog = "All options with their full meanings: --help-all"

    def error(self, message: str) -> NoReturn:
        """Raise a `UserError` with the message of `argparse`, reworded."""
        if message.startswith("argument "):
            message = message.removeprefix("argument ").replace(": ", " ", 1)
        message = re.sub(
            r"(\w+) invalid choice: (.*) \(choose from (.*)\)", r"\1 must be one of \3. Received: \2", message
        )
        message = re.sub(
            r"the following arguments are required: (.*)", rf"\1 is missing. See {self.command} --help", message
        )
        message = re.sub(r"expected (?:\w+ )*arguments?", "needs a value", message)
        raise UserError(re.sub(r"ignored explicit argument.*", "takes no value", message))

    def _refuse(self, word: str) -> NoReturn:
        """Raise a `UserError` for an argument that the command does not take."""
        from ..tasks.options import KERAS  # not at the top: help needs no NumPy

        if not word.startswith("-"):
            raise UserError(f"{self.command} does not take {word!r}. See {self.command} --help")
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        flag = word.partition("=")[0]
        meant = KERAS.get(field_of(flag))
        instead = f"In this package {meant}." if meant else nearest(flag, flags, f"See {self.command} --help")
        raise UserError(f"unknown option {flag} of {self.command}. {instead}")


class _ShortHelp(argparse.Action):
    """The flag `--help` of a parser with folded groups."""

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.shorten_help()
        parser.print_help()
        parser.exit()


def _first_sentence(text: str) -> str:
    """Return the first sentence of a meaning, and its default."""
    default = re.search(r" \(default: [^()]*\)$", text)
    first = re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]
    return first if default is None or first.endswith(default[0]) else first + default[0]


class _Help(argparse.HelpFormatter):
    """Help as wide as the terminal, up to `WIDE` columns."""

    def __init__(self, prog: str):
        width = min(WIDE, shutil.get_terminal_size().columns) - 2
        super().__init__(prog, max_help_position=26 if width >= NARROW else 6, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap a paragraph, and break no flag at its hyphens."""
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
