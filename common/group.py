"""Distributed SGD on one page: the workers and parameter servers of a run as plain variables, played step by step.

    group = Group(Downpour(), params, workers=4)
    for k in order:  # any order; a slow worker occurs rarely in it
        group.step(k, gradient(group.point(k)))
    group.center

There are no processes, threads or graphs, and the caller decides which worker steps next. The modules of `algorithms/`
run here as they are: a cluster on which messages arrive in the same order gets the same center. Four classes, the first
two in `group_variables.py`:

    LocalVariables   the variables of the workers, a row for each: a worker makes local steps and builds messages
    GlobalVariables  the variables of one parameter server (ps): it has a slice of the center, and merges messages
    Operations       both: what happens at a worker, and the way of a message to the servers and of the reply back
    Group            the loop of the caller

A step of a worker calls methods of `Operations` in an order that depends on the algorithm: the first in each line at
every step, the others at the end of a round.

    asynchronous           local_step; merge (drop, if the message is too stale), use_reply
    pushes, pulls apart    local_step; merge at a push; read, use_reply at a pull
    bounded staleness      local_step; merge; as soon as the worker may continue, send, use_reply
    barrier, gossip        local_step; join_set; with the last message of the set, merge_set, use_reply of each worker
    overlap                local_step; join_set, merge_set before the last steps of a round, use_reply after them; with
                           a quorum, whose center may change in between, keep_reply with merge_set

`Turns` (`turns.py`) has this order. It counts the rounds, steps and versions of the workers, and knows which of them
wait: whole numbers, which each operation receives as a `Now`. So `Optimizer` can plan many steps ahead, and then take
them with the same operations in a graph of TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from numbers import Integral
from types import SimpleNamespace
from typing import Any

from .arguments import at_most, checked_call
from .cards import warn_if_crowded
from .contract.checks import fitted_in_process
from .contract.decay import check_positions
from .contract.periods import steps_at
from .contract.scheme import Scheme
from .contract.seen import of_slices, of_workers
from .contract.two_levels import two_levels
from .contract.views import Tensor
from .errors import Diverged, UserError
from .group_variables import GlobalVariables, LocalVariables, as_variable
from .lazy import tf
from .messages.cut import even_sizes
from .messages.message import MeanUnknown
from .messages.ops import is_finite
from .messages.stand_in import Row
from .messages.structure import Structure, arrays_of, check_eager, scalar
from .sync.store import Message
from .turns import WHOLE, Now, Turns, now_of, of_kinds, replies_wait


class Operations:
    """The variables of a run, and the operations on them that `Turns` calls.

    Args:
        scheme: the algorithm.
        center: the first center [P].
        workers: number of workers, W.
        ps: number of parameter servers.
        shapes: shapes of the parameters.
        seed: seed of `worker.uniform`.
        without_decay: positions of the parameters that weight decay leaves as they are.
        variable: makes a variable of a value and a name.
        for_xla: True if XLA shall be able to compile the operations.

    Attributes:
        given: gradient [P] and loss of the present step.
        learning_rate: returns the learning rate, or a schedule, that replaces the scheme's; None to leave it.
        reply: what the servers replied last, a variable [P].
        tolerated: messages of a set that may not be finite; the rule of the server leaves them out.
        left_out: number of these in the open set, a variable.
    """

    def __init__(
        self,
        scheme: Scheme,
        center: Tensor,
        *,
        workers: int,
        ps: int,
        shapes: Sequence[tuple[int, ...]],
        seed: int,
        without_decay: Collection[int] = (),
        variable: Callable[[Any, str], Any] = as_variable,
        for_xla: bool = False,
    ):
        self.scheme: Any = two_levels(scheme)
        self.sync, self.workers, self.sizes = scheme.sync, workers, even_sizes(len(center), ps)
        self.common = of_workers(shapes, without_decay, len(center), workers, seed)
        self.constants = of_slices(shapes, without_decay, self.sizes)
        self.codecs = [
            [codec.unpacked() if for_xla else codec for codec in scheme.codecs(kind)] for kind in scheme.kinds
        ]
        # Messages are built once all workers are there, as they may need vectors of all: see `merge_set`.
        self.builds_together = not self.sync.uses_ps and not scheme.overlap
        self.tolerated = scheme.sync.most_left_out(self.sync.set_size(workers) or 0)
        self.begin(center, variable)
        self.gradient_and_loss: Any = None
        self.learning_rate: Callable[[], Any] | None = None

    def begin(self, center: Tensor, variable: Callable[[Any, str], Any]) -> None:
        """Begin a run from this center: make each variable of its first value and its name, in a fixed order."""
        self.local = LocalVariables(self.scheme, center, self.sizes, self.common, variable)
        parts = [variable(part, "center") for part in tf.split(center, self.sizes) if self.sync.uses_ps]
        parts = parts or [self.local.row("params", 0)]  # without a ps, the parameters of worker 0 are the center
        self.servers = [
            GlobalVariables(self.scheme, part, constants, self.workers, variable)
            for part, constants in zip(parts, self.constants, strict=True)
        ]
        rows = [self.workers] if self.sync.gossips else []  # a reply for each worker
        without = tf.zeros([*rows, self.scheme.message_sizes(self.common["shapes"])[-1]])
        self.reply = variable(center if self.sync.uses_ps else without, "reply")
        self.kept = variable(tf.stack([center] * self.workers), "kept_replies") if replies_wait(self.scheme) else None
        self.left_out = variable(tf.constant(0.0), "left_out")
        self.times = variable(tf.zeros([self.workers, len(Now._fields)], WHOLE), "times")  # of messages without a ps

    def scheme_at(self, step: Any) -> Scheme:
        """Return the scheme with its learning rates after so many local steps."""
        scheme = self.scheme.but(learning_rate=self.learning_rate()) if self.learning_rate else self.scheme
        return scheme.at(tf.cast(step, tf.float32))

    def point(self, now: Now) -> Tensor:
        """Return the point [P] at which a worker takes its next gradient."""

        def of(now: Now) -> Tensor:
            return tf.convert_to_tensor(self.scheme_at(now.step).gradient_point(self.local.view(now)))

        return of_kinds(now, len(self.codecs), of)

    def center(self) -> Tensor:
        """Return the center [P]."""
        parts = [server.center.read_value() for server in self.servers]
        return tf.reduce_mean(self.local.all["params"], 0) if self.sync.gossips else tf.concat(parts, 0)

    def do(self, name: str, now: Now) -> Any:
        """Do the operation of this name."""
        return getattr(self, name)(now)

    # What happens at a worker. Message and reply have the learning rates of the first step of their round.

    def local_step(self, now: Now) -> None:
        """Make a local step with the given gradient."""
        if not self.sync.exchanges:
            check_finite(now, Message(self.gradient_and_loss[0]))
        self.local.local_step(self.scheme_at(now.step), now, *self.gradient_and_loss)

    def use_reply(self, now: Now) -> None:
        """Let a worker pull: it uses the last reply, or the one that it keeps."""
        if self.kept is not None:
            reply = Row(self.kept, now.worker).read_value()
        else:
            for server in self.servers:
                server.note_pull(now.worker)
            reply = (Row(self.reply, now.worker) if self.sync.gossips else self.reply).read_value()
        self.scheme_at(now.first).on_reply(self.local.view(now), reply)

    def keep_reply(self, now: Now) -> None:
        """Let a worker pull, and keep the last reply until it has made its steps."""
        for server in self.servers:
            server.note_pull(now.worker)
        Row(self.kept, now.worker).assign(self.reply.read_value())

    def start(self, now: Now) -> None:
        """Let a worker start from the present center."""
        self.local.start(now.worker, self.center())
        for server in self.servers:
            server.note_pull(now.worker)

    # What happens on the servers, and on the way there and back.

    def merge(self, now: Now) -> None:
        """Merge a worker's message into the center."""
        if self.sync.in_pairs:
            return self._average(self._received(now), now)
        return self._update(self._received(now), now, now.worker)

    def _average(self, message: Sequence[Message], now: Now) -> None:
        """Let a worker and its peer, or a worker alone, take the mean of their parameters, which is the reply."""
        peer = self.sync.peer(self.workers, now.worker, now.round)
        other, sent = self.local.row("params", peer), message[0].vector
        mean = tf.where(tf.equal(peer, tf.cast(now.worker, tf.int32)), sent, (sent + other.read_value()) / 2)
        other.assign(mean)
        Row(self.reply, now.worker).assign(mean)

    def drop(self, now: Now) -> None:
        """Drop a worker's message; the reply is the present center."""
        self._received(now)
        self.send(now)

    def send(self, now: Now) -> None:
        """Make the present center the reply, as it arrives at a worker."""
        self._reply([server.center.read_value() for server in self.servers], now)

    def read(self, now: Now) -> None:
        """Make the present center the reply, as it is."""
        self.reply.assign(self.center())

    def join_set(self, now: Now) -> None:
        """Add a worker's message to the set, weighed by the scheme, unless the set is complete without it."""
        if self.builds_together:
            Row(self.times, now.worker).assign(tf.stack([tf.cast(number, WHOLE) for number in now]))
            return
        parts = self._received(now)
        fresh = tf.equal(now.staleness, 0) | (self.sync.late == "count")
        counts = fresh
        if self.tolerated:
            counts &= tf.reduce_all([is_finite(part) for part in parts])
            self.left_out.assign_add(tf.cast(fresh & ~counts, tf.float32))
        for server, part in zip(self.servers, parts, strict=True):

            def weigh(server: GlobalVariables = server, part: Message = part) -> Tensor:
                return server.call(self.scheme.weighted, part, now, now.worker)

            weighed = Message(tf.cond(fresh, weigh, lambda part=part: tf.zeros_like(part.vector)), part.scalars)

            def add(total: Any, u: Any) -> None:
                total.assign_add(tf.where(counts, u, 0.0))

            tf.nest.map_structure(add, server.set, weighed)

    def merge_set(self, now: Now) -> None:
        """Merge the mean of the messages of the set into the center."""
        if self.builds_together:
            if not self.sync.gossips:
                return self._update([mean_of(self._messages_without_ps(now.kind))], now, None)
            messages = self._messages_without_ps(now.kind)
            arrived = [self._arrived(message, now._replace(worker=k))[0].vector for k, message in enumerate(messages)]
            self.reply.assign(self.sync.replies(now.round, tf.stack([m.vector for m in messages]), tf.stack(arrived)))
            return None
        number = tf.maximum(float(self.sync.set_size(self.workers) or 1) - self.left_out, 1.0)
        self.left_out.assign(0.0)
        means = [tf.nest.map_structure(lambda total: total / number, server.set) for server in self.servers]
        for server in self.servers:
            tf.nest.map_structure(lambda total: total.assign(tf.zeros_like(total)), server.set)
        self._update(means, now._replace(completes=1), None)

    def _update(self, message: Sequence[Message], now: Now, k: Any) -> None:
        """Call the scheme's `server_update` on each slice, with the learning rates of an average worker."""
        rule = self.scheme_at(steps_at(self.scheme, tf.cast(now.version, tf.float32), self.workers)).server_update
        self._reply([server.call(rule, part, now, k) for server, part in zip(self.servers, message, strict=True)], now)

    def _received(self, now: Now) -> list[Message]:
        """Return a worker's message as the servers receive it: encoded and decoded slices, each with all scalars."""
        nothing: Any = None
        mean = partial(self.sync.mean, nothing, nothing)
        message = self.local.message(self.scheme_at(now.first), now, mean)
        if not tf.executing_eagerly() or self.left_out >= self.tolerated:
            check_finite(now, message)
        return self._arrived(message, now)

    def _arrived(self, message: Message, now: Now) -> list[Message]:
        """Return the slices of a worker's message after encoding and decoding, each with all scalars."""
        codec, _ = self.codecs[now.kind]
        kept = [SimpleNamespace(**{name: Row(v, now.worker) for name, v in rows.items()}) for rows in self.local.codecs]
        wires = codec.send(message.vector, self.sizes, kept, self.local.view(now))
        return [Message(codec.decode(wire, n), message.scalars) for wire, n in zip(wires, self.sizes, strict=True)]

    def _reply(self, slices: Sequence[Tensor], now: Now) -> None:
        """Keep the slices of a reply as a worker receives them in a round of this kind."""
        (_, codec), parts = self.codecs[now.kind], zip(slices, self.sizes, strict=True)
        self.reply.assign(tf.concat([codec.decode(codec.encode(part, None), n) for part, n in parts], 0))

    def _messages_without_ps(self, kind: int) -> list[Message]:
        """Return the messages of all workers, which may take means over the workers where there is no ps."""
        times = [now_of(Row(self.times, k).read_value())._replace(worker=k, kind=kind) for k in range(self.workers)]
        means: list[Tensor] = []
        while True:
            found = [self.local.message_up_to(means, self.scheme_at(now.first), now) for now in times]
            vectors = [message.vector for message in found if isinstance(message, MeanUnknown)]
            if not vectors:
                for now, message in zip(times, found, strict=True):
                    check_finite(now, message)
                return found
            if len(vectors) < self.workers:
                raise UserError(f"all {self.workers} workers must call worker.mean. Received: {len(vectors)} calls")
            means.append(tf.add_n(vectors) / float(self.workers))


