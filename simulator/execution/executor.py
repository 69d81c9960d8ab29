"""The graph of a simulated run: rounds of many workers in one call, and their messages one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from ...common.contract.scheme import Scheme
from ...common.data.dataset import leaves
from ...common.messages.codec import Codec
from ...common.messages.cut import joined
from ...common.messages.ops import building, in_program_order, is_finite
from ...common.messages.stand_in import Row
from ...common.server.center import Center
from ...common.sync.gossip import consensus
from ...common.tasks.job import Job
from ...common.worker.flat_model import FlatModel
from ...common.worker.replica import Replica, Shard
from ..virtual_time.program import Do
from .batched_workers import BatchedWorkers, Given

DEVICE = "/device:CPU:0"

# Of the worker (`CLOSE`: messages), its clock and steps, the place in the outbox, and the kind of its round.
Action = Callable[[Any, Any, Any, int], Any]


class Merging:
    """The effects of actions on the center and the workers.

    Args:
        scheme: the algorithm.
        center: the center of the run.
        workers: the workers.
        kinds: the kinds of actions that occur, of `Do`.
        places: the most messages that are computed and not yet merged.

    Attributes:
        outbox: messages that are computed and not yet merged, a `Message` of variables [places, ...].
        inbox: the sum of the messages of a set, a `Message` of variables.
        adds_at_once: True if messages of a set are only added: then the inbox receives each when it is computed.
        does: the kinds of actions with an effect.
        adopts_later: True if workers may adopt the reply to their set as late as in the computation of the next round.
    """

    def __init__(self, scheme: Scheme, center: Center, workers: BatchedWorkers, kinds: Collection[int], places: int):
        self.scheme, self.center, self.workers, self.part = scheme, center, workers, center.slices[0]
        in_sets = scheme.sync.exchanges and scheme.sync.set_size(center.num_workers) is not None
        self.drops = Do.LEAVE in kinds
        self.counts_late = scheme.sync.late == "count"
        # The messages of a set are computed between it and the one before, and have one reply.
        in_order = in_sets and not self.counts_late and not scheme.sync.gossips
        self.adopts_later = in_order and self.part.pulled_centers is None and not workers.model.state_size
        self.kinds = [*scheme.kinds]  # of rounds
        encodes = any(type(scheme.codecs(kind)[0]) is not Codec for kind in self.kinds)
        plain = type(scheme).weighted is Scheme.weighted and not encodes
        self.tolerates = in_sets and scheme.sync.most_left_out(center.num_workers) > 0
        self.adds_at_once = in_order and plain and not self.tolerates
        self.left_out = tf.Variable(0.0, name="left_out")  # messages of the open set that are not finite
        places = 0 if self.adds_at_once else places
        self.inbox, self.outbox = (
            tf.nest.map_structure(lambda u, rows=rows: tf.Variable(tf.zeros([*rows, *u.shape])), self.part.no_message)
            for rows in ([], [places])
        )
        rows = [center.num_workers] if scheme.sync.gossips else []  # a reply for each worker
        size = self.part.no_message.vector.shape[0]
        self.reply = tf.Variable(tf.zeros([*rows, size]), name="reply")
        # Messages of gossip as they arrive, if a codec changes them.
        self.arrived = tf.Variable(tf.zeros([*rows, size]), name="arrived") if rows and encodes else self.reply
        self.consensus = tf.Variable(0.0, name="consensus")  # the distance of workers that gossip, as in `Gossip`
        self.does = sorted(kind for kind in kinds if kind in self._actions())

    def store(self, places: Any, messages: Any, accepted: Any) -> None:
        """Store computed messages, each in its place; `accepted` is False for those that will be dropped."""

        def store(inbox: Any, outbox: Any, rows: Any) -> None:
            if self.adds_at_once:
                inbox.assign_add(tf.reduce_sum(tf.where(accepted[:, None], rows, 0.0) if self.drops else rows, 0))
            else:
                Row(outbox, places).assign(rows)

        tf.nest.map_structure(store, self.inbox, self.outbox, messages)

    def run(self, do: Any, workers: Any, when: Any, places: Any, kinds: Any) -> Any:
        """Build the execution of actions, one after the other; return their number."""
        pairs = [*itertools.product(self.does, range(len(self.kinds)))]
        if not pairs:
            return tf.constant(0)

        def body(i: Any) -> Any:
            def branch(does: int, kind: int) -> Callable[[], Any]:
                def act() -> Any:
                    self._actions()[does](workers[i], when[i], places[i], kind)
                    return tf.constant(1)

                return act

            if len(pairs) == 1:
                return i + branch(*pairs[0])()
            which = tf.searchsorted(self.does, do[i : i + 1])[0] * len(self.kinds) + kinds[i]
            return i + tf.switch_case(which, [branch(*pair) for pair in pairs])

        return tf.while_loop(lambda i: i < tf.shape(do)[0], body, [tf.constant(0)], parallel_iterations=1)[0]

    def _actions(self) -> dict[int, Action]:
        center, part = self.center, self.part
        actions: dict[int, Action] = {
            Do.APPLY: self._apply,
            Do.PUSH: self._push,
            Do.PULL: lambda worker, now, place, kind: self._adopt_one(worker, now, kind, part.center.read_value()),
            Do.READ: self._read,
            Do.START: lambda worker, now, place, kind: self._start(worker),
            Do.CLOSE: lambda messages, now, place, kind: self._close(messages, now, kind),
            Do.UP: lambda region, now, place, kind: center.between_servers("up", part, self._slot(region)),
            Do.DOWN: lambda region, now, place, kind: center.between_servers("down", part, self._slot(region)),
        }
        if not self.adds_at_once:
            actions[Do.ARRIVE] = self._arrive
        return actions

    def _slot(self, worker: Any, kind: int = 0) -> Any:
        """Return a stand-in for a worker's slot with the attributes that the center uses."""
        return SimpleNamespace(index=worker, codecs=self.scheme.codecs(self.kinds[kind]))

    def _received(self, worker: Any, now: Any, place: Any, kind: int) -> Any:
        """Return a message after encoding and decoding by the codec."""
        variables, (codec, _) = self.workers.variables_of(worker), self.scheme.codecs(self.kinds[kind])
        sizes = self.workers.sizes
        local = [SimpleNamespace(**variables_of_slice) for variables_of_slice in variables["codec"]]
        sent = tf.nest.map_structure(lambda outbox: Row(outbox, place).read_value(), self.outbox)
        wires = codec.send(sent.vector, sizes, local, self.workers.view(variables, worker, now, kind, done=True))
        self.workers.store_one(worker, variables)
        return sent._replace(vector=joined([*map(codec.decode, wires, sizes)]))

    def _merged(self, worker: Any, now: Any, place: Any, kind: int) -> Any:
        """Merge a message into the center; return the reply."""
        center, sender = self.center, self._slot(worker, kind)
        message = self._received(worker, now, place, kind)
        if self.scheme.sync.in_pairs:
            return self._averaged(worker, now)
        version = center.read_version()
        staleness = tf.cast(center.staleness(version, sender), tf.float32)
        return center.reply(center.apply(sender, [message], staleness, version, accepted=True), sender)

    def _averaged(self, worker: Any, now: Any) -> Any:
        """Let a worker and its peer, or a worker alone, take the mean of their present parameters; return it."""
        params, peer = self.workers.tables["params"], self.scheme.sync.peer(self.center.num_workers, worker, now[2])
        vector, other = Row(params, worker).read_value(), Row(params, peer)
        mean = tf.where(tf.equal(peer, tf.cast(worker, tf.int32)), vector, (vector + other.read_value()) / 2)
        other.assign(mean)
        self.center.count_updates(1)
        return mean

    def _apply(self, worker: Any, now: Any, place: Any, kind: int) -> None:
        self._adopt_one(worker, now, kind, self._merged(worker, now, place, kind))

    def _read(self, worker: Any, now: Any, place: Any, kind: int) -> None:
        self._adopt_one(worker, now, kind, self.center.reply(self.center.read(), self._slot(worker, kind)))

    def _adopt_one(self, worker: Any, now: Any, kind: int, reply: Any) -> None:
        self.center.note_pull(self._slot(worker))
        variables = self.workers.variables_of(worker)
        self.workers.on_reply(variables, worker, now, kind, reply)
        self.workers.store_one(worker, variables)
        self.workers.share_state(worker)

    def _push(self, worker: Any, now: Any, place: Any, kind: int) -> None:
        self._merged(worker, now, place, kind)
        self.workers.share_state(worker)

    def _start(self, worker: Any) -> None:
        self.center.note_pull(self._slot(worker))
        self.workers.start_one(worker, self.part.center.read_value())

    def _arrive(self, worker: Any, now: Any, place: Any, kind: int) -> None:
        center, message, slot = self.center, self._received(worker, now, place, kind), self._slot(worker)
        if self.scheme.sync.gossips:  # the messages wait where their replies will be
            if self.arrived is not self.reply:
                Row(self.arrived, worker).assign(message.vector)
            return Row(self.reply, worker).assign(Row(self.outbox.vector, place).read_value())
        staleness = center.staleness(center.read_version(), slot) if self.counts_late else 0
        weighed = center.weighted(self.part, message, staleness, slot)
        if self.tolerates:
            finite = is_finite(message)
            self.left_out.assign_add(tf.cast(~finite, tf.float32))
            weighed = tf.nest.map_structure(lambda u: tf.where(finite, u, tf.zeros_like(u)), weighed)
        tf.nest.map_structure(lambda inbox, u: inbox.assign_add(u), self.inbox, weighed)

    def _close(self, messages: Any, now: Any, kind: int) -> None:
        """Merge the mean of a set into the center."""
        center, version = self.center, self.center.read_version()
        if self.scheme.sync.gossips:
            messages = self.reply.read_value()
            arrived = messages if self.arrived is self.reply else self.arrived.read_value()
            self.reply.assign(self.scheme.sync.replies(now[2], messages, arrived))
            center.count_updates(1)
            return
        number = tf.maximum(tf.cast(messages, tf.float32) - self.left_out, 1.0)
        self.left_out.assign(0.0)
        mean = tf.nest.map_structure(lambda inbox: inbox / number, self.inbox)
        reply = tf.convert_to_tensor(center.merge(self.part, mean, tf.constant(0.0), version))
        self.reply.assign(center.reply([reply], self._slot(None, kind)))
        tf.nest.map_structure(lambda inbox: inbox.assign(tf.zeros_like(inbox)), self.inbox)
        if not self.scheme.sync.uses_ps:  # the parameters of worker 0 are the center
            variables = self.workers.variables_of(0)
            self.workers.on_reply(variables, 0, now, kind, self.reply.read_value())
            self.part.center.assign(variables["params"].read_value())
            self.part.move_average(now[0])
        center.count_updates(1)

    def on_reply(self, workers: Any, when: Any, *, number: int | None, kind: int) -> Any:
        """Let these workers, [number], adopt the reply to their set, in rounds of this kind."""
        workers, when = tf.ensure_shape(workers, [number]), tf.ensure_shape(when, [number, 3])
        before = self.workers.load(workers)
        reply = (Row(self.reply, workers) if self.scheme.sync.gossips else self.reply).read_value()
        adopted = self.workers.adopted(before, workers, when, kind, reply)
        self.workers.store(workers, before, adopted)
        self.workers.share_state(workers)
        if self.counts_late:
            Row(self.center.pulled, workers).assign(tf.fill(tf.shape(workers), self.center.read_version()))
        pulled_centers = self.part.pulled_centers
        if pulled_centers is not None:
            ones = tf.ones_like(tf.cast(workers, tf.float32))
            Row(pulled_centers, workers).assign(ones[:, None] * self.part.center.read_value())
        return tf.size(workers)

    def collect(self, when: Any) -> Any:
        """Take the mean of workers that gossip as the center, once all have adopted the replies to their set."""
        params = self.workers.tables["params"].read_value()
        self.part.center.assign(tf.reduce_mean(params, 0))
        self.part.move_average(when[0, 0])
        return self.consensus.assign(consensus(params))


