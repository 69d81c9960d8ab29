"""The contract of an algorithm: the methods that every module of `algorithms/` may override.

A worker repeats **rounds**. In one round it makes `communication_period` local steps, each on a fresh batch, and
pushes a message; the server merges it and replies, as one atomic event; the worker uses the reply.

    gradient_point  the parameters at which a worker takes its gradient
    local_step      the worker's own update between two exchanges
    message         the vector that a worker pushes
    sync            the synchronization rule: asynchronous, bounded staleness, or barrier
    weighted        the vector that a barrier adds for a message
    server_update   the server's update with a message, and its reply
    on_reply        the worker's use of the reply

Vectors have shape [P], the number of trainable parameters (on the server: the slice of one ps task, so
rules are elementwise). The functions are traced once into a TensorFlow graph, in which reads and writes of a
variable happen in the order of the Python code.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, final

from ..arguments import CheckedCall
from ..errors import UserError
from ..messages.codec import Codec, both
from ..sources import docstring, headline
from ..sync.asynchronous import Async
from ..sync.store import Event
from ..sync.synchronization import Synchronization
from .hyperparameters import check_fields, declared, rates_of
from .inner import InnerSGD, inner
from .kept import ClearedOnLoss, OfShard, local_values, marked
from .periods import PeriodRule, rule_of
from .regions import Regions
from .rounds import USUAL, Kind, Rounds
from .views import Server, Tensor, Worker

WORKER_RULES = ("local_variables", "gradient_point", "local_step", "message", "on_reply")


@dataclass(frozen=True, kw_only=True)
class Scheme(CheckedCall):
    """An algorithm. Its fields are its hyperparameters, which are checked by their types, see `hyperparameters`.

    A class that overrides nothing but `server_update` pushes plain gradients, keeps no state and is asynchronous.
    """

    # A round, in the order in which data flows.

    def local_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Return the initial values of further variables on the worker, by name; `params` is the initial center.

        Those of the `inner_optimizer` are added to them. A value in `ClearedOnLoss` or `OfShard` says what it means to
        the other workers, or of the worker's data.
        """
        return {}

    def global_variables(self, center: Tensor) -> Mapping[str, Tensor]:
        """Return the initial values of further variables on the server, by name; `center` is the initial center.

        A value in `EachWorker` is of a variable for each worker; `PulledCenter()` is the center that each pulled last.
        """
        return {}

    def gradient_point(self, worker: Worker) -> Tensor:
        """Return the point [P] at which the next gradient is taken. Default: the worker's parameters."""
        return worker.params.read_value()

    def local_step(self, worker: Worker, gradient: Tensor) -> None:
        """Make one local step: update `worker.params` and the local variables.

        Default: a step of the hyperparameter `inner_optimizer: InnerOptimizer` with the rate `learning_rate`; nothing
        if the class declares none. An optimizer of a script may make the default in its place (`worker.stepped`).
        """
        optimizer = self.inner  # no `:=`, which AutoGraph does not know
        if optimizer is not None:
            optimizer.step(worker, gradient, rates_of(self)["learning_rate"])

    def message(self, worker: Worker) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return the vector to push, [P]; with `scalars`, also a number for each of their names.

        Default: what `sends` names, the gradient of the round's only step. `worker.gradient_sum` is there with
        `sends = "gradient_sum"`; few codecs of `--codec` fit parameters. ::

            sends, scalars = "gradient_sum", ("steps",)
            ...
                return worker.gradient_sum, {"steps": worker.steps}

        The server reads scalars as floats, `server.sent.steps`, of the message that is merged or weighed; where the
        message is the mean over the workers, they are means, too. A message with a scalar that is not finite is refused
        like a message with such an element.
        """
        if self.sends == "gradient_sum":
            return worker.gradient_sum
        return worker.params if self.sends == "params" else worker.gradient

    def weighted(self, server: Server, message: Tensor, staleness: Tensor) -> Tensor:
        """Return the vector [P] that a barrier adds to its sum for this message. Default: the message.

        Called for barriers only, under the lock, for each message when it arrives. It may write variables of each
        worker, through which `server_update` can see each message.
        """
        return message

    def server_update(self, server: Server, message: Tensor, staleness: Tensor) -> Tensor:
        """Merge one message into the center, under the lock; return the reply.

        Without a barrier, `message` is that of one worker, and `staleness` the number of updates since its last pull,
        a float scalar. With a barrier, `message` is the mean over the workers, and `staleness` is 0.
        """
        raise NotImplementedError(f"{type(self).__name__} has no server_update")

    def on_reply(self, worker: Worker, reply: Tensor) -> None:
        """Use the reply. Default: assign it to the worker's parameters."""
        worker.params.assign(reply)

    # What it is called.

    name: ClassVar[str] = ""  # the command, `bash run.sh <name>`; by default the name of the module
    paper: ClassVar[str] = "none"  # authors and year
    aliases: ClassVar[tuple[str, ...]] = ()  # other names, each with the options that it means: "snoo --workers 1"
    equals: ClassVar[str] = ""  # the command of another algorithm that it is with these options

    # Who continues, what a round is, and what travels.

    sync: ClassVar[Synchronization] = Async()  # the synchronization rule; a property if it depends on a hyperparameter
    # Encoding of messages, or of messages and of replies; a property if it depends on a hyperparameter.
    codec: ClassVar[Codec | tuple[Codec, Codec]] = Codec()
    scalars: ClassVar[tuple[str, ...]] = ()  # names of the numbers in a message besides its vector, see `message`
    elementwise: ClassVar[bool] = True  # the worker's rules treat each coordinate by itself, see `__init_subclass__`
    sends: ClassVar[Literal["gradient", "gradient_sum", "params"]] = "gradient"  # of what `message` makes its vector

    @property
    def period(self) -> int:
        """Local steps of a round; of the longest round if they differ, and about their mean if they are drawn.

        With a rule in `communication_period: Period`, such as "qsr:0.0175,4", its least period.
        """
        rule = self.period_rule
        return declared(self, "communication_period", 1) if rule is None else rule.least

    @property
    def overlap(self) -> int:
        """Last local steps of a round, made while its message travels: the reply is used after them, see `delay`.

        Default: 0, or the hyperparameter `delay`.
        """
        return declared(self, "delay", 0)

    # The kinds of rounds by name, as `rounds` and `worker.kind` have them; a property if they depend on a
    # hyperparameter. `exchange` and `push` send the same message; one of any other name has a message of its own.
    kinds: ClassVar[Mapping[str, Kind]] = {"exchange": Kind()}

    def rounds(self, steps: int, done: int = 0, worker: int = 0, seed: int = 0) -> Rounds:
        """Return the rounds of a worker in a run of `steps` local steps: the steps of each, and the name of its kind.

        Workers may have different numbers and lengths of rounds, and make different numbers of steps in all. With a
        barrier the others continue without a worker that has finished; without a ps the numbers must be equal.

        Args:
            steps: local steps of each worker that the user has asked for.
            done: steps of the run that this one resumes; its last round may have been shorter than a period.
            worker: its index, from 0.
            seed: that of the run, for rounds that are drawn, see `Rounds.drawn`.
        """
        if self.period_rule is not None:
            return self.period_rule.rounds(rates_of(self).get("learning_rate"), steps, done)
        return Rounds.even(steps, self.period)

    # What fits, and what a run should know.

    means_gradients: ClassVar[bool] = False  # an update steps along the mean of gradients, each of a batch

    def check(self, workers: int) -> Iterable[str] | None:
        """Return warnings for that number of workers, a line each: the run prints them and begins.

        Warn only of limits that do not depend on the loss: one that does belongs in the module's docstring.

        Raises:
            UserError: the hyperparameters do not fit that number of workers, beside `contract.checks`.
        """

    # Rounds and messages of few schemes.

    whole_center: ClassVar[bool] = False  # the rules of the server are not elementwise: one ps alone

    def message_sizes(self, shapes: Sequence[tuple[int, ...]]) -> Sequence[int]:
        """Return the elements of what a worker sends in a round: of each `worker.mean`, then of message and reply.

        Other sizes than one message of all parameters, [P], need a rule without a ps that is not elementwise.

        Args:
            shapes: shapes of the model's variables.
        """
        return [sum(map(math.prod, shapes))]

    # Places of few schemes: sparse problems, several devices, servers of regions.

    sparse: ClassVar[bool] = False  # on a sparse problem, messages hold the coordinates of the batch alone
    default_devices_per_worker: ClassVar[int] = 1  # devices that share a worker's batches, unless the user sets them

    @property
    def regions(self) -> Regions | None:
        """Servers of regions, below a global one. Default: None, the global one alone."""
        return None

    # The engine's part.

    _idea: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Take name and idea from module and docstring; set `elementwise` to False unless the class declares it.

        A class that overrides a rule of the worker and declares `elementwise = True` promises that each coordinate of
        its vectors depends on that coordinate and scalars alone. Then the engine may keep a large model in pieces.
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
        cls._idea = headline(docstring(cls)) or "an algorithm of your own"  # before a dataclass writes one

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    @final
    def period_rule(self) -> PeriodRule | None:
        """The rule by which the period changes over a run; None if it remains."""
        value = declared(self, "communication_period", 1)
        return rule_of(value) if isinstance(value, str) else None

    @final
    def kind_of(self, name: str) -> Kind:
        """Return the kind of rounds with this name; `UserError` if the class declares none."""
        if name not in self.kinds:
            raise UserError(
                f"{self.name}: each round must be of one of the kinds that the class declares, as in "
                f'kinds = {{"push": Kind(answered=False), "pull": Kind(sends=False)}}. Received: a round of the kind '
                f"{name!r}, kinds: {', '.join(map(repr, self.kinds))}"
            )
        return self.kinds[name]

    @property
    @final
    def inner(self) -> InnerSGD | None:
        """The inner optimizer that the user has chosen; None if the class declares no hyperparameter for it."""
        text = declared(self, "inner_optimizer", None)
        return None if text is None else inner(text)

    @final
    def worker_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Return the initial values of all local variables: those of the inner optimizer and of the class itself."""
        optimizer = self.inner  # no `:=`, which AutoGraph does not know
        of_optimizer = {} if optimizer is None else optimizer.local_variables(params)
        return {**of_optimizer, **local_values(self.local_variables(params))}

    @property
    @final
    def cleared(self) -> tuple[str, ...]:
        """Names of the local variables in `ClearedOnLoss`."""
        return marked(self.local_variables, ClearedOnLoss)

    @property
    @final
    def describes_data(self) -> bool:
        """True if a local variable is in `OfShard`."""
        return bool(marked(self.local_variables, OfShard))

    @property
    @final
    def in_coordinates(self) -> bool:
        """True if the worker's rules are elementwise, with those of the inner optimizer."""
        return self.elementwise and ((optimizer := self.inner) is None or optimizer.elementwise)

    @property
    @final
    def makes_inner_steps(self) -> bool:
        """True if a local step is one of the inner optimizer, and no more."""
        return self.inner is not None and type(self).local_step is Scheme.local_step

    @property
    @final
    def events(self) -> frozenset[Event]:
        """The events on the server with which rounds may end."""
        return frozenset(kind.event for kind in self.kinds.values())

    @final
    def codecs(self, kind: str = "") -> tuple[Codec, Codec]:
        """Return the codecs of messages and of replies, in the rounds of a kind or in those that declare none."""
        codec_of_kind = self.kinds[kind].codec if kind else None
        return both(codec_of_kind or self.codec)

    @property
    @final
    def sends_in_turn(self) -> bool:
        """True if messages have several vectors in turn: no codec can remember them, and no worker may fall behind."""
        return not self.kinds.keys() <= USUAL.keys()

    @property
    @final
    def declares_sizes(self) -> bool:
        """True if the scheme has a `message_sizes` of its own."""
        return type(self).message_sizes is not Scheme.message_sizes

    @property
    @final
    def takes_means(self) -> bool:
        """True if a message may need means over all workers, `worker.mean`."""
        return self.declares_sizes and not self.sync.gossips

    @final
    def at(self, step: Tensor) -> Scheme:
        """Return this scheme with every learning-rate schedule replaced by its value after `step` local steps.

        With a schedule, `local_step` gets η(t), t = local steps that this worker has done. `message` and `on_reply` get
        η at the first step of the round. `server_update` gets η(version × period / updates per round).
        """
        schedules = {name: rate for name, rate in rates_of(self).items() if callable(rate)}
        return self.but(**{name: schedule(step) for name, schedule in schedules.items()}) if schedules else self

    @final
    def but(self, **attributes: Any) -> Self:
        """Return a copy with other attributes, of whatever kind; hyperparameters are not checked again."""
        now = copy.copy(self)
        for name, value in attributes.items():
            object.__setattr__(now, name, value)
        return now

    @property
    @final
    def scheduled(self) -> bool:
        """True if a learning rate is a schedule."""
        return any(map(callable, rates_of(self).values()))


def idea_of(scheme: type[Scheme]) -> str:
    """Return the line of the catalogue on an algorithm: the first of its class' docstring."""
    return scheme._idea
