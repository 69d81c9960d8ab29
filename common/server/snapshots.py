"""Snapshots of the center at multiples of a number of updates, which the evaluator evaluates later.

A client that reads the center from outside is too slow for a run of a second, and cannot choose the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ..messages.ops import now
from ..messages.stand_in import Row

NEVER = -1.0  # in place of the time of a snapshot that has not been taken


class Multiples(NamedTuple):
    """The versions of which snapshots are taken: the first `number` of 0, `every`, 2 `every`, ..."""

    every: int
    number: int


class SnapshotBuffer:
    """A row for each multiple, written when the center reaches that version, and again after a restoration.

    The graph has no branch: each update writes zero rows or one.

    Args:
        multiples: the versions of which snapshots are taken.
        slices: slices of the center.
        states: states of the workers, [W, S].
        consensus: the consensus distance of workers that gossip, a scalar; None for others.

    Attributes:
        centers: for each slice, the values that are evaluated, [number, n].
        passed: for each slice, the time of the write of each row, seconds since 1970, [number]; else `NEVER`.
        center_states: the mean of `states` over the workers, [number, S].
        distances: the consensus distances of workers that gossip, [number], in a list; else an empty one.
    """

    def __init__(self, multiples: Multiples, slices: Sequence[Any], states: Any, consensus: Any = None):
        self.multiples, self.slices, self.states, self.device = multiples, slices, states, slices[0].device
        self.consensus = consensus
        self.never = np.full(multiples.number, NEVER)
        self.centers, self.passed = [], []
        for part in slices:
            with tf.device(part.device):
                self.centers.append(tf.Variable(self._with_first(part.initial), name=f"snapshots_{part.index}"))
                passed = tf.concat([[now()], self.never[1:]], 0)
                self.passed.append(tf.Variable(passed, name=f"snapshots_passed_{part.index}"))
        with tf.device(self.device):
            self.center_states = tf.Variable(self._with_first(states.initial_value[0]), name="snapshots_states")
            zeros = [] if consensus is None else [tf.zeros([multiples.number])]
            self.distances = [tf.Variable(zero, name="snapshots_consensus") for zero in zeros]

    def _with_first(self, row: Any) -> Any:
        return tf.concat([row[None], tf.zeros([self.multiples.number - 1, row.shape[0]])], 0)

    def clear(self) -> list[Any]:
        """Return an operation for each ps task that clears its rows, after a restart or a restoration."""
        cleared = []
        for i, part in enumerate(self.slices):
            with tf.device(part.device):
                evaluated = [self.centers[i], self.center_states, *self.distances] if i == 0 else [self.centers[i]]
                blank = [variable.assign(tf.zeros_like(variable.initial_value)).op for variable in evaluated]
                cleared.append(tf.group(self.passed[i].assign(self.never).op, *blank))
        return cleared

    def save_if_due(self, version: Any, state: Any = None, moved: Any = True) -> None:
        """Write the center's row if its version is a multiple.

        Args:
            version: version of the center, a scalar on the first ps task.
            state: state of the model at that version, [S]; the mean over the workers if not given.
            moved: False if the center had this version before.
        """
        every, number = self.multiples
        with tf.device(self.device):
            multiple = version // every
            due = tf.equal(multiple * every, version) & (multiple < number) & moved
            times = tf.cast(due, tf.int32)  # number of rows to write, 0 or 1
            rows = tf.fill([times], multiple)
            if self.center_states.shape[1]:
                state = tf.reduce_mean(self.states, 0) if state is None else state
                Row(self.center_states, rows).write(state[None][:times])
            for distances in self.distances:
                Row(distances, rows).write(tf.fill([times], self.consensus.read_value()))
        for part, centers, passed in zip(self.slices, self.centers, self.passed, strict=True):
            with tf.device(part.device):
                evaluated = part.center if part.average is None else part.average
                Row(centers, rows).write(evaluated.read_value()[None][:times])  # slicing zero rows copies nothing
                Row(passed, rows).write(tf.fill([times], now()))

    def read(self) -> dict[str, Any]:
        """Return all rows: `centers` [number, P], `states` [number, S], `passed` [number], and the time, `now`.

        Of workers that gossip also `consensus` [number].
        """
        with tf.device(self.device):
            time, states = now(), self.center_states.read_value()
            more = {"consensus": self.distances[0].read_value()} if self.distances else {}
        passed = tf.reduce_min(tf.stack([variable.read_value() for variable in self.passed]), 0)
        centers: Sequence[Any] = [variable.read_value() for variable in self.centers]
        return {"centers": tf.concat(centers, 1), "states": states, "passed": passed, "now": time, **more}
