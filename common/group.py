"""Distributed SGD on one page: the workers and parameter servers of a run as plain variables, played step by step.

    group = Group(Downpour(), params, workers=4)
    for k in order:  # any order; a slow worker occurs rarely in it
        group.step(k, gradient(group.point(k)))
    group.center

There are no processes, threads or graphs, and the caller decides which worker steps next. The modules of `algorithms/`
run here as they are: a cluster on which messages arrive in the same order gets the same center. Three classes:

    LocalVariables   the variables of one worker: it makes local steps and builds messages
    GlobalVariables  the variables of one parameter server (ps): it has a slice of the center, and merges messages
    Group            all of them: the way of a message to the servers and of the reply back, and the workers that wait
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral
from types import SimpleNamespace
from typing import Any

from .arguments import at_least, at_most
from .contract.checks import check_kind, check_scheme, check_update
from .contract.rounding import Rounding, rounded
from .contract.scheme import Scheme
from .contract.seeded import uniform
from .contract.views import ServerView, Tensor, WorkerView, no_mean
from .errors import Diverged, UserError
from .lazy import tf
from .messages.cut import even_sizes
from .messages.message import as_message, sent_by
from .messages.ops import is_finite
from .messages.structure import Structure
from .sync.release import waiting_at
from .sync.store import Message

ENDLESS = 10**12  # local steps for `Scheme.rounds`: a group does not know which step is the last


class LocalVariables:
    """The variables of one worker, and its position in its rounds.

    Args:
        scheme: the algorithm.
        index: the worker's index.
        params: the worker's parameters, a variable [P].
        sizes: sizes of the slices of the center: the codec has variables for each.
        known: what all workers know: `num_workers`, `shapes`, `uniform`.
    """

    def __init__(self, scheme: Scheme, index: int, params: Tensor, sizes: Sequence[int], known: Mapping[str, Any]):
        self.scheme, self.index, self.params, self.known = scheme, index, params, known
        self.own = variables(scheme.local_variables(params.read_value()))
        self.codec = [SimpleNamespace(**variables(scheme.codec.local_variables(tf.zeros([n])))) for n in sizes]
        self.rounds = scheme.rounds(ENDLESS, 0, index).after(0)
        self.round, self.step = -1, 0  # numbers of the present round and of the next local step
        self.postponed: Any = None  # gradient and loss of a local step that follows an exchange
        self.begin_round()

    def begin_round(self) -> None:
        """Begin the next round: so many local steps, and an event, which is an exchange, or only a push or a pull."""
        self.length, self.event = next(self.rounds)
        self.round, self.left, self.gradient_sum, self.losses = self.round + 1, self.length, 0.0, []
        self.scheme_now = at(self.scheme, self.step)  # message and reply have the learning rates of the first step

    def view(self, **known: Any) -> Any:
        """Return the worker as its scheme sees it."""
        known = {"mean": no_mean(), **self.known, **self.own, **known}
        numbers = {"round": tf.constant(self.round, tf.int64), "step": tf.constant(self.step, tf.int64)}
        return WorkerView(
            index=self.index, params=self.params, steps=tf.constant(float(self.length)), **numbers, **known
        )

    def local_step(self, gradient: Tensor, loss: Any) -> None:
        """Make one local step."""
        at(self.scheme, self.step).local_step(self.view(), gradient)
        self.gradient, self.losses = gradient, [*self.losses, loss]
        if self.scheme.uses_gradient_sum:
            self.gradient_sum += gradient
        self.step, self.left = self.step + 1, self.left - 1

    def message(self, mean: Callable[[Any], Tensor]) -> Message:
        """Build the message of this round: a vector [P], and the scalars that the scheme sends with it."""
        known: dict[str, Any] = {"mean": mean}
        if not self.scheme.exchange_first:
            known |= {"gradient": self.gradient} if self.scheme.period == 1 else {}
            known |= {"gradient_sum": self.gradient_sum} if self.scheme.uses_gradient_sum else {}
            known |= {} if None in self.losses else {"loss": tf.add_n(self.losses) / float(self.length)}
        return as_message(self.scheme.name, self.scheme.scalars, self.scheme_now.message(self.view(**known)))

    def message_up_to(self, means: Sequence[Tensor]) -> Any:
        """Return the message with these means over the workers; `MeanUnknown` if it takes another, and undo it."""
        before = [(variable, variable.read_value()) for variable in (self.params, *self.own.values())]
        known = iter(means)

        def mean(vector: Any) -> Tensor:
            for value in known:
                return value
            raise MeanUnknown(vector)

        try:
            return self.message(mean)
        except MeanUnknown as unknown:
            for variable, value in before:
                variable.assign(value)
            return unknown

    def go_on(self) -> None:
        """Continue after an event: with the postponed step if there is one, and after the last with the next round."""
        if self.postponed is not None:
            postponed, self.postponed = self.postponed, None
            self.local_step(*postponed)
        if self.left <= 0:
            self.begin_round()


class GlobalVariables:
    """The variables of one parameter server: its slice [n] of the center, and the scheme's for it.

    Args:
        scheme: the algorithm.
        initial: first value of the slice.
        workers: number of workers, W.
    """

    def __init__(self, scheme: Scheme, initial: Tensor, workers: int):
        self.scheme, self.workers = scheme, workers
        self.center = tf.Variable(initial)
        self.own = variables(scheme.global_variables(initial))
        rows, numbers = scheme.worker_rows(initial), scheme.worker_numbers()
        self.of_workers = variables({name: tf.stack([row] * workers) for name, row in rows.items()})
        self.of_workers |= variables({name: tf.fill([workers], float(number)) for name, number in numbers.items()})
        self.pulled_centers = [initial] * workers  # the center that each worker pulled last

    def note_pull(self, k: int) -> None:
        """Note that worker k pulls the present center."""
        self.pulled_centers[k] = self.center.read_value() if self.scheme.keeps_pulled_centers else None

    def call(
        self, rule: Callable[..., Any], message: Message, staleness: int, k: int | None, completes: bool = False
    ) -> Tensor:
        """Call `server_update` or `weighted` of the scheme for a message of worker k, or with k=None for a mean.

        For worker k the rule sees the row and the number of this worker; for a mean, those of all workers.
        """
        seen, pulled_center, sent = self.of_workers, {}, sent_by(self.scheme.scalars, message.scalars)
        if k is not None:
            seen = variables({name: variable[k] for name, variable in self.of_workers.items()})
            pulled_center = {"pulled_center": self.pulled_centers[k]} if self.scheme.keeps_pulled_centers else {}
        known = {"num_workers": self.workers, "sender": k, "sent": sent, "completes": tf.constant(completes)}
        server = ServerView(center=self.center, **self.own, **seen, **known, **pulled_center)
        result = tf.convert_to_tensor(rule(server, message.vector, tf.constant(float(staleness))))
        if k is not None:
            for name, variable in seen.items():
                self.of_workers[name].scatter_nd_update([[k]], [variable])
        return result


class Group:
    """All workers and parameter servers of a run, in one process and in the caller's loop.

    A worker *waits* while its message needs those of others (a barrier), while it is too far ahead (bounded staleness),
    or before its start (after a warm start of worker 0). `ready` names the workers that do not wait; a step of another
    is an error. Arrays that come out have the structure and the kind of `params`. Rounds do not end: none is a short
    last one.

    Args:
        scheme: the algorithm, for instance `Downpour(communication_period=5)`.
        params: the first center: NumPy arrays, TensorFlow tensors or variables (these are only read), in a list, tuple
            or dict, or a single one.
        workers: number of workers, W.
        ps: number of parameter servers, each with a slice of the center. A codec encodes each slice by itself.
        codec: `bf16` or `int8` to quantise messages, with error feedback.
        seed: seed of `worker.uniform`.

    Attributes:
        version: number of updates of the center.

    Example:
        >>> import distsgd, numpy as np
        >>> from distsgd import SyncSGD
        >>> group = distsgd.Group(SyncSGD(learning_rate=0.5), np.array([4.0, 8.0]), workers=2)
        >>> group.step(0, group.point(0))  # the gradient of ½x² is x; worker 0 now waits for worker 1
        False
        >>> group.ready
        [1]
        >>> group.step(1, group.point(1))
        True
        >>> group.version, group.center
        (1, array([2., 4.]))

    Raises:
        UserError: the arguments do not fit.
    """

    def __init__(
        self, scheme: Scheme, params: Any, *, workers: int, ps: int = 1, codec: Rounding = "float32", seed: int = 0
    ):
        check_kind(scheme, "Group(Downpour(), params, workers=4)")
        at_least(1, workers=workers, ps=ps)
        check_scheme(scheme, workers)
        check_update(scheme, in_process=True)
        if ps > 1 and not scheme.sync.uses_ps:
            raise UserError(f"{scheme.name} has no parameter server: leave ps out. Received: ps={ps}")
        self.scheme, self.sync, self.workers = rounded(scheme, codec), scheme.sync, workers
        self._structure = Structure(params)
        center = self._structure.vector(params, "params")
        at_most(len(center), ps=ps)
        self._sizes = even_sizes(len(center), ps)
        self._servers = [GlobalVariables(self.scheme, part, workers) for part in tf.split(center, self._sizes)]
        self.version, self._messages, self._pulled = 0, 0, [0] * workers  # updates; messages; versions of last pulls
        self._known = {"num_workers": workers, "shapes": self._structure.shapes}
        self._known["uniform"] = partial(uniform, seed, len(center))
        self._local = [self._joined(k) for k in range(workers)]
        self._waiting = waiting_at(self.sync, workers)
        self._set: list[list[Message]] = []  # messages that make the next update together, each in slices
        self._reply: Any = None  # reply to the last set

    def _joined(self, k: int) -> LocalVariables:
        """Return worker k as it starts from the present center. Without a ps, worker 0 has the center."""
        has_center = k == 0 and not self.sync.uses_ps
        params = self._servers[0].center if has_center else tf.Variable(self._read())
        self._note_pull(k)
        return LocalVariables(self.scheme, k, params, self._sizes, self._known)

    # What the caller reads.

    @property
    def center(self) -> Any:
        """The center θ: the parameters that the workers share."""
        return self._structure.arrays(self._read())

    def params(self, k: int) -> Any:
        """Return the parameters of worker k."""
        return self._structure.arrays(self._worker(k).params.read_value())

    def point(self, k: int) -> Any:
        """Return the point at which worker k takes its next gradient; `UserError` if the worker waits."""
        worker = self._ready_worker(k)
        return self._structure.arrays(tf.convert_to_tensor(self.scheme.gradient_point(worker.view())))

    def staleness(self, k: int) -> int:
        """Return the number of updates of the center since worker k last pulled it."""
        return self.version - self._pulled[self._worker(k).index]

    @property
    def ready(self) -> list[int]:
        """The workers that may step, in ascending order; there is always one."""
        return [k for k in range(self.workers) if k not in self._waiting.arrived and k not in self._not_started]

    @property
    def _not_started(self) -> range:
        return range(1, self.workers if self.version < self.scheme.warmup_updates else 1)

    def _worker(self, k: int) -> LocalVariables:
        if not isinstance(k, Integral) or not 0 <= k < self.workers:
            raise UserError(f"workers have the indices 0 to {self.workers - 1}. Received: worker {k!r}")
        return self._local[int(k)]

    def _ready_worker(self, k: int) -> LocalVariables:
        worker = self._worker(k)
        if k not in self.ready:
            raise UserError(f"worker {k} has to wait: step a worker of group.ready, {self.ready}, first")
        return worker

    # One step, and the event at the end of a round.

    def step(self, k: int, gradient: Any, loss: Any = None) -> bool:
        """Make one local step of worker k, and with the last step of its round the exchange.

        Args:
            k: the worker, one of `ready`.
            gradient: a gradient at `point(k)`, with the structure of the parameters.
            loss: the loss of this step, for schemes that read `worker.loss`.

        Returns:
            True if worker k may step again; False if it waits for others, until `ready` names it.

        Raises:
            UserError: the worker has to wait, or the gradient does not fit the parameters; nothing was done.
            Diverged: a message is not finite; the center is that before it.
        """
        worker = self._ready_worker(k)
        vector = self._structure.vector(gradient, "gradient")
        loss = None if loss is None else tf.cast(loss, tf.float32)
        if not self.sync.exchanges:  # a single worker, whose parameters are the center
            self._check_finite(worker, Message(vector))
            worker.local_step(vector, loss)
            worker.go_on()
            self._count(1)
            self._note_pull(worker.index)
        elif self.scheme.exchange_first and worker.left == worker.length:
            worker.postponed = vector, loss
            self._exchange(worker)
        else:
            worker.local_step(vector, loss)
            if worker.left > 0 or self.scheme.exchange_first:
                worker.go_on()
            else:
                self._exchange(worker)
        return worker.index in self.ready

    def _exchange(self, worker: LocalVariables) -> None:
        """Do the event of a round: exchange a message for a reply, or only push it, or only pull the center."""
        self._waiting.counted(worker.round + 1)
        if worker.event == "pull":
            self._on_reply(worker, self._read())
        elif worker.event == "push":
            self._merge(worker)
            worker.go_on()
        elif self.sync.set_size(self.workers) is not None:
            self._join_set(worker)
        else:
            reply = self._merge(worker)
            for j in self._waiting.arrive(worker.index, worker.round + 1):  # without a bound, this worker alone
                self._on_reply(self._local[j], self._sent_center() if self.sync.waits else reply)

    def _on_reply(self, worker: LocalVariables, reply: Tensor) -> None:
        """Let a worker use a reply, and continue."""
        self._note_pull(worker.index)
        worker.scheme_now.on_reply(worker.view(), reply)
        worker.go_on()

    def _merge(self, worker: LocalVariables) -> Tensor:
        """Merge a message into the center when it arrives, unless it is too stale; returns the reply."""
        message, staleness = self._received(worker), self.staleness(worker.index)
        if not self.scheme.accepts(tf.constant(float(staleness))):
            return self._sent_center()
        self._messages += 1
        completes = self._messages % self.scheme.messages_per_update == 0
        reply = self._update(message, staleness, worker.index, completes)
        self._count(int(completes))
        return reply

    def _join_set(self, worker: LocalVariables) -> None:
        """Add a message to the set; if that completes the set, merge the mean, which is an update, and release all."""
        if self.sync.uses_ps:
            staleness, message = self.staleness(worker.index), self._received(worker)
            weighed = [
                Message(server.call(self.scheme.weighted, part, staleness, worker.index), part.scalars)
                for server, part in zip(self._servers, message, strict=True)
            ]
            if staleness:  # the set of its version was complete without it: drop it
                return self._on_reply(worker, self._reply)
            self._set.append(weighed)
        if released := self._waiting.arrive(worker.index, worker.round + 1):
            messages = self._set if self.sync.uses_ps else self._messages_without_ps()
            means = [mean_of(parts) for parts in zip(*messages, strict=True)]
            self._set, self._reply = [], self._update(means)
            self._count(1)
            for j in released:
                self._on_reply(self._local[j], self._reply)

    # The servers.

    def _update(
        self, message: list[Message], staleness: int = 0, k: int | None = None, completes: bool = True
    ) -> Tensor:
        """Call the scheme's `server_update` on each slice; returns the reply as a worker receives it."""
        steps = self.version * self.scheme.period / self.scheme.updates_per_round(self.workers)
        rule = at(self.scheme, steps).server_update  # with the learning rates of an average worker
        parts = zip(self._servers, message, strict=True)
        return self._sent([server.call(rule, part, staleness, k, completes) for server, part in parts])

    def _count(self, updates: int) -> None:
        """Count updates of the center; after the last of the warm start, the other workers start from the center."""
        before, self.version = self._not_started, self.version + updates
        if before and not self._not_started:
            self._local[1:] = [self._joined(k) for k in before]

    def _note_pull(self, k: int) -> None:
        self._pulled[k] = self.version
        for server in self._servers:
            server.note_pull(k)

    def _read(self) -> Tensor:
        return tf.concat([server.center for server in self._servers], 0)

    # Messages and replies on their way.

    def _received(self, worker: LocalVariables) -> list[Message]:
        """Return a worker's message as the servers receive it: encoded and decoded slices, each with all scalars."""
        nothing: Any = None
        message, codec = worker.message(partial(self.sync.mean, nothing, nothing)), self.scheme.codec
        self._check_finite(worker, message)
        parts = zip(codec.cut(message.vector, self._sizes), worker.codec, self._sizes, strict=True)
        return [Message(codec.decode(codec.encode(part, kept), n), message.scalars) for part, kept, n in parts]

    def _sent(self, reply: Sequence[Tensor]) -> Tensor:
        """Return the slices of a reply as a worker receives them, as one vector."""
        codec, parts = self.scheme.reply_codec, zip(reply, self._sizes, strict=True)
        return tf.concat([codec.decode(codec.encode(part, None), n) for part, n in parts], 0)

    def _sent_center(self) -> Tensor:
        return self._sent([server.center.read_value() for server in self._servers])

    def _messages_without_ps(self) -> list[list[Message]]:
        """Return the messages of all workers, which may take means over the workers where there is no ps.

        A mean needs a vector of each worker. So all messages are built up to their first mean; then again, with the
        first mean known, up to their second; and so on.
        """
        means: list[Tensor] = []
        while True:
            found = [worker.message_up_to(means) for worker in self._local]
            vectors = [message.vector for message in found if isinstance(message, MeanUnknown)]
            if not vectors:
                for worker, message in zip(self._local, found, strict=True):
                    self._check_finite(worker, message)
                return [[message] for message in found]
            if len(vectors) < self.workers:
                raise UserError(f"{self.scheme.name}: only {len(vectors)} of {self.workers} workers call worker.mean")
            means.append(tf.add_n(vectors) / float(self.workers))

    def _check_finite(self, worker: LocalVariables, message: Message) -> None:
        if not is_finite(message):
            raise Diverged(
                f"worker {worker.index} has a message that is not finite, at version {self.version} of the center: try "
                "a smaller learning rate or period"
            )


class MeanUnknown(Exception):
    """A message needs the mean of a vector over all workers."""

    def __init__(self, vector: Any):
        self.vector = tf.cast(vector, tf.float32)


def at(scheme: Scheme, step: float) -> Scheme:
    """Return the scheme with its learning rates after so many local steps."""
    return scheme.at(tf.constant(float(step)))


def mean_of(messages: Sequence[Message]) -> Message:
    """Return the mean of messages: of their vectors, and of each scalar."""
    return tf.nest.map_structure(lambda *parts: tf.add_n(parts) / float(len(parts)), *messages)


def variables(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a variable for each initial value."""
    return {name: tf.Variable(value) for name, value in values.items()}
