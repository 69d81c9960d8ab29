"""The center as others see it: snapshots at multiples of a number of updates, and reads by a client.

The evaluator evaluates the snapshots later. A client that reads the center from outside is too slow for a run of a
second, and cannot choose the version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ..messages.transport import Client

NEVER = -1.0  # in place of the time of a snapshot that has not been taken

CHUNK_FLOATS = 1 << 22  # 16 MB: what a client fetches at once


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

    Attributes:
        kept: for each slice, the values that are evaluated, [number, n].
        passed: for each slice, the time of the write of each row, seconds since 1970, [number]; else `NEVER`.
        kept_states: the mean of `states` over the workers, [number, S].
    """

    def __init__(self, multiples: Multiples, slices: Sequence[Any], states: Any):
        self.multiples, self.slices, self.states, self.device = multiples, slices, states, slices[0].device
        self.never = np.full(multiples.number, NEVER)
        self.kept, self.passed = [], []
        for part in slices:
            with tf.device(part.device):
                self.kept.append(tf.Variable(self._with_first(part.initial), name=f"snapshots_{part.index}"))
                passed = tf.concat([[tf.timestamp()], self.never[1:]], 0)
                self.passed.append(tf.Variable(passed, name=f"snapshots_passed_{part.index}"))
        with tf.device(self.device):
            self.kept_states = tf.Variable(self._with_first(states.initial_value[0]), name="snapshots_states")

    def _with_first(self, row: Any) -> Any:
        return tf.concat([row[None], tf.zeros([self.multiples.number - 1, row.shape[0]])], 0)

    def clear(self) -> list[Any]:
        """Return an operation for each ps task that clears its rows, after a restart or a restoration."""
        cleared = []
        for i, part in enumerate(self.slices):
            with tf.device(part.device):
                kept = [self.kept[i], self.kept_states] if i == 0 else [self.kept[i]]
                blank = [variable.assign(tf.zeros_like(variable.initial_value)).op for variable in kept]
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
            if self.kept_states.shape[1]:
                state = tf.reduce_mean(self.states, 0) if state is None else state
                _write(self.kept_states, rows, state[None][:times])
        for part, kept, passed in zip(self.slices, self.kept, self.passed, strict=True):
            with tf.device(part.device):
                evaluated = part.center if part.average is None else part.average
                _write(kept, rows, evaluated.read_value()[None][:times])  # slicing zero rows copies nothing
                _write(passed, rows, tf.fill([times], tf.timestamp()))

    def read(self) -> dict[str, Any]:
        """Return all rows: `kept` [number, P], `states` [number, S], `passed` [number], and the time, `now`."""
        with tf.device(self.device):
            now, states = tf.timestamp(), self.kept_states.read_value()
        passed = tf.reduce_min(tf.stack([variable.read_value() for variable in self.passed]), 0)
        kept: Sequence[Any] = [variable.read_value() for variable in self.kept]
        return {"kept": tf.concat(kept, 1), "states": states, "passed": passed, "now": now}


def _write(variable: Any, rows: Any, values: Any) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)


class CenterReader:
    """A read-only snapshot of all slices at one version, for a client.

    A tensor that a client fetches through a socket is copied several times, on the ps and on the client. So a large
    center is kept as a snapshot on the ps and fetched chunk by chunk, unless ps and client share memory. Each client
    has a snapshot of its own: another one could be replaced between two chunks.

    Args:
        slices: slices of the center.
        sizes: their sizes. If one is large, all are assigned to `snapshots`, which share the memory of the
            center until its next update.
        client: the client. With shared memory there are no `snapshots`.
    """

    def __init__(self, slices: Sequence[Any], sizes: Sequence[int], client: Client):
        self.slices, self.sizes, self.transport = slices, sizes, client.transport
        self.reader = re.sub(r"\W+", "_", client.device)
        self.names = ["center"] if slices[0].average is None else ["center", "average"]
        in_chunks = max(sizes) > CHUNK_FLOATS and not self.transport.shares(tf.float32, tf.TensorShape([max(sizes)]))
        self.snapshots = [self._nothing(part) for part in slices] if in_chunks else []

    def _nothing(self, part: Any) -> dict[str, Any]:
        with tf.device(part.device):
            return {
                name: tf.Variable(tf.zeros([0]), shape=[None], name=f"read_{name}_{part.index}{self.reader}")
                for name in self.names
            }

    def read(self) -> dict[str, list[Any]]:
        """Take a snapshot; return the slices of the center, and of its `average` if any, or nothing if it is stored."""
        found: dict[str, list[Any]] = {name: [] for name in self.names}
        for part in self.slices:
            with tf.device(part.device):
                for name in self.names:
                    now = getattr(part, name).read_value()
                    found[name].append(self.transport.send(now))
                    if self.snapshots:
                        self.snapshots[part.index][name].assign(now)
        return {} if self.snapshots else found

    def chunks(self) -> list[dict[str, Any]]:
        """Return the chunks of `snapshots`, to be fetched in sequence."""
        return [
            {name: variable.read_value()[first : first + CHUNK_FLOATS] for name, variable in snapshot.items()}
            for snapshot, size in zip(self.snapshots, self.sizes, strict=False)
            for first in range(0, size, CHUNK_FLOATS)
        ]

    def release(self) -> Any:
        """Empty `snapshots`, after they were fetched."""
        return tf.group(*(variable.assign(tf.zeros([0])) for row in self.snapshots for variable in row.values()))
