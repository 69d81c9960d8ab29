"""Answers of the parameter server that have several parts: tensors in the graph, and their values in a call."""

from __future__ import annotations

from typing import Any, NamedTuple

# Values of the chief's request for copies of local states: the index of a meeting, from 0, or one of these.
NONE = -1  # no copy is requested
NEVER = -2  # no copy is requested, and the run has no checkpoint yet
LAST = 1 << 62  # added to a request after which the run ends, as a signal has interrupted it


class WorkerFlags(NamedTuple):
    """The status of the workers, [W] booleans each."""

    finished: Any  # the worker has done all its rounds
    active: Any  # the worker is in the active set


class Joined(NamedTuple):
    """The answer that a worker receives when it joins."""

    rounds: Any  # logged rounds of its slot
    waits: Any  # the message of the last round is in a set that is not complete yet
    restoration: Any  # number of this initialization or restoration of the state
    stopping: Any  # the run ends now
    copied: Any  # a copy of its local state after these rounds exists
    version: Any  # updates in the center
    asked: Any  # the chief's request: the index of a meeting, `NONE` or `NEVER`


class Drained(NamedTuple):
    """The part of the trace that the evaluator has not acknowledged."""

    events: Any  # [n, len(ROW)]
    before: Any  # number of acknowledged events
    restoration: Any  # number of the last restoration of the state
    length: Any  # number of events in the trace at that restoration
    now: Any  # the time there, on the clock of the events


class Positions(NamedTuple):
    """The position of the workers once the request of the chief is visible to all."""

    version: Any  # updates in the center
    rounds: Any  # logged rounds of each, [W]
    longest_call: Any  # rounds of the longest calls of each, [W]


class PausedWorkers(NamedTuple):
    """The workers that stand still."""

    paused: Any  # True for each worker that has a copy of its last round, has finished, or is not active, [W]
    rounds: Any  # logged rounds of each, [W]
    continues: Any  # the state is clean, and the run is not being stopped
