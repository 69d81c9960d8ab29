"""The arithmetic of a simulated run: the execution of a trace with the unchanged modules of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from ...common.data.dataset import epoch_order
from ...common.errors import Diverged, UserError
from ...common.record_format import RECORD
from ...common.tasks.job import Job
from ...common.worker.flat_model import FlatModel
from ..virtual_time.forecast import rows_of_rounds
from ..virtual_time.program import Actions, Do
from .record_actions import actions_of

MOST_ROUNDS = 64  # largest number of rounds that are computed together
MOST_PARAMETERS = 2**22  # largest number of parameters of all rounds that are computed together

WINDOW = 16  # the number of next rounds that are searched for computable ones, in multiples of the most together


class TraceRounds:
    """The rounds of a job in the order of a trace: the n-th row of a worker ends its n-th round.

    A round that was lost in a crash of its worker does not count: it is done again, on the same batches.

    Args:
        job: the job to train.
        trace: the columns of `RECORD`.

    Attributes:
        clocks: local steps of the worker before the round of each row, [n].
        numbers: rounds of the worker before that round, [n].
        lengths: local steps of the round, [n]; 0 if the row ends none.
        kinds: numbers of the kind of the round, [n], in the order of `Scheme.kinds`.
        client: client whose shard the worker trains on, [n]; each worker has its own unless clients take turns.
        done: local steps of that client before the round, [n].

    Raises:
        UserError: a worker has more rounds in the trace than in the job.
    """

    def __init__(self, job: Job, trace: Mapping[str, np.ndarray]):
        self.worker, self.seed, self.batch_size = trace["worker"], job.options.seed, job.options.batch_size
        self.clocks, self.lengths, self.numbers, self.kinds = np.zeros((4, len(self.worker)), np.int64)
        numbers = {name: number for number, name in enumerate(job.scheme.kinds)}
        for worker, rows in enumerate(rows_of_rounds(trace, job.cluster.workers)):
            rounds = [*islice(job.plan.rounds(worker), len(rows))]
            if len(rounds) < len(rows):
                raise UserError(
                    f"the trace has more rounds of worker {worker} than it does in a run of {job.steps} steps"
                )
            steps = [length for length, _ in rounds]
            self.clocks[rows], self.lengths[rows] = np.cumsum(steps) - steps, steps
            self.numbers[rows], self.kinds[rows] = np.arange(len(rows)), [numbers[kind] for _, kind in rounds]
        self.client, self.done = self.worker, self.clocks
        if job.options.participation is not None:
            clients, done = map(np.array, zip(*job.plan.drawn_clients(), strict=True))  # [rounds, W]
            self.client, self.done = clients[self.numbers, self.worker], done[self.numbers, self.worker]
        self.shards = job.plan.shards()
        self.batches_of_epoch = self.shards.shape[1] // self.batch_size
        self.epoch = np.full(len(self.shards), -1)  # present epoch of each client, [clients]
        self.examples = np.empty(self.shards.shape, np.int32)  # each client's shard in the order of that epoch

    def take(self, rows: np.ndarray, steps: int) -> np.ndarray:
        """Return the batches of these rounds, as rows of the whole data, [steps, n, batch size].

        A batch is a function of the client and its clock. Only a change of a client's epoch, also backwards, shuffles
        its shard.

        Args:
            rows: rows of the trace, [n].
            steps: number of steps of each of their rounds.
        """
        clients, span = self.client[rows], np.arange(self.batch_size)
        batches = np.empty((steps, len(rows), self.batch_size), np.int32)
        for t, batch in enumerate(batches):
            epochs, within = np.divmod(self.done[rows] + t, self.batches_of_epoch)
            for i in np.flatnonzero(self.epoch[clients] != epochs).tolist():
                self._shuffle(int(clients[i]), int(epochs[i]))
            batch[:] = self.examples[clients[:, None], within[:, None] * self.batch_size + span]
        return batches

    def _shuffle(self, client: int, epoch: int) -> None:
        order = epoch_order(self.shards.shape[1], client, self.seed, epoch)
        self.examples[client], self.epoch[client] = self.shards[client, order], epoch


class Arithmetic:
    """The execution of the events of a run in their order.

    Args:
        job: the job to train.
        trace: the events, the columns of `RECORD`: of an order in virtual time, or of a real run.
        actions: what virtual time has noted while these events happened; None for those of a real run.
        model: the model, if it has been built.
        width: the most rounds that are computed together; by default limited by `MOST_ROUNDS` and `MOST_PARAMETERS`.

    Attributes:
        losses: mean training loss of the round that each row of the trace ends, [n]; NaN while it is unknown.

    Raises:
        UserError: the job or the trace cannot be simulated.
    """

    def __init__(
        self,
        job: Job,
        trace: Mapping[str, np.ndarray],
        actions: Actions | None = None,
        model: FlatModel | None = None,
        width: int | None = None,
    ):
        from .executor import Executor

        _check(job, trace)
        self.scheme = job.scheme
        self.trace = {name: np.asarray(trace[name], np.int64) for name in RECORD}
        rounds = TraceRounds(job, self.trace)
        if actions is None:
            actions = actions_of(self.trace, job.scheme, [*map(len, job.plan.all_rounds)], job.sparse)
        self.program = actions.program()
        self.model = model or job.recipe.flat()
        self.width = width or max(1, min(MOST_ROUNDS, MOST_PARAMETERS // self.model.size))
        if job.scheme.takes_means:  # over all workers, whose messages need each other
            self.width = max(self.width, job.cluster.workers)
        self.window = WINDOW * self.width
        self.rounds, self.clocks, self.lengths = rounds, rounds.clocks, rounds.lengths
        self.position = 0  # the next action of the program
        self.computed = np.zeros(len(self.trace["worker"]), bool)
        self.finite = np.ones(len(self.computed), bool)
        self.losses = np.full(len(self.computed), np.nan)
        self.place_of = np.zeros(len(self.computed), np.int32)
        self.free = list(range(self.window))
        self.last = np.full(job.cluster.workers, -1)  # row of each worker's last computed round since its start
        self.pending = np.zeros(job.cluster.workers, bool)  # workers that have not yet adopted the reply to their set
        self.round_rows = np.flatnonzero(self.program.row >= 0)  # positions of rounds in the program
        kinds = np.unique(self.program.do).tolist()
        self.executor = Executor(job, self.model, kinds, self.window)

    def close(self) -> None:
        """Close the session."""
        self.executor.session.close()

    def snapshot(self) -> dict[str, Any]:
        """Return version (`at`), center [P], its `average` if kept, and state [S] (the mean over the workers)."""
        return self.executor.call(self.executor.snapshot)

    def run(self, until: int, is_cut: Callable[[], bool] = lambda: False) -> int:
        """Execute the remaining rows of the trace before `until`, or fewer if `is_cut()`: never a part of an update.

        Returns:
            number of rows that are executed.

        Raises:
            Diverged: a message is not finite; the center is that before it.
        """
        until = min(until, len(self.computed))
        end = int(self.program.ends[until - 1]) if until else 0
        while self.position < end:
            if is_cut():
                until = self._after_update(until)
                end, is_cut = int(self.program.ends[until - 1]) if until else 0, lambda: False
            else:
                self._advance(end)
        return until

    def _after_update(self, until: int) -> int:
        """Return the first number of rows, `until` at most, that ends an update and is not executed in part."""
        executed, versions = int(np.searchsorted(self.program.ends, self.position)), self.trace["version"]
        if executed >= until:
            return until
        return min(until, executed + int(np.searchsorted(versions[executed:until], versions[executed], "right")))

    def _advance(self, end: int) -> None:
        """Compute rounds if the next action needs one, then execute all actions whose rounds are computed."""
        row = self.program.row[self.position : end]
        missing = np.flatnonzero((row >= 0) & ~self.computed[row])
        if len(missing) and not missing[0]:
            self._compute()
            missing = np.flatnonzero((row >= 0) & ~self.computed[row])
        ready = self.position + int(missing[0]) if len(missing) else end
        spoiled = np.flatnonzero((row >= 0) & ~self.finite[row])
        spoiled = [i for i in spoiled if self.position + i < ready and not self._is_left_out(row[i])]
        if spoiled:
            self._do(self.position + int(spoiled[0]))
            raise self._diverged(int(row[spoiled[0]]))
        self._do(ready)

    @property
    def left_out(self) -> np.ndarray:
        """Number of messages of each worker so far that were not finite, [W]."""
        workers = self.trace["worker"][~self.finite & (self.trace["accepted"] == 1)]
        return np.bincount(workers, minlength=len(self.last))

    def _is_left_out(self, row: int) -> bool:
        """Return True if the rule drops or leaves out the message of that row, which is not finite."""
        version, accepted = self.trace["version"], self.trace["accepted"] == 1
        together = accepted & (version == version[row])  # the messages of its set
        so_far = int(np.count_nonzero(together[: row + 1] & ~self.finite[: row + 1]))
        return so_far <= self.scheme.sync.most_left_out(int(np.count_nonzero(together)))

    def _diverged(self, row: int) -> Diverged:
        worker, version = (self.trace[name][row] for name in ("worker", "version"))
        return Diverged(
            f"worker {worker} sent a message that is not finite, at version {version} of the center: "
            "try a smaller learning rate or period (docs/not-converging.md)"
        )

    # Rounds.

    def _compute(self) -> None:
        """Compute the round that the next action needs, and as many others of its kind as can be computed with it."""
        program, position = self.program, self.position
        at = np.searchsorted(self.round_rows, position)
        near = self.round_rows[at : at + self.window]
        rows = program.row[near]
        key = self._keys(rows)
        fits = ~self.computed[rows] & (program.ready[near] <= position) & (key == key[0]).all(1)
        rows = rows[fits][: min(self.width, len(self.free))]
        self._compute_rows(rows)

    def _keys(self, rows: np.ndarray) -> np.ndarray:
        """Return the keys of rounds, [n, 5]; rounds with equal keys can be computed together.

        A key is the number of steps, whether the round has a message, whether its worker has to adopt a reply first,
        the kind of the round, and that of the round of this reply.
        """
        workers, kinds = self.trace["worker"][rows], self.rounds.kinds
        last, pending = self.last[workers], self.pending[workers]
        earlier = np.where((last >= 0) & pending, kinds[last], 0)
        return np.stack([self.lengths[rows], self.program.takes[rows], pending, kinds[rows], earlier], 1)

    def _compute_rows(self, rows: np.ndarray) -> None:
        executor, workers = self.executor, self.trace["worker"][rows]
        places = np.array([self.free.pop() for _ in rows], np.int32)
        self.place_of[rows] = places
        counts = self.trace["accepted"][rows] == 1
        before, adopts = self.last[workers], bool(self.pending[workers[0]])
        drawn = self.rounds.take(rows, int(self.lengths[rows[0]]))
        values = [workers, self._when(rows), places, counts, drawn]
        if adopts:
            values.append(self._when(before))
        if self.scheme.sync.exchanges:
            options = {"takes": bool(self.program.takes[rows[0]]), "adopts": adopts, "number": self._number(workers)}
            kind, earlier = self.rounds.kinds[[rows[0], before[0]]].tolist()
            options |= {"kind": kind, "earlier": earlier if adopts else 0}
            sums, finite = executor.call(executor.compute, *values, **options)
        else:
            sums, finite = executor.call(executor.train_alone, values[1], drawn)
        self.computed[rows], self.finite[rows] = True, finite
        self.last[workers], self.pending[workers] = rows, False
        self.losses[rows] = sums / self.lengths[rows]

    def _number(self, workers: np.ndarray) -> int | None:
        """Return the number of workers if a graph is built for that number, else None."""
        return len(workers) if len(workers) == MOST_ROUNDS else None

    def _when(self, rows: np.ndarray) -> np.ndarray:
        """Return the local steps before and in each round, and its number, [n, 3]; zeros where the row is -1."""
        counts = np.stack([self.clocks[rows], self.lengths[rows], self.rounds.numbers[rows]], 1)
        return np.where((rows >= 0)[:, None], counts, 0).astype(np.float32)

    # Messages.

    def _do(self, end: int) -> None:
        """Execute the actions before `end`, all rounds of which are computed."""
        do, merging = self.program.do, self.executor.merging
        while self.position < end:
            adopts = do[self.position : end] == Do.ADOPT
            cut = np.flatnonzero(adopts != adopts[0])
            stop = self.position + int(cut[0]) if len(cut) else end
            part = slice(self.position, stop)
            workers, rows = self.program.worker[part], self.program.row[part]
            if not adopts[0]:
                self._merge(part)
            elif merging.adopts_later:
                self.pending[workers] = True
            else:
                self._on_reply(workers)
            self.free.extend(self.place_of[rows[rows >= 0]].tolist())
            self.position = stop

    def _on_reply(self, workers: np.ndarray) -> None:
        """Let these workers adopt the reply to their set."""
        merging = self.executor.merging
        kinds = self.rounds.kinds[self.last[workers]]
        for kind in np.unique(kinds).tolist():
            alike = workers[kinds == kind]
            for some in np.split(alike, range(self.width, len(alike), self.width)):
                options = {"number": self._number(some), "kind": kind}
                self.executor.call(merging.on_reply, some, self._when(self.last[some]), **options)
        if self.scheme.sync.gossips:
            self.executor.call(merging.collect, self._when(self.last[workers[:1]]))

    def _merge(self, part: slice) -> None:
        """Execute the actions on the center in this part of the program."""
        merging, program = self.executor.merging, self.program
        do, worker = program.do[part], program.worker[part]
        if (do == Do.CLOSE).any() and self.pending.any():  # the next reply would overwrite it
            self._on_reply(np.flatnonzero(self.pending).astype(np.int32))
            self.pending[:] = False
        if (merged := np.isin(do, merging.does)).any():
            of = program.of[part][merged]
            when, places, kinds = self._when(of), self.place_of[program.row[part][merged]], self.rounds.kinds[of]
            self.executor.call(merging.run, do[merged], worker[merged], when, places, kinds)
        anew = worker[do == Do.START]
        self.last[anew], self.pending[anew] = -1, False


def _check(job: Job, trace: Mapping[str, np.ndarray]) -> None:
    if callable(job.train):
        raise UserError("the simulation needs arrays: a data function cannot be shared by all workers")
    if job.options.recovery.on_nan == "drop":
        raise UserError(
            "the simulation fixes the order before it computes, so no message can be dropped because of its values: "
            "leave on_nan=drop out"
        )
    if set(RECORD) - set(trace):
        raise UserError(f"a trace needs the columns {', '.join(RECORD)}. Received: {', '.join(trace)}")
