"""The turns of workers, in whole numbers: their positions in their rounds, those that wait, and what follows each step.

`Group` takes each turn when its caller makes a step. `Optimizer` plans many turns ahead and takes them in a graph.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np

from .contract.checks import check_together
from .contract.rounds import ENDLESS
from .contract.scheme import Scheme
from .errors import UserError
from .lazy import tf
from .sequencer import Effect, Sequencer

Order = Literal["round robin", "random"] | Sequence[int]

# Type of the variables that hold times. TensorFlow keeps variables of int32 in the memory of the host, where a function
# that XLA has compiled for a GPU cannot read them.
WHOLE = "int64"


class Now(NamedTuple):
    """A worker and the time of an operation, in whole numbers, or in scalars of a graph."""

    worker: Any
    round: Any  # number of its present round
    step: Any  # local steps that it has made
    first: Any  # local steps that it had made before this round
    length: Any  # local steps of this round
    staleness: Any  # updates of the center since it last pulled the center
    version: Any  # updates of the center
    completes: Any = 0  # 1 if its message completes an update
    kind: Any = 0  # number of the kind of its present round, in the order of `Scheme.kinds`


def now_of(numbers: Any) -> Now:
    """Return the time in a row of a variable, as scalars of int32."""
    return Now(*tf.unstack(tf.cast(numbers, tf.int32)))


def of_kinds(now: Now, kinds: int, of: Callable[[Now], Any]) -> Any:
    """Return what a function of a time returns, of so many kinds of rounds; in a graph that of `now` is not known."""
    if isinstance(now.kind, int):
        return of(now)
    each = [partial(of, now._replace(kind=kind)) for kind in range(kinds)]
    return tf.switch_case(now.kind, each) if kinds > 1 else each[0]()


@dataclass
class Position:
    """The position of one worker in its rounds."""

    rounds: Iterator[tuple[int, str]]
    round: int = -1
    step: int = 0
    first: int = 0
    length: int = 0  # local steps of this round
    left: int = 0  # those of them that are left
    kind: str = ""  # its kind, see `Scheme.kinds`


class Turns:
    """Which workers may step, and which operations follow from each local step.

    Args:
        scheme: the algorithm.
        workers: number of workers, W.
        do: does the operation of `Operations` with this name, when it is due.

    Attributes:
        sequencer: decides what a message does, and who continues.
    """

    def __init__(self, scheme: Scheme, workers: int, do: Callable[[str, Now], None], seed: int = 0):
        self.scheme, self.sync, self.workers, self.do = scheme, scheme.sync, workers, do
        self.kinds = [*scheme.kinds]
        self.sequencer = sequencer = Sequencer(scheme, workers, self._effect)
        self.events = {"exchange": sequencer.exchange, "push": sequencer.push, "pull": sequencer.pull}
        self.at = [Position(iter(scheme.rounds(ENDLESS, 0, k, seed).after(0))) for k in range(workers)]
        for at in self.at:
            self._begin_round(at)

    @property
    def ready(self) -> list[int]:
        """The workers that may step, in ascending order; there is always one."""
        return [k for k in range(self.workers) if not self._waits(k) and k not in self.sequencer.held_back]

    def _waits(self, k: int) -> bool:
        """Return True for a worker without its reply, unless it has steps to make until it uses the reply."""
        return k in self.sequencer.waiting.arrived and not (self.scheme.overlap and self.at[k].left > 0)

    def now(self, k: int, completes: int = 0) -> Now:
        """Return the present time of worker k."""
        at, sequencer = self.at[k], self.sequencer
        updates = sequencer.staleness(k), sequencer.version, completes
        return Now(k, at.round, at.step, at.first, at.length, *updates, self.kinds.index(at.kind))

    def step(self, k: int) -> None:
        """Make one local step of worker k, which is ready, and with the last step of its round the event."""
        at = self.at[k]
        if self.scheme.overlap:
            self._overlapped_step(k)
        else:
            self._local_step(k)
            if not self.sync.exchanges:  # a single worker, whose parameters are the center
                self.sequencer.step_alone()
            if at.left <= 0 and self.sync.exchanges:
                self._end_round(k)
                if self.sync.cancel_late:
                    self._cancel_late()
            else:
                self._go_on(k)

    def _cancel_late(self) -> None:
        """Let each worker whose message would be dropped begin its next round at the newest center, without a step."""
        for k, at in enumerate(self.at):
            if not self.sync.accepts(self.sequencer.staleness(k)):
                at.step, at.left = at.step + 1, 0
                if not self.sequencer.in_sets:  # else the last reply is that of the set
                    self.do("send", self.now(k))
                self.sequencer.reply((k,))
                self._use_reply(k)

    def _overlapped_step(self, k: int) -> None:
        """Make one local step of a worker that sends its message before the last steps of a round."""
        at = self.at[k]
        overlap = min(self.scheme.overlap, at.length)
        if at.left == at.length == overlap:
            self._end_round(k)
        self._local_step(k)
        if at.left == overlap:
            self._end_round(k)
        elif at.left == 0 and k not in self.sequencer.waiting.arrived:  # its reply has arrived before
            self._use_reply(k)

    def _local_step(self, k: int) -> None:
        self.do("local_step", self.now(k))
        self.at[k].step, self.at[k].left = self.at[k].step + 1, self.at[k].left - 1

    def _end_round(self, k: int) -> None:
        """Do the event of a round, and let the workers that it releases continue."""
        event = self.scheme.kinds[self.at[k].kind].event
        released = self.events[event](k)
        if event == "push":
            self._go_on(k)
            return
        if self.sequencer.in_sets:
            check_together(self.scheme, (self.at[j].kind for j in released))
        elif event == "exchange" and released and self.sync.waits:
            self.do("send", self.now(k))  # the newest center is the reply
        for j in released:
            if replies_wait(self.scheme):
                self.do("keep_reply", self.now(j))
            if not (self.scheme.overlap and self.at[j].left):
                self._use_reply(j)

    def _effect(self, effect: Effect, k: int, completes: int) -> None:
        """Do the operation of an effect; a member of a set that is dropped has its operation, too.

        When a worker uses a reply depends on its steps, see `_end_round`.
        """
        if effect == "reply":
            return
        in_set = effect == "add" or (effect == "drop" and self.sequencer.in_sets)
        name = "join_set" if in_set else "merge_set" if effect == "close" else effect
        self.do(name, self.now(k, completes))

    def _use_reply(self, k: int) -> None:
        self.do("use_reply", self.now(k))
        self._go_on(k)

    def _go_on(self, k: int) -> None:
        """Begin the next round after the last step of one."""
        if (at := self.at[k]).left <= 0:
            self._begin_round(at)

    def _begin_round(self, at: Position) -> None:
        at.length, at.kind = next(at.rounds)
        self.scheme.kind_of(at.kind)
        at.round, at.first, at.left = at.round + 1, at.step, at.length


def replies_wait(scheme: Scheme) -> bool:
    """Return True if the next reply may be made before a worker that computes uses its own."""
    return scheme.overlap > 0 and (scheme.sync.late == "count" or scheme.sync.set_size(2) is None)


def operations_of(scheme: Scheme) -> list[str]:
    """Return the names of the operations that `Turns` may call for a scheme."""
    sync = scheme.sync
    if not sync.exchanges:
        return ["local_step"]
    in_sets = sync.set_size(2) is not None
    needed = {
        "local_step": True,
        "use_reply": True,
        "start": sync.warm_start > 0,
        "merge": not in_sets or "push" in scheme.events,
        "drop": not sync.accepts(sys.maxsize) and not in_sets,
        "send": (sync.waits or sync.cancel_late) and not in_sets,
        "read": "pull" in scheme.events,
        "join_set": in_sets,
        "merge_set": in_sets,
        "keep_reply": replies_wait(scheme),
    }
    return [name for name, is_needed in needed.items() if is_needed]


class TurnsAhead:
    """The turns of the workers from the beginning of a run on: the operations of each step, planned ahead.

    Args:
        scheme: the algorithm.
        workers: number of workers, W.
        order: `round robin`, `random`, or the workers one by one, again and again.
        seed: seed of a random order.
        begin: number of the first step of the run.

    Attributes:
        operations: names of the operations that may occur, each with the number of a kind of rounds.
        steps: the planned steps, each with the time of its worker before it, and its operations.
        first: number of the first of them.
    """

    def __init__(self, scheme: Scheme, workers: int, order: Order, seed: int, begin: int):
        self.turns, names = Turns(scheme, workers, self._note, seed), operations_of(scheme)
        self.operations = [*itertools.product(names, range(len(scheme.kinds)))]
        self.order, self.longest = self._order(order, workers, seed)
        self.steps: deque[tuple[Now, list[tuple[int, ...]]]] = deque()
        self.begin = self.first = begin

    def _note(self, name: str, now: Now) -> None:
        """Note an operation of the last planned step."""
        self.steps[-1][1].append((self.operations.index((name, now.kind)), *now))

    @staticmethod
    def _order(order: Order, workers: int, seed: int) -> tuple[Iterator[int], int]:
        """Return the workers one by one, and the number of them after which a worker that is left out never comes."""
        if order == "random":
            rng = np.random.default_rng(seed)
            return (k for _ in itertools.count() for k in rng.integers(workers, size=1024).tolist()), 10**6
        order = range(workers) if order == "round robin" else order
        return itertools.cycle(order), len(order)

    def until(self, last: int) -> None:
        """Plan all steps before number `last`."""
        while self.first + len(self.steps) < last:
            ready = set(self.turns.ready)
            k = next((k for k in itertools.islice(self.order, self.longest) if k in ready), None)
            if k is None:
                raise UserError(
                    f"order has none of the workers that may step after step {self.first + len(self.steps)}, and the "
                    f"others wait: add one of workers {', '.join(map(str, sorted(ready)))} to order"
                )
            self.steps.append((self.turns.now(k), []))
            self.turns.step(k)

    def forget(self, first: int) -> None:
        """Forget the steps before number `first`."""
        for _ in range(first - self.first):
            self.steps.popleft()
        self.first = first


def check_order(order: Any, workers: int) -> None:
    """Raise `UserError` unless this is an order of so many workers."""
    if isinstance(order, str) and order in ("round robin", "random"):
        return
    listed = [*order] if isinstance(order, Collection) and not isinstance(order, str) else []
    if not listed or not all(isinstance(k, Integral) and k in range(workers) for k in listed):
        kinds = f"round robin or random, or a list of workers from 0 to {workers - 1}"
        raise UserError(f"order must be {kinds}. Received: {order!r}")
