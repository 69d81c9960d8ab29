"""Checks of arguments, which raise `UserError` for what is not permitted, and suggestions for misspelt names."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

from .errors import UserError

# Words of other systems, for each option, argument or command here.
MEANINGS = {
    "learning_rate": "lr eta step_size",
    "steps": "iterations iters max_steps num_steps",
    "batch_size": "bs minibatch",
    "workers": "nodes processes nproc nproc_per_node num_processes np ranks replicas",
    "ps": "servers num_servers parameter_servers",
    "devices_per_worker": "gpus devices",
    "run_dir": "output output_dir out logdir log_dir save save_dir",
    "resume": "restart continue restore load_checkpoint from_checkpoint",
    "l2": "weight_decay regularization",
    "clip_norm": "grad_clip gradient_clipping max_grad_norm",
    "codec": "compress compression quantize quantization",
    "stop_at_accuracy": "early_stopping target_accuracy",
    "hostile": "byzantine attack",
    "quiet": "silent q",
    "verbose": "debug v",
    "train": "fit",
    "sweep": "tune grid search gridsearch multirun",
    "list": "ls algorithms catalogue catalog",
    "explain": "describe info show",
    "evaluate": "eval validate",
    "replay": "verify prove",
    "timeline": "trace profile",
    "advise": "recommend choose which",
    "launch": "torchrun mpirun horovodrun",
    "doctor": "env check diagnose",
    "tutorials": "notebooks notebook jupyter",
}

# Words of other systems, or of other commands, that can mean one option alone: the command line takes them for it.
SAME = {
    "lr": "learning_rate",
    "bs": "batch_size",
    "nproc_per_node": "workers",
    "num_processes": "workers",
    "output": "plot",
}

SYNONYMS = {word: name for name, words in MEANINGS.items() for word in words.split()}

Function = TypeVar("Function", bound=Callable[..., Any])


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
    """Raise `UserError` for the first named value that is not a finite number above zero."""
    for name, value in values.items():
        if not (_is_finite(value) and value > 0):
            raise UserError(f"{name} must be a positive number. Received: {name}={value!r}")


def fraction(**values: float) -> None:
    """Raise `UserError` for the first named value outside [0, 1]."""
    for name, value in values.items():
        if not (_is_finite(value) and 0 <= value <= 1):
            raise UserError(f"{name} must lie between 0 and 1. Received: {name}={value!r}")


def below_one(**values: float) -> None:
    """Raise `UserError` for the first named value outside [0, 1)."""
    fraction(**values)
    for name, value in values.items():
        if value == 1:
            raise UserError(f"{name} must be below 1. Received: {name}={value}")


def not_negative(**values: float) -> None:
    """Raise `UserError` for the first named value that is not a finite number from zero."""
    for name, value in values.items():
        if not (_is_finite(value) and value >= 0):
            raise UserError(f"{name} must not be negative. Received: {name}={value!r}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def one_of(allowed: Sequence[str], **values: str) -> None:
    """Raise `UserError` for the first named value that is not known."""
    for name, value in values.items():
        if not isinstance(value, Hashable) or value not in allowed:  # an array has no truth value
            raise UserError(f"{name} must be one of {', '.join(allowed)}. Received: {name}={value}")


def a_text(**values: Any) -> None:
    """Raise `UserError` for the first named value that is no text."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise UserError(f"{name} must be a text in quotes. Received: {name}={value!r}")


def check_known(kind: str, *names: str, known: Iterable[str]) -> None:
    """Raise `UserError` for the first name that is not known, with the names near to it."""
    for name in names:
        a_text(**{kind: name})
        if name not in known:
            raise UserError(f"unknown {kind} {name!r}. {nearest(name, known)}")


