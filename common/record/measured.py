"""Metrics of the center on the test data: which they are, how they are shown, whether the model has become worse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

ALWAYS = ("test_accuracy", "test_loss")  # numbers or None, which every result.json has

MANY = 5  # numbers of a metric that are shown as they are, at most


def others(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics on the test data but the numbers accuracy and loss, by name."""
    tests = {name: value for name, value in metrics.items() if name.startswith("test_")}
    return {name: value for name, value in tests.items() if name not in ALWAYS or isinstance(value, list)}


def shown(value: Any) -> str:
    """Write a metric for people: a number, or of a vector its numbers, or their mean and range if there are many."""
    if not isinstance(value, list):
        return "-" if value is None else f"{value:.4f}"
    numbers = np.ravel(np.array(value, np.float64))  # None, which JSON has for what is not finite, is NaN here
    if numbers.size <= MANY:
        return " ".join(f"{number:.3f}" for number in numbers)
    return f"mean {numbers.mean():.4f} of {numbers.size}, from {numbers.min():.3f} to {numbers.max():.3f}"


def worsened(
    rows: Iterable[Mapping[str, Any]], last: Mapping[str, Any], hyperparameters: Mapping[str, Any]
) -> str | None:
    """Say that the test loss at the end is far above that of the start, and what to do; None if it is not.

    Args:
        rows: of metrics.jsonl, in order.
        last: the metrics at the end, without any if there are no test data.
        hyperparameters: of the run.
    """
    first = next((row["test_loss"] for row in rows if row["kind"] == "center" and "test_loss" in row), None)
    end = last.get("test_loss")
    if first is None or end is None or not math.isfinite(first) or end - first <= abs(first):
        return None
    rate = hyperparameters.get("learning_rate")
    than = f" than {rate}" if isinstance(rate, float | int) else ""  # it may be a schedule
    return (
        f"test loss rose from {first:.4g} to {end:.4g}: training made the model worse. Try a smaller learning rate"
        f"{than}, fewer workers or a shorter period"
    )
