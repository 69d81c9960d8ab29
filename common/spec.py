"""Names with options: `synthetic:examples=2000,features=50`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from .errors import UserError


def parse(kind: str, text: str, functions: Mapping[str, Callable[..., Any]]) -> tuple[str, dict[str, Any]]:
    """Split `name:key=value,...` and check it against the options of `known[name]`: numbers, texts or a-b-c lists."""
    name, _, rest = text.partition(":")
    if name not in functions:
        from .arguments import check_known  # not at the top: a replay without TensorFlow needs few lines

        check_known(kind, name, known=functions)
    allowed = {
        option: parameter.default
        for option, parameter in inspect.signature(functions[name]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
    }
    options: dict[str, Any] = {}
    for item in filter(None, re.split(r",(?=\w+=)", rest)):  # a path may contain a comma
        key, _, value = item.partition("=")
        if key not in allowed:
            have = f"its options: {', '.join(allowed)}" if allowed else "it has none"
            raise UserError(f"{kind} {name} has no option {key!r} ({have}). Received: {text!r}")
        default = allowed[key]
        options[key] = value if isinstance(default, str) else numbers(f"option {key} of {kind} {name}", value, default)
    return name, options


def numbers(what: str, text: str, default: Any) -> Any:
    """Return a positive number, or 0 if that is the default; for a tuple, several of them, written a-b-c."""
    several = isinstance(default, tuple)
    number = type((0 if text.isdigit() else 0.0) if default is None else default[0] if several else default)
    try:
        values = tuple(number(part) for part in (text.split("-") if several else [text]))
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}[number]
        raise UserError(f"{what} takes {wanted}{', or several as in 256-128' * several}. Received: {text!r}") from None
    limit, name = (2**31, "below 2^31") if number is int else (math.inf, "finite")
    if not all(0 < value < limit or value == default for value in values):
        raise UserError(f"{what} must be positive and {name}. Received: {text!r}")
    return values if several else values[0]
