"""The calls of tasks to the parameter server: their requests, made in a session with a time limit.

A call raises TensorFlow's errors as they are (`server.failures` classifies them); a call that waits for other tasks
raises `WaitTimeout`, which names the missing ones.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import WaitTimeout
from ..lazy import tf
from ..waiting import awake
from .feeds import whole_of
from .graph import TaskGraph
from .job import CHIEF
from .requests import (
    CommonRequests,
    GraceRequests,
    ObserverRequests,
    Operation,
    RegionRequests,
    Request,
    StopRequests,
    name_of_carrier,
)

REST_SECONDS = 0.1  # of the limit of a call, for which it is made again

Connect = Callable[[float], Any]  # makes a session, given the seconds that it may take


class Calls(CommonRequests):
    """The calls that tasks of all roles make.

    Args:
        session: the session that runs the graph.
        graph: the graph of this task.
        wait_seconds: limit of a call.
        connect: makes a new session; None in a process that has only one.
    """

    def __init__(self, session: Any, graph: TaskGraph, wait_seconds: float, connect: Connect | None = None):
        self.graph, self.operations = graph, graph.operations
        self.connect = connect or (lambda seconds: session)
        self.wait_seconds = wait_seconds
        self.identity: dict[Any, Any] = {}  # number and incarnation of the calling worker, fed with each call
        self._use(session)

    def _use(self, session: Any) -> None:
        self.session = session

    def reconnect(self, seconds: float) -> None:
        """Replace the session by a new one; raises `WaitTimeout` if that fails for `seconds`."""
        before = self.session
        self._use(self.connect(seconds))
        if self.session is not before:  # end calls that were given up; in a thread, as it may block
            threading.Thread(target=before.close, daemon=True).start()

    def make(self, request: Request, *values: Any) -> Any:
        """Make a request, given the values of its inputs; return the answer, with Python's scalars if it is no dict."""
        seconds = request.waits * self.wait_seconds if request.seconds is None else request.seconds
        found = self.run(self.operations[request.name], *values, seconds=seconds, again=request.repeats)
        return found if isinstance(found, dict) else tf.nest.map_structure(_plain, found)

    def run(self, operation: Operation, *values: Any, seconds: float, again: bool = False) -> Any:
        """Run an operation, given the values of its inputs, and return what it fetches.

        Args:
            operation: the operation.
            values: values of its inputs.
            seconds: limit of the call. TensorFlow counts time in which this process was suspended.
            again: run it again for the rest of the limit if that is why it has ended.
        """
        inputs = dict(zip(tf.nest.flatten(operation.inputs), tf.nest.flatten(values), strict=True))
        deadline = awake.now() + seconds
        while True:
            options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * seconds))
            try:
                found = self.session.run(tf.nest.flatten(operation.fetches), self.identity | inputs, options=options)
            except tf.errors.DeadlineExceededError:
                seconds = deadline - awake.now()
                if not again or seconds < REST_SECONDS:
                    raise
            else:
                return tf.nest.pack_sequence_as(operation.fetches, found)

    def _wait(self, make: Callable[[], Any], missing: Callable[[], str]) -> None:
        """Make a request that waits for other tasks."""
        try:
            make()
        except tf.errors.DeadlineExceededError:
            raise WaitTimeout(f"waited {self.wait_seconds:g} s for {missing()}") from None

    def await_state(self) -> None:
        """Block until the chief has initialized, adopted or restored the state."""
        self._wait(self._await_state, lambda: f"the chief, worker {CHIEF}")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


class ObserverCalls(Calls, StopRequests, ObserverRequests, GraceRequests):
    """The calls of the evaluator, which is a client of the first ps."""

    def snapshot(self) -> dict[str, Any]:
        """Return an atomic snapshot: the version (`at`), `center` [P], its `average` if it has one, `state` [S].

        It also has the number of messages of each worker that were `refused`, [W].
        """
        found = self._snapshot()
        return found | {name: whole_of(parts) for name, parts in found.pop("vectors").items()}

    def await_quorum(self) -> None:
        """Block until a time of grace begins, or for some seconds."""
        with contextlib.suppress(tf.errors.DeadlineExceededError):
            self._await_quorum()

    def call_clock(self) -> None:
        """End `await_quorum` in another thread; the ps may be gone."""
        with contextlib.suppress(tf.errors.OpError):
            self._call_clock()

    def end_ps(self) -> None:
        """End the ps tasks, which may exit before they answer."""
        with contextlib.suppress(tf.errors.OpError):
            self._end_ps()


class RegionCalls(RegionRequests):
    """The calls of the evaluator to one region."""

    def __init__(self, calls: Calls, region: int):
        self.calls, self.region = calls, region

    def make(self, request: Request, *values: Any) -> Any:
        """Make a request to this region."""
        return self.calls.make(replace(request, name=name_of_carrier(request.name, self.region)), *values)
