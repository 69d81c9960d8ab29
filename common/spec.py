"""Names with options on the command line: `synthetic:examples=2000,features=50`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .errors import UserError


def nearest(name: str, known: Mapping[str, Any] | list[str]) -> str:
    """' Did you mean a, b?' with the known names nearest to `name`, or a list of all."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(sorted(known))}."


def parse(kind: str, text: str, known: Mapping[str, Callable[..., Any]]) -> tuple[str, dict[str, Any]]:
    """Split `name:key=value,...` and check it against the number, text or a-b-c list options of `known[name]`."""
    name, _, rest = text.partition(":")
    if name not in known:
        raise UserError(f"unknown {kind} {name!r}. {nearest(name, known)}")
    allowed = {
        option: parameter.default
        for option, parameter in inspect.signature(known[name]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
    }
    options: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in allowed:
            have = f"its options: {', '.join(allowed)}" if allowed else "it has none"
            raise UserError(f"{kind} {name} has no option {key!r} ({have}). Received: {text!r}")
        default = allowed[key]
        if isinstance(default, str):
            options[key] = value
            continue
        try:
            numbers = tuple(type(default[0] if isinstance(default, tuple) else default)(v) for v in value.split("-"))
        except ValueError:
            raise UserError(f"option {key} of {kind} {name} takes a number. Received: {value!r}") from None
        if any(number <= 0 for number in numbers):
            raise UserError(f"option {key} of {kind} {name} must be positive. Received: {value!r}")
        options[key] = numbers if isinstance(default, tuple) else numbers[0]
    return name, options
