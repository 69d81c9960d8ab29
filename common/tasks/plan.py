"""The plan of each worker: its rounds, the rows of its shard, and the batches of its steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..contract.adapting import adapts
from ..contract.checks import check_together
from ..contract.periods import steps_after
from ..contract.rounds import ENDLESS, Round, Rounds
from ..contract.scheme import Scheme
from ..data.dataset import batches, client_batches, drawn_clients, leaves, num_examples, number_of_clients, shard_rows
from ..errors import UserError
from ..messages.codec import FLOAT_BYTES
from ..record.event_log import KEEP
from ..record_format import ALONE_STEPS
from .options import RunOptions

# Each call costs RPCs and Python time. Eight rounds in a call doubled the rate of small rounds; sixteen save 4 % to
# 13 % of the remaining CPU time, thirty-two 4 % or 5 % more, and the graph grows with the number.
ROUNDS_PER_CALL = 16

LONG_RUN_ROUNDS = 500  # shorter runs do not earn back the time to build the larger graph

POINTS = 20  # least number of points of a curve

# Most bytes of the snapshots that the ps takes, without and with `evaluate_every`, and their largest number.
SNAPSHOT_BYTES, WANTED_BYTES, MOST_SNAPSHOTS = 1 << 24, 1 << 28, 1000


MEETINGS = 100_000  # most rounds of which the kinds are compared between workers, for a run may have 10^12


@dataclass(frozen=True)
class Plan:
    """The rounds and batches of all workers. They follow from the seed, so a restarted worker can find its place.

    Attributes:
        scheme: the algorithm, which determines how rounds end.
        data: nested arrays, or a function of a tf.distribute.InputContext that returns a tf.data.Dataset.
        workers: number of workers.
        options: batch size, seed, skew and schedule.
        steps: local steps of each worker, or of the worker with the largest share.
        earlier_step_targets: steps of the earlier runs that this one resumes, if they were fewer.
        shares: batches of each worker in an epoch, if they differ.
        losses: those of the run so far, see `learn`.
    """

    scheme: Scheme
    data: Any
    workers: int
    options: RunOptions
    steps: int
    earlier_step_targets: Sequence[int] = ()
    shares: Sequence[int] = ()
    losses: list[float] = field(default_factory=list)

    def learn(self, calls: Any) -> None:
        """Take over the losses that the ps has kept, if the rounds follow from them: then they change all rounds."""
        if adapts(self.scheme):
            now = calls.losses()
            count = 1 + int(now["version"]) // self._block if now["version"] else 0
            self.losses[:] = now["losses"][:count].tolist()

    def rounds(self, worker: int) -> Rounds:
        """Return the rounds of a worker: the local steps of each, and its kind."""
        if self.options.schedule:
            # Cut from a plan without an end, so that no round is a short last one.
            whole = self.scheme.rounds(ENDLESS, 0, worker, self.options.seed)
            return whole.first(self.options.schedule.count(worker))
        targets = [self._own(steps, worker) for steps in (*self.earlier_step_targets, self.steps)]
        if adapts(self.scheme):
            rule: Any = self.scheme.period_rule
            return rule.adapted(targets, self.losses)
        runs = itertools.pairwise((0, *targets))
        return sum((self._rounds_of_run(end - start, start, worker) for start, end in runs), Rounds())

    def _own(self, steps: int, worker: int) -> int:
        """Return the local steps of a worker while that with the largest share makes so many."""
        return steps * self.shares[worker] // max(self.shares) if self.shares else steps

    def _rounds_of_run(self, steps: int, done: int, worker: int) -> Rounds:
        if not self.scheme.sync.exchanges:
            return Rounds.even(steps, 1 if self.is_endless else ALONE_STEPS)
        return self.scheme.rounds(steps, done, worker, self.options.seed)

    @property
    def is_endless(self) -> bool:
        """True if a script ends the run: its steps are not known beforehand."""
        return self.steps == ENDLESS

    @property
    def all_rounds(self) -> list[Rounds]:
        """The rounds of each worker, [W]; workers with equal rounds share one object."""
        first, *others = (self.rounds(worker) for worker in range(self.workers))
        return [first, *(first if other == first else other for other in others)]

    @property
    def round_steps(self) -> float | Callable[[Any], Any]:
        """Local steps of a round, for learning-rate schedules on the server: the period, or the mean over workers.

        With a rule of the period, the function from a number of rounds to their steps.
        """
        rounds = self.all_rounds
        if self.scheme.period_rule is not None:
            return steps_after(rounds[0])
        if all(r is rounds[0] for r in rounds):
            return self.scheme.period
        return sum(r.steps() for r in rounds) / max(1, sum(map(self._messages, rounds)))

    def _messages(self, rounds: Rounds) -> int:
        """Return how many of these rounds end with a message."""
        return sum(number for kind, number in rounds.kinds().items() if self.scheme.kinds[kind].sends)

    def check(self) -> None:
        """Raise `UserError` if workers cannot do the rounds of the scheme."""
        name, sync, rounds = self.scheme.name, self.scheme.sync, self.all_rounds
        longest, numbers = max(r.longest for r in rounds), [len(r) for r in rounds]
        if adapts(self.scheme) and (self.is_endless or self.options.schedule):
            raise UserError(
                "adacomm finds the rounds of a run with a number of steps: leave the schedule out, and in a script "
                f"take another rule. Received: communication_period={self.scheme.period_rule}"
            )
        for kind in {kind for r in rounds for kind in r.kinds()}:
            self.scheme.kind_of(kind)
        # The graph of a round depends on whether it has one step, or steps before those that follow its message.
        if sync.exchanges and longest > self.scheme.period and (self.scheme.period == 1 or self.scheme.overlap):
            raise UserError(
                f"{name}: rounds of one step, or with an overlap, are not longer than the period of the scheme: "
                f"override period. Received: a round of {longest} steps, period={self.scheme.period}"
            )
        apart = {id(r): r for r in rounds}.values()  # of few workers, as most share theirs
        if len(apart) > 1 and self.scheme.sends_in_turn and sync.set_size(self.workers) is not None:
            for meeting in itertools.islice(zip(*apart, strict=False), MEETINGS):
                check_together(self.scheme, (kind for _, kind in meeting))
        if not sync.uses_ps and not self.options.schedule and min(numbers) < max(numbers):
            raise UserError(
                f"{name}: without a ps all workers meet in each round, so all must have as many. Received: "
                f"{min(numbers)} to {max(numbers)} rounds"
            )

    @property
    def rounds_per_call(self) -> int:
        """The largest number of rounds in a call."""
        alone, schedule = not self.scheme.sync.exchanges, self.options.schedule
        short = alone or schedule or self.is_endless or self.steps < LONG_RUN_ROUNDS * self.scheme.period
        return 1 if short or len(self.scheme.events) > 1 else ROUNDS_PER_CALL

    @property
    def updates(self) -> int:
        """Number of updates of the center, if no message is dropped."""
        if not self.scheme.sync.exchanges:
            return self.steps
        messages = sum(map(self._messages, self.all_rounds))
        return round(messages * self.scheme.sync.updates_per_round(self.workers) / self.workers)

    def multiples(self, floats: int) -> tuple[int, int] | None:
        """Return the versions of which the ps takes snapshots: updates between two of them, and their number.

        None if they would need much memory: such a run takes longer, and is evaluated while it trains.

        Args:
            floats: number of floats of one snapshot.
        """
        updates, every = self.updates, self.options.evaluate_every
        limit = SNAPSHOT_BYTES if every is None else WANTED_BYTES
        every = every or round_number(updates // POINTS)
        number = 1 + updates // every  # version 0 included
        if adapts(self.scheme):  # the number of updates is not known
            return None
        fits = number * floats * FLOAT_BYTES <= limit and number <= MOST_SNAPSHOTS
        # A snapshot is evaluated with the totals of the record at its version, so the events up to it must be kept.
        counted = self.options.every_round or sum(map(len, self.all_rounds)) <= KEEP
        return (every, number) if fits and counted else None

    def shards(self) -> np.ndarray:
        """Return the rows of the arrays that each client has, [clients, examples of a shard]."""
        return shard_rows(self.data, self.clients, self.options.seed, self.options.skew)

    @property
    def clients(self) -> int:
        """Number of shards: one for each worker, or more if workers play clients by turns."""
        return number_of_clients(self.workers, self.options.participation)

    def drawn_clients(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each round the client of each worker, [workers], and the local steps it has done before.

        A worker that has fewer rounds than others, by a schedule, takes no steps in the last ones.
        """
        lengths = itertools.zip_longest(*((steps for steps, _ in rounds) for rounds in self.all_rounds), fillvalue=0)
        return drawn_clients(self.clients, self.workers, self.options.seed, lengths)

    def shard(self, worker: int) -> list[np.ndarray]:
        """Return the arrays that a worker trains on, those of all clients if they take part by turns.

        There are none if the data come from a function.
        """
        if callable(self.data):
            return []
        rows = self.shards()[worker] if self.options.participation is None else self.shards().ravel()
        return [array[rows] for array in leaves(self.data)]

    def batches(self, worker: int, done: int = 0) -> Iterator[tuple[np.ndarray, str]]:
        """Yield the rounds of a worker after the first `done`: the batches, [steps, batch size] rows, and the kind."""
        rounds, size, seed = self.rounds(worker), self.options.batch_size, self.options.seed
        shard = 0 if callable(self.data) else num_examples(self.data) // self.clients
        if self.options.participation is not None:
            drawn = itertools.islice(self.drawn_clients(), done, None)
            streams = (client_batches(shard, size, int(c[worker]), seed, int(t[worker])) for c, t in drawn)
        elif callable(self.data):
            streams = itertools.repeat(itertools.repeat(np.zeros(size, np.int32)))
        else:
            streams = itertools.repeat(batches(shard, size, worker, seed, rounds.steps(done)))
        for (steps, kind), stream in zip(self._coming(worker, done), streams, strict=False):
            yield np.stack(list(itertools.islice(stream, steps))), kind

    def _coming(self, worker: int, done: int) -> Iterator[Round]:
        """Yield the rounds of a worker after the first `done`, each block as the losses have it when it begins."""
        if not adapts(self.scheme):
            yield from self.rounds(worker).after(done)
            return
        while block := list(itertools.islice(self.rounds(worker).after(done), self._left_of_block(done))):
            yield from block
            done += len(block)

    def within_block(self, count: int, done: int, calls: Any) -> int:
        """Return how many of the next `count` rounds after the first `done` are known, after `learn` where they end."""
        if not adapts(self.scheme):
            return count
        if self._left_of_block(done) == self._block:
            self.learn(calls)
        return min(count, self._left_of_block(done))

    @property
    def _block(self) -> int:
        return self.scheme.sync.block  # pyright: ignore[reportAttributeAccessIssue]

    def _left_of_block(self, done: int) -> int:
        return self._block - done % self._block


def round_number(limit: int) -> int:
    """Return the largest of 1, 2, 5, 10, 20, 50, ... that is at most `limit`; 1 if none is."""
    power = 10 ** max(0, len(str(limit)) - 1)
    return max(power * digit for digit in (1, 2, 5) if power * digit <= max(1, limit))
