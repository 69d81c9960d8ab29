"""Checks of arguments: each raises `UserError` for the first value that is not permitted."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from .errors import UserError


def at_least(minimum: int, **values: int) -> None:
    """Raise `UserError` for the first named value that is not a whole number from `minimum`."""
    for name, value in values.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise UserError(f"{name} must be a whole number. Received: {name}={value!r}")
        if value < minimum:
            raise UserError(f"{name} must be at least {minimum}. Received: {name}={value}")


def at_most(maximum: float, **values: float) -> None:
    """Raise `UserError` for the first named value above `maximum`."""
    for name, value in values.items():
        if value > maximum:
            raise UserError(f"{name} must be at most {maximum:.12g}. Received: {name}={value}")


def positive(**values: Any) -> None:
    """Raise `UserError` for the first named value that is not a finite number above zero (or a schedule)."""
    for name, value in values.items():
        if not callable(value) and not (_is_finite(value) and value > 0):
            raise UserError(f"{name} must be a positive number. Received: {name}={value!r}")


def fraction(**values: float) -> None:
    """Raise `UserError` for the first named value outside [0, 1]."""
    for name, value in values.items():
        if not (_is_finite(value) and 0 <= value <= 1):
            raise UserError(f"{name} must lie between 0 and 1. Received: {name}={value!r}")


def not_negative(**values: float) -> None:
    """Raise `UserError` for the first named value that is not a finite number from zero."""
    for name, value in values.items():
        if not (_is_finite(value) and value >= 0):
            raise UserError(f"{name} must not be negative. Received: {name}={value!r}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def one_of(known: Sequence[str], **values: str) -> None:
    """Raise `UserError` for the first named value that is not known."""
    for name, value in values.items():
        if value not in known:
            raise UserError(f"{name} must be one of {', '.join(known)}. Received: {name}={value}")
