"""`bash run.sh explain agn`: what an algorithm does, and what its hyperparameters mean."""

from __future__ import annotations

import dataclasses
import sys

from .scheme import Scheme


def explain(scheme: type[Scheme]) -> None:
    """Print the docstring of the algorithm's module (or of its class), and the table of its hyperparameters."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    text = Text((sys.modules[scheme.__module__].__doc__ or scheme.__doc__ or scheme.idea).strip())
    text.highlight_regex(r"\A[^\n]*", "bold")
    text.highlight_regex(r"(?m)^(Reference|Departures|Limits):", "bold")
    text.highlight_regex(r"(?m)^    .*$", "cyan")
    console.print(text, soft_wrap=True)

    meanings = hyperparameters(scheme)
    if meanings:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("hyperparameter", "default", "meaning"):
            table.add_column(column)
        for name, (default, meaning) in meanings.items():
            table.add_row("--" + name.replace("_", "-"), Text(default), Text(meaning))
        console.print()
        console.print(table)
    console.print(f"\nTo run it: bash run.sh {scheme.name}", soft_wrap=True)


def hyperparameters(scheme: type[Scheme]) -> dict[str, tuple[str, str]]:
    """Default and meaning of each hyperparameter; the meaning is the string below the field in the class."""
    from docstring_parser import parse_from_object

    meanings: dict[str, str] = {}
    for owner in reversed(scheme.__mro__):
        if dataclasses.is_dataclass(owner) and owner is not Scheme:
            meanings |= {p.arg_name: " ".join((p.description or "").split()) for p in parse_from_object(owner).params}
    return {
        field.name: (_shown(getattr(scheme(), field.name)), meanings.get(field.name, ""))
        for field in dataclasses.fields(scheme)
    }


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