class Executor:
    """Center, workers and data of a simulated run in a session of their own, and the calls on them.

    Args:
        job: the job to train.
        model: the model to train.
        kinds: the kinds of actions that occur, of `Do`.
        places: the most messages that are computed and not yet merged.
    """

    def __init__(self, job: Job, model: FlatModel, kinds: Collection[int], places: int):
        self.scheme = scheme = job.scheme
        options, workers = job.options, job.cluster.workers
        self.built: dict[Any, Callable[..., Any]] = {}
        self.graph = tf.Graph()
        with building(self.graph):
            self.center = Center(
                *(scheme, [[model.size]], [DEVICE], workers, options.ema_decay),
                round_steps=job.plan.round_steps,
                shapes=model.shapes,
                without_decay=model.without_decay,
                servers_apart=job.servers_apart,
                attack=job.attack,
            )
            (self.part,), (center,) = self.center.slices, self.center.initial
            state = tf.compat.v1.placeholder(tf.float32, [model.state_size], name="initial_state")
            gradient = tf.function(model.gradient, reduce_retracing=True, autograph=False)
            devices, sizes = [""] * job.devices_per_worker, job.slices(model.size)
            loss = options.l2, options.clip_norm, job.attack, job.labels
            replica = Replica(model, gradient, "replica", (0, workers), devices, Given(), job.train, *loss)
            self.data = Shard(leaves(job.train), "simulation")
            self.workers = BatchedWorkers(scheme, replica, workers, (center, state), job.options.seed, sizes)
            self.merging = Merging(scheme, self.center, self.workers, kinds, places)
            initialize = tf.compat.v1.global_variables_initializer()
        self.session = tf.compat.v1.Session(graph=self.graph)
        _, frozen = replica.fed
        fed = [center, state, *frozen, *self.data.fed]
        values = [model.pack(), model.pack_state(), *model.frozen_values(), *leaves(job.train)]
        self.session.run(initialize, dict(zip(fed, values, strict=True)))

    def call(self, build: Callable[..., Any], *values: np.ndarray, **options: Any) -> Any:
        """Run the graph of one of the methods below on these values; the first call builds it."""
        key = build, len(values), *options.values()
        if key not in self.built:
            with building(self.graph):
                inputs = [_placeholder(value) for value in values]
                fetches = in_program_order(partial(build, **options), *inputs)
            self.built[key] = self.session.make_callable(fetches, inputs)
        return self.built[key](*values)

    # Methods for `call`.

    def compute(
        self,
        workers: Any,
        when: Any,
        places: Any,
        accepted: Any,
        rows: Any,
        before: Any = None,
        *,
        takes: bool,
        adopts: bool,
        number: int | None,
        kind: int,
        earlier: int,
    ) -> Any:
        """Compute the rounds of these workers [B] up to their messages.

        Args:
            workers: the workers, [B].
            when: local steps that each has done, steps of its round, and number of the round, [B, 3].
            places: place of each message until it is merged, [B].
            accepted: False for a message that will be dropped, [B].
            rows: the batches, [steps, B, batch size].
            before: `when` of the previous rounds.
            takes: True if the rounds have messages.
            adopts: True if the workers have not yet adopted the reply to their last set.
            number: B, to build a graph for that number: known shapes save copies; None for any number.
            kind: number of the kind of the rounds.
            earlier: that of the previous rounds.

        Returns:
            sums of the losses [B] of the rounds; whether each message is finite.
        """
        batched, scheme = self.workers, self.scheme
        workers, when = tf.ensure_shape(workers, [number]), tf.ensure_shape(when, [number, 3])
        rows = tf.ensure_shape(rows, [None, number, None])
        single = scheme.period == 1 and not scheme.overlap
        start = values = batched.load(workers)
        before_message = tf.maximum(tf.shape(rows)[0] - scheme.overlap, 0)
        adopting: list[Any] = []
        if before is not None:
            before = tf.ensure_shape(before, [number, 3])
        if adopts:
            adopting = [before, earlier, self.merging.reply.read_value()]
            values = values if single else batched.adopted(values, workers, *adopting)
        step_arguments = [None, *adopting] if single else [before_message]
        values, losses, gradients = batched.steps(values, workers, when, kind, self._batches(rows), *step_arguments)
        finite = tf.fill(tf.shape(workers), True)
        if takes:
            values, messages = batched.messages(values, workers, when, kind, losses, gradients)
            sums = [tf.reduce_sum(part, 1) for part in tf.nest.flatten(messages)]
            finite = tf.math.is_finite(tf.add_n(sums))
            self.merging.store(places, messages, accepted)
        if scheme.overlap:
            rest, now = rows[before_message:], when + tf.cast(tf.stack([before_message, 0, 0]), tf.float32)
            values, more, _ = batched.steps(values, workers, now, kind, self._batches(rest), tf.shape(rest)[0])
            losses += more
        batched.store(workers, start, values | {"params": start["params"]} if batched.replaces_params else values)
        return losses, finite

    def _batches(self, rows: Any) -> Callable[[Any], list[Any]]:
        return lambda t: self.data.batch(rows[t])

    # Alone.

    def train_alone(self, when: Any, rows: Any) -> Any:
        """Take local steps of a single worker, whose parameters are the center, on batches [steps, 1, batch size].

        Returns:
            the sum of the losses, and whether all gradients were finite.
        """
        batched, batches = self.workers, self._batches(rows)

        def step(t: Any, total: Any, finite: Any) -> tuple[Any, Any, Any]:
            variables = batched.variables_of(0)
            now = when[0] + tf.stack([tf.cast(t, tf.float32), 0.0, 0.0])
            view, clock = batched.view(variables, 0, now, 0), now[0]
            loss, gradient = batched.gradient(variables, view, [leaf[0] for leaf in batches(t)])
            batched.scheme_at(clock).local_step(view, gradient)
            batched.store_one(0, variables)
            self.part.center.assign(variables["params"].read_value())
            self.part.move_average(clock)
            self.center.count_updates(1)
            return t + 1, total + loss, finite & is_finite(gradient)

        start = tf.constant(0), tf.constant(0.0), tf.constant(True)
        _, total, finite = tf.while_loop(lambda t, *_: t < tf.shape(rows)[0], step, start, parallel_iterations=1)
        batched.share_state(0)
        return total[None], finite[None]

    def snapshot(self) -> dict[str, Any]:
        """Return version, center, average and state, see `ParameterServer.snapshot`."""
        found = {"at": self.center.read_version(), "center": self.part.center.read_value()}
        if self.part.average is not None:
            found["average"] = self.part.average.read_value()
        sync = self.center.scheme.sync
        if sync.in_pairs:
            params = self.workers.tables["params"].read_value()
            found |= {"center": tf.reduce_mean(params, 0), "consensus": consensus(params)}
        elif sync.gossips:
            found["consensus"] = self.merging.consensus.read_value()
        return found | {"state": tf.reduce_mean(self.workers.shared.read_value(), 0)}


def _placeholder(value: np.ndarray) -> Any:
    """Build a placeholder for arrays that differ from this one in all dimensions but the last of several."""
    shape = [None] * (value.ndim - 1) + [value.shape[-1] if value.ndim > 1 else None]
    return tf.compat.v1.placeholder(tf.int32 if value.dtype == np.int64 else value.dtype, shape)
