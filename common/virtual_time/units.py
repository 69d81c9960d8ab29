"""Parsing of quantities with units: 20ms, 100Mbit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ..errors import UserError

TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}  # in nanoseconds

RATES = {
    **{f"{prefix}bit": 10**power / 8e9 for prefix, power in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))},
    **{f"{prefix}B": 10**power / 1e9 for prefix, power in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))},
}  # per second, in bytes per nanosecond

UNLIMITED = "unlimited"

LONGEST = 10**6  # hours: a longer time is a mistake, and does not fit into 64 bits of nanoseconds


def nanoseconds(name: str, text: str) -> int:
    """Parse a time such as 20ms or 0s; `name` stands for it in errors.

    Raises:
        UserError: the text is no time, or the time is too long.
    """
    found = _quantity(name, text, TIMES, "as in 20ms")
    if found > LONGEST * TIMES["h"]:
        raise UserError(f"{name} must be at most {LONGEST}h. Received: {text!r}")
    return round(found)


def bytes_per_nanosecond(name: str, text: str) -> float:
    """Parse a bandwidth per second such as 100Mbit or 1GB, or `unlimited`; `name` stands for it in errors.

    Raises:
        UserError: the text is no bandwidth, or less than one bit per second.
    """
    if text == UNLIMITED:
        return math.inf
    rate = _quantity(name, text, RATES, f"as in 100Mbit (per second), or is {UNLIMITED}")
    if rate < RATES["bit"]:
        raise UserError(f"{name} must be at least 1bit (per second). Received: {text!r}")
    return rate


def _quantity(name: str, text: str, units: Mapping[str, float], example: str) -> float:
    found = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)([a-zA-Z]+)", text.strip())
    if found is None or found[2] not in units:
        raise UserError(f"{name} takes a number and a unit ({', '.join(units)}), {example}. Received: {text!r}")
    return float(found[1]) * units[found[2]]
