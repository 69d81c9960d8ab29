"""The graph of a simulated run: rounds of many workers in one call, and their messages one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ..data.dataset import leaves
from ..messages.ops import building, is_finite
from ..server.center import Center
from ..server.slices import Row
from ..tasks.job import Job
from ..worker.batches import Shard
from ..worker.flat_model import FlatModel
from ..worker.replica import Replica
from .batched_workers import BatchedWorkers, Given
from .merging import Merging

DEVICE = "/device:CPU:0"


class Executor:
    """Center, workers and data of a simulated run in a session of their own, and the calls on them.

    Args:
        job: the job to train.
        model: the model to train.
        kinds: the kinds of actions that occur, of `Do`.
        places: the most messages that are computed and not yet merged.
    """

    def __init__(self, job: Job, model: FlatModel, kinds: Collection[int], places: int):
        self.scheme, options, workers = job.scheme, job.options, job.cluster.workers
        self.built: dict[Any, Callable[..., Any]] = {}
        self.graph = tf.Graph()
        with building(self.graph):
            self.center = Center(
                job.scheme, [[model.size]], [DEVICE], workers, options.ema_decay, round_steps=job.plan.round_steps
            )
            (self.part,), (center,) = self.center.slices, self.center.initial
            state = tf.compat.v1.placeholder(tf.float32, [model.state_size], name="initial_state")
            gradient = tf.function(model.gradient, reduce_retracing=True, autograph=False)
            own, loss = [""] * job.devices_per_worker, (options.l2, options.clip_norm)
            replica = Replica(model, gradient, "lane", (0, workers), own, Given(), job.train, *loss)
            self.data = Shard(leaves(job.train), "simulation")
            self.lanes = BatchedWorkers(job.scheme, replica, workers, (center, state), job.seed)
            self.merging = Merging(job.scheme, self.center, self.lanes, kinds, places)
            initialize = tf.compat.v1.global_variables_initializer()
            self._inputs(job.batch_size)
        self.session = tf.compat.v1.Session(graph=self.graph)
        fed = [center, state, *replica.fed, *self.data.fed]
        values = [model.pack(), model.pack_state(), *model.frozen_values(), *leaves(job.train)]
        self.session.run(initialize, dict(zip(fed, values, strict=True)))

    def _inputs(self, batch_size: int) -> None:
        """Build the placeholders for the arguments of calls."""

        def fed(dtype: str, *shape: int | None) -> Any:
            return tf.compat.v1.placeholder(dtype, shape)

        workers, places, do = (fed("int32", None) for _ in range(3))
        when, before, counts = fed("float32", None, 3), fed("float32", None, 3), fed("bool", None)
        rows, rest = (fed("int32", None, None, batch_size) for _ in range(2))
        self.inputs = {
            self.compute: [workers, when, places, counts, rows, before, rest],
            self.train_alone: [when, rows],
            self.merging.run: [do, workers, when, places],
            self.merging.adopt: [workers, when],
            self.snapshot: [],
        }

    def call(self, build: Callable[..., Any], *values: np.ndarray, **how: Any) -> Any:
        """Run the graph of one of the methods below on these values; the first call builds it."""
        key = build, len(values), *how.values()
        if key not in self.built:
            inputs = self.inputs[build][: len(values)]
            with building(self.graph):
                fetches = tf.function(partial(build, **how), autograph=False)(*inputs)
            self.built[key] = self.session.make_callable(fetches, inputs)
        return self.built[key](*values)

    # Methods for `call`.

    def compute(
        self,
        workers: Any,
        when: Any,
        places: Any,
        counts: Any,
        rows: Any,
        before: Any = None,
        rest: Any = None,
        *,
        takes: bool,
        adopts: bool,
        number: int | None,
    ) -> Any:
        """Compute the rounds of these workers [B] up to their messages.

        Args:
            workers: the workers, [B].
            when: local steps that each has done, steps of its round, and number of the round, [B, 3].
            places: place of each message until it is merged, [B].
            counts: False for a message that will be dropped, [B].
            rows: the batches, [steps, B, batch size].
            before: `when` of the previous rounds.
            rest: batches of the previous rounds after the first, [steps - 1, B, batch size], for schemes that exchange
                first.
            takes: True if the rounds have messages.
            adopts: True if the workers have not yet adopted the reply to their last set.
            number: B, to build a graph for that number: known shapes save copies; None for any number.

        Returns:
            sums of the losses [B] of the rounds and of the rest of the previous ones; whether each message is finite.
        """
        lanes, scheme = self.lanes, self.scheme
        workers, when = tf.ensure_shape(workers, [number]), tf.ensure_shape(when, [number, 3])
        rows, single = tf.ensure_shape(rows, [None, number, None]), scheme.period == 1 and not scheme.exchange_first
        start = values = lanes.load(workers)
        late, adopting = tf.zeros_like(when[:, 0]), []
        if before is not None:
            before = tf.ensure_shape(before, [number, 3])
        if adopts:
            adopting = [before, self.merging.reply.read_value()]
            values = values if single else lanes.adopted(values, workers, *adopting)
        if rest is not None:
            rest = tf.ensure_shape(rest, [None, number, None])
            values = lanes.first_steps(values, workers, before, Row(lanes.gradients, workers).read_value())
            now = before + tf.constant([1.0, 0.0, 0.0])
            values, late, _ = lanes.steps(values, workers, now, self._batches(rest), tf.shape(rest)[0])
        if scheme.exchange_first:
            values, (losses, gradients) = lanes.first_gradients(values, workers, when, self._batches(rows)(0))
            Row(lanes.gradients, workers).assign(gradients)
        elif single:
            values, losses, gradients = lanes.steps(values, workers, when, self._batches(rows), None, *adopting)
        else:
            values, losses, gradients = lanes.steps(values, workers, when, self._batches(rows), tf.shape(rows)[0])
        finite = tf.fill(tf.shape(workers), True)
        if takes:
            values, messages = lanes.messages(values, workers, when, losses, gradients)
            finite = tf.math.is_finite(tf.reduce_sum(messages, 1))
            self.merging.keep(places, messages, counts)
        lanes.store(workers, start, values | {"params": start["params"]} if lanes.forgetful else values)
        return losses, late, finite

    def _batches(self, rows: Any) -> Callable[[Any], list[Any]]:
        return lambda t: self.data.batch(rows[t])

    # Alone.

    def train_alone(self, when: Any, rows: Any) -> Any:
        """Take local steps of a single worker, whose parameters are the center, on batches [steps, 1, batch size].

        Returns:
            the sum of the losses, and whether all gradients were finite.
        """
        lanes, batches = self.lanes, self._batches(rows)

        def step(t: Any, total: Any, fine: Any) -> tuple[Any, Any, Any]:
            cells = lanes.cells(0)
            now = when[0] + tf.stack([tf.cast(t, tf.float32), 0.0, 0.0])
            view, clock = lanes.view(cells, 0, now), now[0]
            loss, gradient = lanes.gradient(cells, view, [leaf[0] for leaf in batches(t)])
            lanes.scheme_at(clock).local_step(view, gradient)
            lanes.keep(0, cells)
            self.part.center.assign(cells["params"].read_value())
            self.part.move_average(clock)
            self.center.count_updates(1)
            return t + 1, total + loss, fine & is_finite(gradient)

        start = tf.constant(0), tf.constant(0.0), tf.constant(True)
        _, total, fine = tf.while_loop(lambda t, *_: t < tf.shape(rows)[0], step, start, parallel_iterations=1)
        lanes.share_state(0)
        return total[None], fine[None]

    def snapshot(self) -> dict[str, Any]:
        """Return version, center, average and state, see `ParameterServer.snapshot`."""
        found = {"at": self.center.read_version(), "center": self.part.center.read_value()}
        if self.part.average is not None:
            found["average"] = self.part.average.read_value()
        return found | {"state": tf.reduce_mean(self.lanes.shared.read_value(), 0)}
