"""Metrics of the center on the test data: their names, their format, and a warning if the model became worse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

ALWAYS = ("test_accuracy", "test_loss")  # numbers or None, in every result.json

MANY = 5  # most numbers of a metric that are shown one by one


def others(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics on the test data by name, without `ALWAYS`, unless these are vectors."""
    tests = {name: value for name, value in metrics.items() if name.startswith("test_")}
    return {name: value for name, value in tests.items() if name not in ALWAYS or isinstance(value, list)}


def shown(value: Any) -> str:
    """Format a metric: a number, or the numbers of a vector, or mean and range of a long one."""
    if not isinstance(value, list):
        return "-" if value is None else f"{value:.4f}"
    numbers = np.ravel(np.array(value, np.float64))  # None, which JSON has for NaN, becomes NaN again
    if numbers.size <= MANY:
        return " ".join(f"{number:.3f}" for number in numbers)
    return f"mean {numbers.mean():.4f} of {numbers.size}, from {numbers.min():.3f} to {numbers.max():.3f}"


def worsened(
    rows: Iterable[Mapping[str, Any]], last: Mapping[str, Any], hyperparameters: Mapping[str, Any]
) -> str | None:
    """Return a warning and advice if the final test loss is far above the first one; else None.

    Args:
        rows: rows of metrics.jsonl, in order.
        last: metrics at the end; it has none of test data if the run had no test data.
        hyperparameters: hyperparameters of the run.
    """
    first = next((row["test_loss"] for row in rows if row["kind"] == "center" and "test_loss" in row), None)
    end = last.get("test_loss")
    if first is None or end is None or not math.isfinite(first) or end - first <= abs(first):
        return None
    rate = hyperparameters.get("learning_rate")
    than = f" than {rate}" if isinstance(rate, float | int) else ""  # a rate may be a schedule
    return (
        f"test loss rose from {first:.4g} to {end:.4g}: training made the model worse. Try a smaller learning rate"
        f"{than}, fewer workers or a shorter period"
    )