class Group:
    """All workers and parameter servers of a run, in one process and in the caller's loop.

    A worker *waits* while its message needs those of others (a barrier), while it is too far ahead (bounded staleness),
    or before its start (after a warm start of worker 0). `ready` names the workers that do not wait; a step of another
    is an error. Arrays that come out have the structure and the kind of `params`. Rounds do not end: none is a short
    last one.

    Args:
        scheme: the algorithm, for instance `Downpour(communication_period=5)`.
        params: the first center: NumPy arrays, tensors of TensorFlow or PyTorch, or variables (these are only read), in
            a list, tuple or dict, or a single one; or a model of Keras or PyTorch, whose parameters come out as a list.
        workers: number of workers, W.
        ps: number of parameter servers, each with a slice of the center. A codec encodes each slice by itself.
        codec: compression of messages, for instance `int8` or `topk:fraction=0.01`, with error feedback.
        seed: seed of `worker.uniform`.
        without_decay: positions of the arrays in `params`, flattened, that weight decay leaves as they are: biases and
            scales of normalisations, for instance.

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

    @checked_call
    def __init__(
        self, scheme: Scheme, params: Any, *, workers: int, ps: int = 1, codec: str = "float32", seed: int = 0,
        without_decay: Collection[int] = (),
    ):  # fmt: skip
        warn_if_crowded()
        scheme = fitted_in_process(scheme, workers, ps, codec, "Group(Downpour(), params, workers=4)")
        params = arrays_of(params)
        self.scheme, self.workers, self._structure = scheme, workers, Structure(params)
        center = self._structure.vector(params, "params")
        at_most(len(center), ps=ps)
        check_positions(without_decay, len(self._structure.shapes))
        common: dict[str, Any] = {"workers": workers, "ps": ps, "shapes": self._structure.shapes, "seed": seed}
        self._operations = Operations(scheme, center, **common, without_decay=without_decay)
        self._turns = Turns(scheme, workers, self._operations.do, seed)

    # What the caller reads.

    @property
    def center(self) -> Any:
        """The center θ: the parameters that the workers share."""
        return self._structure.arrays(self._operations.center())

    @property
    def version(self) -> int:
        """The number of updates of the center."""
        return self._turns.sequencer.version

    @property
    def ready(self) -> list[int]:
        """The workers that may step, in ascending order; there is always one."""
        return self._turns.ready

    def params(self, k: int) -> Any:
        """Return the parameters of worker k."""
        return self._structure.arrays(self._operations.local.row("params", self._worker(k)).read_value())

    def point(self, k: int) -> Any:
        """Return the point at which worker k takes its next gradient; `UserError` if the worker waits."""
        return self._structure.arrays(self._operations.point(self._turns.now(self._ready_worker(k))))

    def staleness(self, k: int) -> int:
        """Return the number of updates of the center since worker k last pulled it."""
        return self._turns.sequencer.staleness(self._worker(k))

    def _worker(self, k: int) -> int:
        if not isinstance(k, Integral) or not 0 <= k < self.workers:
            raise UserError(f"the index of a worker must lie between 0 and {self.workers - 1}. Received: worker {k!r}")
        return int(k)

    def _ready_worker(self, k: int) -> int:
        if self._worker(k) not in self.ready:
            raise UserError(f"worker {k} has to wait: step a worker of group.ready, {self.ready}, first")
        return int(k)

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
        check_eager("step")
        k, vector = self._ready_worker(k), self._structure.vector(gradient, "gradient")
        self._operations.gradient_and_loss = vector, None if loss is None else tf.cast(scalar(loss), tf.float32)
        self._turns.step(k)
        return k in self.ready


def check_finite(now: Now, message: Message) -> None:
    """Raise `Diverged` if a message is not finite; not in a graph."""
    if not tf.executing_eagerly() or is_finite(message):
        return
    raise Diverged(
        f"worker {int(now.worker)} has a message that is not finite, at version {int(now.version)} of the center: try "
        "a smaller learning rate or period"
    )


def mean_of(messages: Sequence[Message]) -> Message:
    """Return the mean of messages: of their vectors, and of each scalar."""
    return tf.nest.map_structure(lambda *parts: tf.add_n(parts) / float(len(parts)), *messages)
