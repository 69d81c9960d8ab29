"""Milestones: centers that the ps sets aside at multiples of a number of updates, for whoever evaluates them later.

To look from outside would be too slow for a run of a second, and would see whatever version there is just then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

NEVER = -1.0  # a milestone that has not been passed, in seconds since 1970


class Multiples(NamedTuple):
    """The versions that are set aside: 0, `every`, 2 `every`, ... and so on, `number` of them."""

    every: int
    number: int


class Milestones:
    """A row for each multiple, written when the center comes to that version, and again if a restoration has undone it.

    There is no branch in the graph: each update writes no row, or one.

    Args:
        multiples: which versions are set aside.
        slices: of the center.
        states: of the workers, [W, S].

    Attributes:
        kept: for each slice what is evaluated of it, [number, n].
        passed: for each slice when each row was written, seconds since 1970, [number]; `NEVER` if it was not.
        kept_states: the mean over the workers, [number, S].
    """

    def __init__(self, multiples: Multiples, slices: Sequence[Any], states: Any):
        self.multiples, self.slices, self.states, self.device = multiples, slices, states, slices[0].device
        self.never = np.full(multiples.number, NEVER)
        self.kept, self.passed = [], []
        for part in slices:
            with tf.device(part.device):
                self.kept.append(tf.Variable(self._with_first(part.initial), name=f"milestones_{part.index}"))
                passed = tf.concat([[tf.timestamp()], self.never[1:]], 0)
                self.passed.append(tf.Variable(passed, name=f"milestones_passed_{part.index}"))
        with tf.device(self.device):
            self.kept_states = tf.Variable(self._with_first(states.initial_value[0]), name="milestones_states")

    def _with_first(self, row: Any) -> Any:
        return tf.concat([row[None], tf.zeros([self.multiples.number - 1, row.shape[0]])], 0)

    def forget(self) -> list[Any]:
        """For each ps task: none was passed. It needs that if it comes back empty, or goes on from a checkpoint."""
        forgotten = []
        for i, part in enumerate(self.slices):
            with tf.device(part.device):
                kept = [self.kept[i], self.kept_states] if i == 0 else [self.kept[i]]
                blank = [variable.assign(tf.zeros_like(variable.initial_value)).op for variable in kept]
                forgotten.append(tf.group(self.passed[i].assign(self.never).op, *blank))
        return forgotten

    def pass_by(self, version: Any, state: Any = None, moved: Any = True) -> None:
        """The center has come to this version: it is set aside if that is a multiple.

        Args:
            version: a scalar on the first ps task.
            state: of the model then, [S]; the mean over the workers if not given.
            moved: False if the center has been there before.
        """
        every, number = self.multiples
        with tf.device(self.device):
            multiple = version // every
            due = tf.equal(multiple * every, version) & (multiple < number) & moved
            times = tf.cast(due, tf.int32)  # none, or one
            rows = tf.fill([times], multiple)
            if self.kept_states.shape[1]:
                state = tf.reduce_mean(self.states, 0) if state is None else state
                _write(self.kept_states, rows, state[None][:times])
        for part, kept, passed in zip(self.slices, self.kept, self.passed, strict=True):
            with tf.device(part.device):
                evaluated = part.center if part.average is None else part.average
                _write(kept, rows, evaluated.read_value()[None][:times])  # shares the memory: none is copied for none
                _write(passed, rows, tf.fill([times], tf.timestamp()))

    def read(self) -> dict[str, Any]:
        """All rows: `kept` [number, P], `states` [number, S], `passed` [number], and what time it is `now`."""
        with tf.device(self.device):
            now, states = tf.timestamp(), self.kept_states.read_value()
        passed = tf.reduce_min(tf.stack([variable.read_value() for variable in self.passed]), 0)
        kept: Sequence[Any] = [variable.read_value() for variable in self.kept]
        return {"kept": tf.concat(kept, 1), "states": states, "passed": passed, "now": now}


def _write(variable: Any, rows: Any, values: Any) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)