def nearest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return 'Did you mean a, b?' with the known names near to `name`; if none is near, `otherwise`, or all names."""
    if close := close_to(name, names):
        return f"Did you mean {', '.join(close)}?"
    return otherwise or f"Known: {', '.join(sorted(names))}."


LONGEST_NAME = 100  # longer ones are no misspelt names, and to compare them takes long


def close_to(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three known names that `name` may mean, the nearest first, without regard to dashes and case.

    A name is near if whole words are too many or missing, as in `num_workers` for `workers` or `period` for
    `communication_period`, or if they differ in at most a third of the letters of `name`, and half of those of a word.
    """
    if len(name) > LONGEST_NAME:
        return []
    word, words = _plain(name), {text: _plain(text) for text in names}
    if synonyms := [text for text, letters in words.items() if letters == SYNONYMS.get(word)]:
        return synonyms
    edits = {text: _edits(word, letters) for text, letters in words.items()}
    inside = [text for text, letters in words.items() if _is_part(letters, word)]
    near = (text for text, letters in words.items() if edits[text] <= len(word) // 3 and _has_near_words(word, letters))
    close = sorted(near, key=edits.__getitem__)
    return (inside or close or [text for text, letters in words.items() if _is_part(word, letters)])[:3]


def spelt(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that has the same letters, `sync_sgd` for `SyncSGD()`; None if there is none."""
    return next((text for text in names if _letters(text) == _letters(name)), None)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _is_part(part: str, whole: str) -> bool:
    """Return True if the words of one name, between its underscores, are words of another."""
    return f"_{part}_" in f"_{whole}_"


def _has_near_words(word: str, other_word: str) -> bool:
    """Return False if a word is another one, as in `inner_optimizer` for `server_optimizer`."""
    parts, other_parts = word.split("_"), other_word.split("_")
    return len(parts) != len(other_parts) or all(
        _edits(a, b) <= (len(a) + 1) // 2 for a, b in zip(parts, other_parts, strict=True)
    )


def _edits(word: str, other_word: str) -> int:
    """Return how many letters must be inserted, deleted, replaced or exchanged with the next, from word to word."""
    before, row = [], [*range(len(other_word) + 1)]
    for i, a in enumerate(word, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other_word, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and (a, word[i - 2]) == (other_word[j - 2], b):
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]


def with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters with tuples in place of lists: JSON, like a command line, turns tuples into lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def check_call(function: Callable[..., Any], values: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise `UserError` for arguments that a function or class does not take; the message has the nearest names."""
    try:
        inspect.signature(function).bind(*values, **named)
    except TypeError as error:
        raise UserError(_why_refused(function, values, named, str(error))) from None


def _why_refused(function: Callable[..., Any], values: Sequence[Any], named: Mapping[str, Any], error: str) -> str:
    """Return the message for a call whose arguments do not fit, with the reason that Python gives."""
    callee, parameters = function.__qualname__.removesuffix(".__init__"), inspect.signature(function).parameters
    accepted = {name: parameter for name, parameter in parameters.items() if name not in ("cls", "self")}
    if not accepted:
        return f"{callee} takes no arguments"
    for name in named:
        if name not in accepted:
            return f"{callee} has no argument {name!r}. {nearest(name, accepted)}"
    if "missing" in error:
        needed = [
            name
            for name, parameter in accepted.items()
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        ]
        by_position = len(values) - (len(parameters) - len(accepted))
        received = [*[f"{by_position} by position"] * bool(by_position), *named]
        return f"{callee} needs {', '.join(needed)}. Received: {', '.join(received) or 'no arguments'}"
    by_name = next(
        (name for name, parameter in accepted.items() if parameter.kind is parameter.KEYWORD_ONLY), next(iter(accepted))
    )
    return f"{callee} takes other arguments ({error}): give them by name, as in {callee}({by_name}=...)"


class CheckedCall:
    """A class whose constructor raises `UserError` for an argument that it does not have."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Check the names of the arguments; there are none when `pickle` or `copy` makes an object."""
        if values or named:
            check_call(cls, values, named)
        return super().__new__(cls)


def checked_call(function: Function) -> Function:
    """Let a function raise `UserError` for an argument that it does not have."""

    @functools.wraps(function)
    def checked(*values: Any, **named: Any) -> Any:
        check_call(function, values, named)
        return function(*values, **named)

    return cast(Function, checked)
