"""The rules of a scheme for one worker: its local variables, its local steps, its message, its use of a reply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import tensorflow as tf

from ..contract.kept import first_values
from ..contract.scheme import Scheme
from ..contract.seen import of_slices, of_workers, worker_view
from ..contract.views import MESSAGE_ONLY, check_names
from ..contract.weighed import weighs
from ..messages.cut import joined
from ..messages.message import as_message, declared_means
from ..messages.ops import zeros
from ..server.parameter_server import ParameterServer
from ..sync.store import Message, WorkerSlot
from .buckets import Buckets
from .replica import Replica


class WorkerRules:
    """The local variables of one worker, and its scheme's rules for it, built into the current graph.

    Args:
        scheme: the algorithm.
        replica: the model on its devices, and its batches.
        ps: the global variables.
        slot: the worker's slot on the ps.
        name: prefix of the names of its variables.
        seed: seed of the run.

    Attributes:
        views: the worker as its scheme sees it, once for each bucket of its vectors, see `Buckets`.
        names: names of the variables in a view: the parameters and the scheme's local variables.
        clock: local steps done, a variable; learning-rate schedules read it.
        is_center: True if the worker's parameters are the center.
        averages: moving averages of the worker's parameters, if the run has an average and no center: one a bucket.
        period, overlap, scheduled: those of the scheme, which a change of its learning rates leaves as they are.

    Raises:
        UserError: a local variable has a name that cannot be used.
    """

    may_end = False  # a round may end before its last step

    def __init__(self, scheme: Scheme, replica: Replica, ps: ParameterServer, slot: WorkerSlot, name: str, seed: int):
        self.scheme, self.replica, self.ps, self.slot = scheme, replica, ps, slot
        self.device, self.buckets = replica.devices[0], Buckets.of(scheme, replica)
        self.period, self.overlap, self.scheduled = scheme.period, scheme.overlap, scheme.scheduled
        # Without a ps the parameters of the chief are the center. With gossip they are not: it is the workers' mean.
        self.is_center = not (scheme.sync.uses_ps or scheme.sync.gossips) and name == "worker_0"
        averages = scheme.sync.gossips and ps.center.ema_decay is not None
        with tf.device(self.device):
            center = ps.center.slices[0].center if self.is_center else None
            sizes = enumerate(self.buckets.sizes)
            local = [_variables(scheme, f"{name}_{i}" if i else name, size, center) for i, size in sizes]
            self.averages = [tf.Variable(view["params"].initial_value) for view in local] if averages else []
            self.clock = tf.Variable(tf.constant(0, tf.int64), name=f"{name}_clock")
        self.names, size = [*local[0]], sum(self.buckets.sizes)
        of_model = replica.model.shapes, replica.model.without_decay
        common = of_workers(*of_model, size, ps.num_workers, seed)
        decayed = [part["decayed"] for part in of_slices(*of_model, self.buckets.sizes)]
        self.views: list[Any] = [
            worker_view(common | {"decayed": mask}, slot.index, variables)
            for variables, mask in zip(local, decayed, strict=True)
        ]

    # The local steps of a round: a gradient on each batch, and the scheme's step with it.

    def local_steps(self, rows: Any, after: Any, first: Any) -> Any:
        """Build a local step for each batch, after the tensor `after`; returns the sum of the losses.

        Args:
            rows: the batches, [steps, batch size].
            after: a tensor.
            first: number of the first of these steps, an int64 scalar.
        """
        if self.period == 1:  # without a loop the message may be the gradient itself, in its buffers
            loss, gradients = self._gradient(rows[0], after)
            self._step(gradients)
            show(self.views, step=first + 1)
            show_each(self.views, gradient=gradients)
            if self.scheme.sends == "gradient_sum":
                show_each(self.views, gradient_sum=gradients)
            return loss

        # `stepped` is an empty list, or has one flag if the round may end early. False ends the loop, and its step does
        # not count.

        def step(t: Any, total: Any, sums: Any, stepped: Any) -> tuple[Any, Any, Any, Any]:
            show(self.views, step=first + tf.cast(t, tf.int64))
            loss, gradients, stepped = self._local_step(rows[t], t)
            sums = [a + g for a, g in zip(sums, gradients, strict=True)] if sums else []
            return t + (tf.cast(stepped[0], tf.int32) if stepped else 1), total + loss, sums, stepped

        def is_left(t: Any, total: Any, sums: Any, stepped: Any) -> Any:
            return reduce(tf.logical_and, stepped, t < tf.shape(rows)[0])

        with tf.control_dependencies([after]):
            nothing = [zeros(size) for size in self.buckets.sizes] if self.scheme.sends == "gradient_sum" else []
            start = tf.constant(0), tf.constant(0.0), nothing, [tf.constant(True)] if self.may_end else []
        # One iteration at a time: a step reads the variables that the one before has written.
        count, total, sums, _ = tf.while_loop(is_left, step, start, parallel_iterations=1)
        self._end_steps(first, count if self.may_end else tf.shape(rows, tf.int64)[0])
        if self.scheme.sends == "gradient_sum":
            show_each(self.views, gradient_sum=sums)
        return total

    def _local_step(self, rows: Any, t: Any) -> tuple[Any, list[Any], list[Any]]:
        """Build the local step `t`; returns its loss, its gradient in buckets, and no flag: each step is made."""
        loss, gradients = self._gradient(rows)
        self._step(gradients)
        return loss, gradients, []

    def _end_steps(self, first: Any, count: Any) -> None:
        """Set the number of the next step, once `count` steps from `first` are done."""
        show(self.views, step=first + tf.cast(count, tf.int64))

    def _step(self, gradients: Sequence[Any]) -> None:
        """Build the scheme's local step with a gradient, which is in buckets."""
        scheme = self._scheme_now()
        if len(gradients) > 1:
            # Update no variable before all gradients are computed: TensorFlow would copy a variable that the rest of
            # the backward pass still reads. The identities make the control edges wait, see `RoundTimer`.
            gradients = [tf.identity(gradient) for gradient in gradients]
        with tf.control_dependencies(gradients if len(gradients) > 1 else []):
            for view, gradient in zip(self.views, gradients, strict=True):
                scheme.local_step(view, gradient)
        self._count_step()

    def _count_step(self) -> None:
        if self.scheduled or self.is_center or self.averages:
            self.clock.assign_add(1)

    def _scheme_now(self) -> Scheme:
        """Return the scheme with its current learning rates."""
        return self.scheme.at(tf.cast(self.clock.read_value(), tf.float32)) if self.scheduled else self.scheme

    def _gradient(self, rows: Any, *after: Any) -> tuple[Any, list[Any]]:
        """Return loss and gradient (in buckets) on one batch; only the read of the parameters waits for `after`."""
        with tf.control_dependencies(after):
            point = [tf.identity(self.scheme.gradient_point(view)) for view in self.views]
        loss, gradient = self.replica.gradient(self.buckets.of_variables(point), rows)
        if weighs(self.scheme):
            self.views[0].count.assign(self.replica.count)
        return loss, self.buckets.from_variables(gradient)

    # The message, and the reply.

    def message(self, scheme: Scheme, begun: Any, total: Any = None) -> Message:
        """Build the message of the worker.

        Args:
            scheme: the algorithm, with its current learning rates.
            begun: start of the round, a tensor. The means of a message run in sequence, after those of the round
                before.
            total: the sum of the losses of the round, if they are known.

        Raises:
            UserError: the message does not have the scalars or the means that the scheme declares.
        """
        last = begun

        def mean(vector: Any) -> Any:
            nonlocal last
            with tf.control_dependencies([last]):
                last = scheme.sync.mean(self.ps, self.slot, tf.identity(vector))
            return last

        if total is not None:
            show(self.views, loss=total / self.views[0].steps)
        sizes = scheme.message_sizes(self.replica.model.shapes)
        show(self.views, mean=declared_means(scheme.name, sizes, mean))
        parts = [as_message(scheme.name, scheme.scalars, scheme.message(view)) for view in self.views]
        message = Message(joined([part.vector for part in parts]), parts[0].scalars)
        hide(self.views)
        if last is begun:
            return message
        # The exchange must follow every mean, also one whose result the message does not use: the queues between
        # workers identify tensors by their order alone.
        with tf.control_dependencies([last]):
            return tf.nest.map_structure(tf.identity, message)

    def on_reply(self, scheme: Scheme, reply: Any) -> None:
        """Build the use of a reply [P]."""
        hide(self.views)
        for view, part in zip(self.views, self.buckets.cut(reply), strict=True):
            scheme.on_reply(view, part)


def _variables(scheme: Scheme, name: str, size: int, center: Any = None) -> dict[str, Any]:
    """Make the parameters of a bucket and its local variables, by name; `center` serves as the parameters if given."""
    local = first_values(scheme.worker_variables, tf.zeros([size]))
    check_names(scheme.name, "local variable", local)
    params = tf.Variable(tf.zeros([size]), name=f"{name}_params") if center is None else center
    return {"params": params} | {key: tf.Variable(value, name=f"{name}_{key}") for key, value in local.items()}


def show(views: Iterable[Any], **attributes: Any) -> None:
    """Set the same attributes on the view of each bucket of a worker."""
    for view in views:
        vars(view).update(attributes)


def hide(views: Iterable[Any]) -> None:
    """Remove the attributes that only `Scheme.message` may read."""
    for view in views:
        for name in (*MESSAGE_ONLY, "mean"):
            vars(view).pop(name, None)


def show_each(views: Iterable[Any], **vectors: Sequence[Any]) -> None:
    """Set attributes that differ between the views: for each name, one vector for each bucket."""
    for name, parts in vectors.items():
        for view, part in zip(views, parts, strict=True):
            setattr(view, name, part)
