"""The chief's management of the global state: it initializes, adopts, restores and monitors the state.

* An event that is interrupted leaves the state dirty, and the ps refuses all workers until the chief has restored the
  newest checkpoint. The same is true of a ps that restarts empty.
* The chief adopts a state that is alive and clean, restores one that is not, and initializes one only if the run has
  never had any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..cluster.restart_rule import RestartRule
from ..errors import TaskLost, UserError
from ..messages.cut import COPIES
from ..record import checkpoint
from ..reports import Report
from ..server.answers import NEVER, NONE
from ..server.failures import is_absence
from ..sync import losses
from ..waiting import awake
from .calls import Connect
from .checkpointing import Saver
from .graph import TaskGraph
from .local_layout import Layout, as_bytes
from .standstill import Standstill
from .state_calls import StateCalls

WATCH_SECONDS = 0.25

INTERRUPTED_SECONDS = 14.0  # for all workers to stand still after a signal


class StateManager:
    """The manager of the global state. It initializes and restores the state, and saves it periodically in a thread.

    Args:
        graph: the graph of the chief.
        saver: writes checkpoints.
        rule: the rule of restarts: tasks that may be restarted, and the time that the others wait.
        connect: makes a new session, given the seconds that it may take.
        report: receives events.
        standstill: stops the workers while the state is read.
        interrupted: returns True if a signal has interrupted the run.
        leaves: True if only this program ends then, and not the run.
        endless: True for a script, which may leave its loop by itself then.

    Attributes:
        failure: the error that ended the thread, or None.
        over: set to end the thread.
    """

    def __init__(
        self,
        graph: TaskGraph,
        saver: Saver,
        rule: RestartRule,
        connect: Connect,
        report: Report,
        standstill: Standstill,
        interrupted: Callable[[], object] = bool,
        leaves: bool = False,
        endless: bool = False,
    ):
        self.graph, self.saver, self.rule, self.connect, self.report = graph, saver, rule, connect, report
        self.standstill, self.interrupted, self.leaves, self.endless = standstill, interrupted, leaves, endless
        self.claimed = False
        self.calls: StateCalls | None = None  # those of the thread
        self.failure: BaseException | None = None
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def claim(self, calls: StateCalls) -> None:
        """Adopt the global state if it is alive and clean; else restore it, or initialize it if none has ever existed.

        Raises:
            TaskLost: some of it was lost, and no checkpoint exists.
            UserError: the checkpoint is of another kind of run.
        """
        alive = calls.alive()
        if not (alive.all() and calls.is_clean()):
            self.saver.void()
            last = checkpoint.newest(self.saver.run_dir, self._pass_over)
            again = self.claimed or bool(alive.any())
            if last is not None:
                self._restore(calls, last, again)
            elif again:
                lost = ", ".join(f"ps {i}" for i in np.flatnonzero(~alive)) or "an update in the middle"
                raise TaskLost(f"state was lost ({lost}), and there is no checkpoint to restore it from")
            else:
                calls.initialize(restoration=time.time_ns())
                if self.rule.max_restarts:
                    self.saver.save_first(calls)
        self.claimed = True
        calls.ask_for_copies(NONE if checkpoint.found(self.saver.run_dir) else NEVER)
        calls.announce_state()

    def _pass_over(self, path: Path, problem: checkpoint.Damaged) -> None:
        """Put a damaged checkpoint aside with a warning, so that the one before it is used."""
        self.report(event="warning", message=checkpoint.quarantine(path, problem))

    def _restore(self, calls: StateCalls, last: checkpoint.Checkpoint, again: bool) -> None:
        """Restore a checkpoint: `again` in the middle of a run, or for the first time as the run is resumed."""
        check_fits(last, self.saver, calls)
        arrays = last.shared
        if not again:  # workers that had finished may have more rounds now
            arrays["finished"] = arrays["ready"] = np.zeros_like(arrays["finished"])
            arrays["active"] = np.ones_like(arrays["active"])
        number = time.time_ns()
        rounds, keeping = last.arrays["rounds_applied"], self.saver.keeping
        done, out = (
            [k for k in np.flatnonzero(rounds).tolist() if keeping.layout.parts or keeping.bytes],
            losses.out_in(last.arrays),
        )
        zeros = keeping.cleared if out.any() else ()  # for a worker that returns as for one that is lost
        copies = {}
        for k in done:
            if keeping.layout.fits(state := last.local(k)) and not out[k]:
                copies[k] = int(rounds[k]), as_bytes(state | {name: np.zeros_like(state[name]) for name in zeros})
        if lost := [k for k in done if k not in copies]:
            self.report(event="warning", message=f"{self.saver.without(last.version, lost)}: it begins anew")
        calls.restore(arrays, restoration=number, events=last.events, copies=copies)
        self.saver.restored(last.version)
        self.report(event="restored" if again else "resumed", version=last.version, restoration=number)

    def start(self) -> None:
        """Start the thread that monitors and saves the state, if this run does one of both."""
        if self.rule.recovers or not self.saver.keeping.without_checkpoints:
            self._thread.start()

    def end(self) -> Callable[[], None]:
        """Stop the thread; return a function that writes the last checkpoint, which is read already, without the ps."""
        self.over.set()
        if self._thread.is_alive():
            self._thread.join(self.rule.wait_seconds)
        return self.saver.save_last(self._connected, self.endless and bool(self.interrupted()))

    def await_interrupted(self) -> None:
        """Block until the last checkpoint of an interrupted run is written, for as long as it may take."""
        if self.saver.interrupted and self.saver.writer is not None:
            self.saver.writer.join(self.saver.saving_seconds)

    def _connected(self) -> StateCalls:
        if self.calls is None:
            wait_seconds = self.rule.wait_seconds
            self.calls = StateCalls(self.connect(wait_seconds), self.graph, wait_seconds, self.connect)
        return self.calls

    def _watch(self) -> None:
        """Monitor and save the state until `end`; keep retrying while the ps may be restarting."""
        failing: float | None = None
        while not self.over.wait(WATCH_SECONDS):
            try:
                if self.interrupted():
                    return self._interrupt()
                self._keep_state()
                failing = None
            except Exception as error:
                self.calls = None
                failing = failing or awake.now()
                if not is_absence(error) or awake.now() - failing > self.rule.repair_seconds:
                    self.failure = error
                    return

    def _keep_state(self) -> None:
        """Restore the state if it needs that, and save it if a checkpoint is due; connect only then."""
        if not self._is_fine():
            self.claim(self._connected())
        if self.saver.is_due(self._connected):
            calls = self._connected()
            with self.standstill.of(calls, self._is_fine) as stands:
                if stands:
                    self.saver.save(calls)

    def _interrupt(self) -> None:
        """Stop an interrupted run and save its state, between two rounds of all workers if they come there in time.

        If only this program leaves, the state is saved without a stop.
        """
        if self.saver.keeping.without_checkpoints:
            return  # the evaluator stops the run
        calls = self._connected()
        if calls.worker_flags().finished.all():
            return  # the run is complete
        with self.standstill.of(calls, self._is_fine, INTERRUPTED_SECONDS, last=not self.leaves) as stands:
            if not self.leaves and (stands or self.graph.sync.uses_ps):
                calls.stop()  # else the evaluator ends the run: workers may wait for each other for good
            if stands:
                self.saver.save_interrupted(calls)
            elif moving := self.standstill.moving:
                text = (
                    f"no checkpoint of the end: within {INTERRUPTED_SECONDS:.0f} s {moving} reached no end of a round"
                )
                self.report(event="warning", message=f"{text} that all workers could make")

    def _is_fine(self) -> bool:
        """Return False if the state needs to be restored, and the rule of restarts allows that."""
        if not self.rule.recovers:
            return True
        calls = self._connected()
        return bool(calls.alive().all() and calls.is_clean())


def check_fits(last: checkpoint.Checkpoint, saver: Saver, calls: StateCalls) -> None:
    """Raise `UserError` if a checkpoint is of another kind of run than this one."""
    for name, value in saver.about.items():
        if last.about.get(name) != value:
            raise UserError(
                f"the checkpoint in {saver.run_dir} is of a run with {name}={last.about.get(name)!r}: it cannot be "
                f"resumed with another. Received: {name}={value!r}"
            )
    if calls.places.keys() != last.shared.keys():
        differ = ", ".join(sorted(calls.places.keys() ^ last.shared.keys()))
        raise UserError(
            f"the checkpoint in {saver.run_dir} is of a run with other hyperparameters (variables: {differ})"
        )
    places = {name: parts[:1] if name.startswith(COPIES) else parts for name, parts in calls.places.items()}
    for name, (kind, shape) in Layout.of(places).parts.items():
        array = last.arrays[name]
        if (array.dtype, array.shape) != (kind, shape):
            raise UserError(
                f"the checkpoint in {saver.run_dir} cannot be of this run: {name} should be {kind} {list(shape)}. "
                f"Received: {array.dtype} {list(array.shape)}"
            )
