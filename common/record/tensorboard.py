"""Summaries of the center for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..files import own_folder, writing
from ..lazy import tf


class Summaries:
    """Scalars of the center as TensorBoard files, written by TensorFlow itself, without the package tensorboard."""

    def __init__(self, folder: Path):
        with writing(folder):
            own_folder(folder)
        with tf.Graph().as_default():  # the writer raises outside a graph
            self.writer = tf.compat.v1.summary.FileWriter(str(folder))

    def write(self, metrics: dict[str, Any]) -> None:
        """Write a point for each number, at the version of the center; elements of a vector are `name/0`, ..."""
        numbers = dict(_numbers({name: value for name, value in metrics.items() if name != "version"}))
        values = [tf.compat.v1.Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self.writer.add_summary(tf.compat.v1.Summary(value=values), metrics["version"])
        self.writer.flush()


def _numbers(metrics: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each number with its name, also those in (nested) lists."""
    for name, value in metrics.items():
        if isinstance(value, list):
            yield from _numbers({f"{name}/{i}": item for i, item in enumerate(value)})
        elif isinstance(value, int | float):
            yield name, value
