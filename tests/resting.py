"""An algorithm of the catalogue whose workers sleep in each round; tests import it, as no `--import` can."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sleeping import in_task, rested

from distsgd.algorithms import (
    DPSGD,
    EFSGD,
    SGP,
    AsyncSGD,
    ChocoSGD,
    DecoupledDiLoCo,
    DSGDTracking,
    HALoS,
    NoLoCo,
    SyncSGD,
)
from distsgd.common.contract import tf
from distsgd.common.tasks import state_manager
from distsgd.common.tasks.carriers import Carriers
from distsgd.common.tasks.worker_loop import WorkerLoop
from distsgd.common.waiting import wait_until
from doubles import HeavyAllReduce


@dataclass(frozen=True, kw_only=True)
class Rests:
    """The rest in each round of the algorithms below, which keep their names, so that their runs replay."""

    milliseconds: int = 20

    def message(self, worker: Any) -> Any:
        return rested(super().message(worker), self.milliseconds)


@dataclass(frozen=True, kw_only=True)
class Resting(Rests, AsyncSGD):
    """Asynchronous SGD that sleeps in each round."""


@dataclass(frozen=True, kw_only=True)
class RestingUntil(AsyncSGD):
    """Asynchronous SGD that sleeps in each round until a file exists: what a test does meanwhile ends in time."""

    file: str

    def message(self, worker: Any) -> Any:
        again = tf.strings.as_string(worker.round)  # a pattern that never changes would be looked up once
        there = tf.size(tf.io.matching_files(tf.stack([self.file, self.file + again]))) > 0
        return rested(super().message(worker), tf.where(there, tf.constant(0, tf.int64), 500))


@dataclass(frozen=True, kw_only=True)
class RestingHALoS(Rests, HALoS):
    """The same of servers in regions."""


@dataclass(frozen=True, kw_only=True)
class RestingTogether(Rests, SyncSGD):
    """The same of synchronous SGD."""


@dataclass(frozen=True, kw_only=True)
class RestingEFSGD(Rests, EFSGD):
    """The same of synchronous SGD with memories."""


@dataclass(frozen=True, kw_only=True)
class RestingHeavyAllReduce(Rests, HeavyAllReduce):
    """The same without a ps, of workers with velocities."""


@dataclass(frozen=True, kw_only=True)
class RestingDPSGD(Rests, DPSGD):
    """The same of gossip."""


@dataclass(frozen=True, kw_only=True)
class UnwatchedDPSGD(RestingDPSGD):
    """The same in tasks whose state is not watched: the chief's first call for a checkpoint is that at the end."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if in_task():
            state_manager.WATCH_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True)
class LeavingDPSGD(RestingDPSGD):
    """The same with a last worker that is killed after its last round, once all others have made theirs."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if not in_task():
            return
        finish = WorkerLoop._finish

        def leave(loop: WorkerLoop) -> None:
            if loop.index < loop.plan.workers - 1:
                return finish(loop)
            wait_until(lambda: loop.calls.worker_flags().finished[:-1].all(), 300, str)
            os.kill(os.getpid(), signal.SIGKILL)

        WorkerLoop._finish = leave


@dataclass(frozen=True, kw_only=True)
class CutDPSGD(RestingDPSGD):
    """The same in which worker 1 loses its connection to worker 2 alone, after 40 messages."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if not in_task():
            return
        carrier, messages = Carriers._carrier, itertools.count()

        def cut(carriers: Carriers, of: int) -> Callable[[], None]:
            carry = carrier(carriers, of)

            def carry_40() -> None:
                if next(messages) >= 40:
                    raise RuntimeError("the connection is lost")
                carry()

            return carry_40 if (carriers.index, of) == (1, 2) else carry

        Carriers._carrier = cut


@dataclass(frozen=True, kw_only=True)
class RestingSGP(Rests, SGP):
    """The same of gossip with one other."""


@dataclass(frozen=True, kw_only=True)
class RestingNoLoCo(Rests, NoLoCo):
    """The same of gossip in random pairs after many steps."""


@dataclass(frozen=True, kw_only=True)
class RestingTracking(Rests, DSGDTracking):
    """The same of gossip that tracks the mean gradient."""


@dataclass(frozen=True, kw_only=True)
class RestingChoco(Rests, ChocoSGD):
    """The same of gossip in compressed messages."""


@dataclass(frozen=True, kw_only=True)
class LateWorker(DecoupledDiLoCo):
    """Decoupled DiLoCo on three workers, the last of which needs 150 ms more for each round."""

    def message(self, worker: Any) -> Any:
        vector, scalars = super().message(worker)
        return rested(vector, tf.where(tf.equal(worker.index, 2), tf.constant(150, tf.int64), 0)), scalars
