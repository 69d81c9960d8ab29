"""The contract of an algorithm: the questions that every module of `algorithms/` answers.

A worker repeats **rounds**. One round is: `communication_period` local steps, each on a fresh batch;
a message; the server's update and reply, one atomic event; what the worker does with the reply.

    gradient_point  where does a worker take its gradients?
    local_step      what does it do alone?
    message         what does it push?
    gate            who waits for whom?
    server_update   how does the server merge a message, and what does it answer?
    adopt           what does the worker do with the reply?

Vectors have shape [P], the number of trainable parameters (on the server: the slice of one ps task, so
rules are elementwise). The functions are traced once into a TensorFlow graph, in which reads and writes of a
variable happen in the order in which they are written here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from ..gates.asynchronous import Async
from ..gates.gate import Gate
from .codec import Codec
from .hyperparameters import check_hyperparameters
from .rounds import Event, Rounds
from .views import Server, Tensor, Worker

WORKER_RULES = ("local_variables", "gradient_point", "local_step", "message", "adopt")


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """An algorithm. Its fields are its hyperparameters: they are checked by their types, see `hyperparameters`.

    The defaults: plain data flow, no state of its own, asynchronous.
    """

    name: ClassVar[str]  # the command, `bash run.sh <name>`; of a module in a package, its name
    idea: ClassVar[str]  # one line for the catalogue: the first of the class' docstring
    paper: ClassVar[str] = "none"  # authors and year
    gate: ClassVar[Gate] = Async()  # who waits for whom; a property, where that is a hyperparameter
    codec: ClassVar[Codec] = Codec()  # how messages travel; a property, where that is a hyperparameter
    reply_codec: ClassVar[Codec] = Codec()  # and replies
    scalars: ClassVar[tuple[str, ...]] = ()  # names of numbers that go beside the vector of a message, see `message`
    elementwise: ClassVar[bool] = True  # the worker's rules treat each coordinate by itself, see `__init_subclass__`
    uses_gradient_sum: ClassVar[bool] = False  # `message` reads `worker.gradient_sum`
    exchange_first: ClassVar[bool] = False  # elastic schemes exchange before the first step of a period
    keeps_anchors: ClassVar[bool] = False  # one more center for each worker on the ps
    in_place: ClassVar[bool] = False  # a worker only pushes gradients: with the center in its memory it needs no copy
    sparse: ClassVar[bool] = False  # on a sparse problem, pushes gradients on the coordinates of the batch alone
    default_devices_per_worker: ClassVar[int] = 1  # that share its batches, unless the user says how many

    def __init_subclass__(cls, **options: Any) -> None:
        """Take name and idea from module and docstring, and set `elementwise` to False unless the class says it.

        A class with a worker's rule of its own that says `elementwise = True` promises that each coordinate of its
        vectors depends on that coordinate and on numbers alone, without slices or reshapes. Then a large model is kept
        in several pieces, and workers behind a barrier read one reply in shared memory.
        """
        super().__init_subclass__(**options)
        where = {
            name: next(i for i, kind in enumerate(cls.__mro__) if name in vars(kind))
            for name in (*WORKER_RULES, "elementwise")
        }
        if min(where.values()) < where["elementwise"]:
            cls.elementwise = False
        package, _, module = cls.__module__.rpartition(".")
        if package and "name" not in vars(cls):
            cls.name = module
        if cls.__doc__ and "idea" not in vars(cls):
            cls.idea = cls.__doc__.strip().splitlines()[0].rstrip(".")

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    @property
    def period(self) -> int:
        """Local steps of a round; if they differ, of the longest."""
        return getattr(self, "communication_period", 1)

    @property
    def events(self) -> frozenset[Event]:
        """How rounds may end."""
        return frozenset({"exchange"})

    def rounds(self, steps: int, done: int = 0, worker: int = 0) -> Rounds:
        """The rounds of a worker in a run of `steps` local steps: their steps, and how each ends.

        Workers may differ in how long their rounds are, how many, and how many steps that makes. Behind a barrier
        nobody waits for a worker that has done all of its own; without a ps all must have as many.

        Args:
            steps: what the user has asked for, of each worker.
            done: steps of the run that this one resumes; its last round may have been shorter than a period.
            worker: which one, from 0.
        """
        return Rounds.even(steps, self.period)

    @property
    def messages_per_update(self) -> int:
        """Number of messages of an asynchronous scheme that make one update: the K of FedBuff. Default: 1.

        `server_update` is called for each of them, and `server.completes` is True for the last one alone. The version,
        and with it staleness, `evaluate_every` and `stop_at_version`, counts updates, not messages. A message that is
        dropped does not count. For asynchronous gates with a parameter server and its lock.
        """
        return 1

    def updates_per_round(self, workers: int) -> float:
        """How many updates of the center one round of all workers makes."""
        return self.gate.updates_per_round(workers) / self.messages_per_update

    @property
    def warmup_updates(self) -> int:
        """Updates that worker 0 makes alone before the others start."""
        return getattr(self, "warm_start", 0)

    def at(self, step: Tensor) -> Scheme:
        """This scheme, with every learning-rate schedule replaced by its value after that many local steps.

        A worker's local step has the rate of that step. Its message has the rate at the beginning of the round, and the
        server that of the average worker.
        """
        schedules = {f.name: value for f in fields(self) if callable(value := getattr(self, f.name))}
        return self.but(**{name: schedule(step) for name, schedule in schedules.items()}) if schedules else self

    def but(self, **attributes: Any) -> Self:
        """A copy with other attributes, be they hyperparameters or not; hyperparameters are not checked again."""
        now = copy.copy(self)
        for name, value in attributes.items():
            object.__setattr__(now, name, value)
        return now

    @property
    def scheduled(self) -> bool:
        """True if a learning rate is a schedule."""
        return any(callable(getattr(self, f.name)) for f in fields(self))

    def check(self, workers: int) -> None:
        """Raise `UserError` if the hyperparameters do not fit that number of workers. Default: they do.

        Called beside the engine's own checks of gate, codecs and scalars (`contract.checks`), never instead of them.
        """

    def warnings(self, workers: int) -> Iterable[str]:
        """What is known beforehand to go wrong with that number of workers, a line each; the run warns, and begins.

        Only what needs no knowledge of the loss: a limit that depends on its curvature is for the module's docstring.
        """
        return []

    def local_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Initial values of further variables on the worker, by name; `params` is the initial center."""
        return {}

    def global_variables(self, center: Tensor) -> Mapping[str, Tensor]:
        """Initial values of further variables beside the center, by name; `center` is its initial value."""
        return {}

    def worker_rows(self, center: Tensor) -> Mapping[str, Tensor]:
        """Initial values of variables that the ps keeps for each worker, by name: a row [P] each.

        In `server_update` and `weigh`, `server.<name>` is the row of the sender, used like a variable [P].
        Behind a barrier `server_update` has no sender: there it is all rows, a variable [W, P].
        """
        return {}

    def worker_numbers(self) -> Mapping[str, float]:
        """Initial values of numbers that the ps keeps for each worker, by name: where a row would be too much.

        In `server_update` and `weigh`, `server.<name>` is the number of the sender, used like a variable. Behind a
        barrier `server_update` has no sender: there it is all numbers, a variable [W].

        Each ps task has a copy of its own, which the rule writes when it merges that task's slice. So make them of what
        all slices have in common: staleness, `server.sent`, `server.completes` and other numbers, not of vectors.
        """
        return {}

    def accepts(self, staleness: Tensor) -> Tensor | bool:
        """False if a message that is so stale is dropped: it counts no update, and its reply is the center.

        Asked where each message is folded when it arrives; a barrier takes messages of the present version alone.
        """
        return True

    def weigh(self, server: Server, message: Tensor, staleness: Tensor) -> Tensor:
        """A message as it counts in the mean of a barrier, [P]; asked when it arrives. Default: the message."""
        return message

    def gradient_point(self, worker: Worker) -> Tensor:
        """Where the gradient of the next step is taken, [P]. Default: the worker's parameters."""
        return worker.params.read_value()

    def local_step(self, worker: Worker, gradient: Tensor) -> None:
        """One step alone: update `worker.params` and the local variables. Default: nothing, the gradient is pushed."""

    def message(self, worker: Worker) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """What is pushed, [P]; of a scheme with `scalars`, that and a number for each of their names.

            scalars = ("steps",)
            ...
                return worker.gradient_sum, {"steps": worker.steps}

        On the server they are `server.sent.steps`, floats, of the message that is merged or weighed; where the message
        is the mean of a set, so are they. One that is not finite spoils its message as an element of the vector would.
        """
        return worker.gradient

    def server_update(self, server: Server, message: Tensor, staleness: Tensor) -> Tensor:
        """Merge one message into the center, inside the lock; returns the reply.

        Without a barrier, `message` is that of one worker, and `staleness` the number of updates since its last pull,
        a float scalar. Behind a barrier `message` is the mean over the workers, and `staleness` 0.
        """
        raise NotImplementedError(f"{type(self).__name__} has no server_update")

    def adopt(self, worker: Worker, reply: Tensor) -> None:
        """Use the reply. Default: the worker goes on from the center."""
        worker.params.assign(reply)
