"""A worker: its local variables, its local steps, and the round that every scheme shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import tensorflow as tf

from ..contract.fragments import fragments_of
from ..contract.rounds import Event
from ..contract.scheme import Scheme
from ..contract.seeded import uniform
from ..contract.views import MESSAGE_ONLY, Worker, check_names
from ..messages.codec import Codec
from ..messages.cut import joined
from ..messages.message import as_message, declared_means
from ..messages.ops import first_values, is_finite, when, zeros
from ..server.answers import Joined
from ..server.parameter_server import ParameterServer
from ..sync.store import Message, WorkerSlot
from .buckets import Buckets
from .replica import Replica
from .timing import RoundTimer, moment


class DenseWorker:
    """The local variables of one worker, and its round, built into the current graph.

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
        period, overlap, scheduled: those of the scheme, which a change of its learning rates leaves as they are.
        local: returns the local state to save, see `local_state`.

    Raises:
        UserError: a local variable has a name that cannot be used.
    """

    may_end = False  # a round may end before its last step

    def __init__(
        self, scheme: Scheme, replica: Replica, ps: ParameterServer, slot: WorkerSlot, name: str, seed: int = 0
    ):
        self.scheme, self.replica, self.ps, self.fed = scheme, replica, ps, replica.fed
        self.device, self.buckets = replica.devices[0], Buckets.of(scheme, replica)
        self.period, self.overlap, self.scheduled = scheme.period, scheme.overlap, scheme.scheduled
        sync = self.scheme.sync
        # Without a ps the parameters of the chief are the center. With gossip they are not: it is the workers' mean.
        self.is_center = not (sync.uses_ps or sync.gossips) and name == "worker_0"
        with tf.device(self.device):
            center = ps.slices[0].center if self.is_center else None
            sizes = enumerate(self.buckets.sizes)
            local = [_variables(scheme, f"{name}_{i}" if i else name, size, center) for i, size in sizes]
            self.clock = tf.Variable(tf.constant(0, tf.int64), name=f"{name}_clock")
            self.encoder = ps.center.encoder(f"{name}_codec")
            self.initialize = tf.group(self.clock.initializer, replica.initialize)  # `start` assigns the others
        self.slot, self.names = replace(slot, encoder=self.encoder), [*local[0]]
        known = {"index": slot.index, "num_workers": ps.num_workers, "shapes": replica.model.shapes}
        size = sum(self.buckets.sizes)
        known |= {"uniform": partial(uniform, seed, size), "fragments": fragments_of([size])[0]}
        self.local = partial(local_state, self)
        self.views: list[Any] = [Worker(**known, **variables) for variables in local]
        self.encoder.worker = self.views[0]

    def start(self, recorded: Any) -> Joined:
        """Take a slot and initialise the local variables from the center; returns the results of `join`."""
        with tf.device(self.device):
            center, state, admitted = self.ps.join(self.slot, recorded)
            for view, part in zip(self.views, self.buckets.cut(center), strict=True):
                if not self.is_center:
                    view.params.assign(part)
                for name, value in self.scheme.local_variables(part).items():
                    getattr(view, name).assign(value)
            self.encoder.begin_again()
            self.replica.state.assign(state)
        return admitted

    def rounds(self, rows: Any, event: Event, before: Any) -> Any:
        """Build several consecutive rounds into one call.

        Args:
            rows: the batches as numbers of examples, [rounds, steps, batch size].
            event: the event at the end of each round.
            before: rounds and local steps that the worker has done, then `RoundTimer.end` of its last round, [4] int64.

        Returns:
            for each round its mean loss and the number of its steps that were not dropped, [rounds, 2]; the end of the
            last round, [2].
        """
        with tf.device(self.device):
            results, now, end = [], moment(), before[2:]
            if self.scheme.exchange_first:  # the steps after a reply belong to the next message, so its round ...
                now = tf.where(end[1] < 0, now, end[1])  # ... begins with that reply; there is none before the first
            for r in range(rows.shape[0]):
                timer = RoundTimer(now, end)
                done = before[0] + r, before[1] + tf.shape(rows, tf.int64)[1] * r
                results.append(self.round(rows[r], event, timer, *done))
                now, end = timer.replied, timer.end
            return tf.stack(results), end

    def round(self, rows: Any, event: Event, timer: RoundTimer, number: Any, first: Any) -> Any:
        """Build one round; it calls a method for each form that a round may have.

        A scheme with `exchange_first` exchanges after the first gradient, so the steps between a reply and the next
        message belong to two rounds.

        Args:
            rows: the batches, [steps, batch size].
            event: the event at the end of the round.
            timer: takes the timestamps of the round.
            number: number of the round, from 0, an int64 scalar.
            first: number of its first local step, from 0, an int64 scalar.

        Returns:
            the mean loss of its steps and the number of its steps that were not dropped, [2].
        """
        scheme, ps, state = self._scheme_now(), self.ps, self.replica.state
        hide(self.views)
        steps = kept = tf.cast(tf.shape(rows)[0], tf.float32)
        show(self.views, steps=steps, round=number, step=first)
        if not scheme.sync.exchanges:
            total, kept = self._steps_alone(rows, timer, first)
        elif scheme.exchange_first:
            total, gradients = self._gradient(rows[0], timer.begun)  # at the parameters before the exchange
            self._meet_server(scheme, event, timer)
            self._step(gradients)
            if self.period > 1:
                total += self._local_steps(rows[1:], timer.replied, first + 1)
        elif scheme.sync.in_pairs:
            total = _round_in_pairs(self, scheme, rows, timer, first)
        elif not scheme.sync.uses_ps:
            total, fine = self._collective_round(scheme, rows, timer, first)
            kept *= tf.cast(fine, tf.float32)
        elif self.overlap:
            total = self._overlapped_round(scheme, rows, timer, first)
        else:
            total = self._local_steps(rows, timer.begun, first)
            self._meet_server(scheme, event, timer, total)
        if self.replica.model.state_size:
            state.assign(scheme.sync.share_state(ps, self.slot, state.read_value()))
        # A worker alone drops single steps, whose losses are not in `total`; others drop the round after its last step.
        return tf.stack([total / (steps if scheme.sync.exchanges else kept), kept])

    def _meet_server(self, scheme: Scheme, event: Event, timer: RoundTimer, total: Any = None) -> None:
        """Build the pull, push or exchange of a round; `total` is the sum of its losses, if its steps are done."""
        if event == "pull":
            with tf.control_dependencies([timer.send(total)]):
                center = self.ps.pull(replace(self.slot, times=timer.times))
            with timer.reply():
                self._on_reply(scheme, center)
            return
        message = timer.send(message_of(scheme, self, timer.begun, total))
        slot = replace(self.slot, times=timer.times)
        if event == "push":
            with timer.reply():  # a push has no reply; the next round waits for its acknowledgement
                scheme.sync.push(self.ps, slot, message)
            return
        reply = scheme.sync.exchange(self.ps, slot, message)
        with timer.reply():
            self._on_reply(scheme, reply)

    def _overlapped_round(self, scheme: Scheme, rows: Any, timer: RoundTimer, first: Any) -> Any:
        """Build a round whose last steps wait for nothing of the exchange: the message leaves, the worker computes."""
        total, reply = _sent_early(self, scheme, rows, timer, first, self.slot)
        with timer.reply(), tf.control_dependencies([total]):
            self._on_reply(scheme, reply)
        return total

    def _on_reply(self, scheme: Scheme, reply: Any) -> None:
        hide(self.views)
        for view, part in zip(self.views, self.buckets.cut(reply), strict=True):
            scheme.on_reply(view, part)

    # Rounds without a ps, which would refuse a message that is not finite: here the worker drops gradients or means.

    def _steps_alone(self, rows: Any, timer: RoundTimer, first: Any) -> tuple[Any, Any]:
        """Build the steps of a single worker; returns the sum of their losses, and their number.

        A step whose loss or gradient is not finite is dropped, and not counted.
        """

        def step(t: Any, total: Any, done: Any) -> tuple[Any, Any, Any]:
            state = self.replica.state.read_value()
            show(self.views, step=first + tf.cast(t, tf.int64))
            loss, (gradient,) = self._gradient(rows[t])
            fine = is_finite(gradient) & tf.math.is_finite(loss)
            stepped = when(fine, lambda: self._step_of_center(gradient, done + 1))
            self.replica.keep_state(fine, state)
            self.clock.assign_add(1)
            return t + 1, total + tf.where(fine, loss, 0.0), done + tf.cast(stepped, tf.int64)

        # The loop begins with these zeros. They wait for the timestamp, so the round's first step does, too.
        with tf.control_dependencies([timer.begun]):
            zero = tf.constant(0), tf.constant(0.0), tf.constant(0, tf.int64)
        number = tf.shape(rows)[0]
        # One iteration at a time: a step reads the variables that the one before has written.
        _, total, done = tf.while_loop(lambda t, *_: t < number, step, zero, parallel_iterations=1)
        done = timer.send(done)  # the time at which the last step is done: nothing is sent
        self.ps.journal.count_refused(self.slot, tf.cast(number, tf.int64) - done)
        with timer.reply(), tf.control_dependencies([done]):
            slot = replace(self.slot, times=timer.times)
            self.ps.record(self.ps.read_version(), slot, 0, accepted=True, locked=False)
        self.ps.count_updates(done)
        return total, tf.cast(done, tf.float32)

    def _step_of_center(self, gradient: Any, uncounted: Any) -> None:
        """Make a step of the center; `uncounted` steps of this round, with this one, are not in its version yet."""
        self._scheme_now().local_step(self.views[0], gradient)
        self.ps.center.after_update(self.ps.read_version() + uncounted, self.clock.read_value(), self.replica.state)

    def _collective_round(self, scheme: Scheme, rows: Any, timer: RoundTimer, first: Any) -> tuple[Any, Any]:
        """Build a round without a ps; returns the sum of the losses, and True if the worker has used the reply.

        A reply that is not finite is dropped: by all workers if they reduce, as then they have the same reply.
        """
        state, clock = self.replica.state.read_value(), self.clock.read_value()
        slot = replace(self.slot, round=self.views[0].round)
        if self.overlap:
            total, reply = _sent_early(self, scheme, rows, timer, first, slot)
        else:
            total = self._local_steps(rows, timer.begun, first)
            message = timer.send(message_of(scheme, self, timer.begun, total), in_parts=scheme.sync.buckets > 1)
            reply = scheme.sync.exchange(self.ps, replace(slot, times=timer.times), message)
        fine = scheme.sync.is_finite(self.ps, reply)

        def on_reply() -> None:
            self._on_reply(scheme, reply)
            if self.is_center:
                self.ps.center.after_update(self.ps.read_version(), clock, self.replica.state)

        with timer.reply():
            adopted = when(fine, on_reply)
        self.replica.keep_state(fine, state)
        if scheme.sync.gossips:
            rule: Any = scheme.sync  # a `Gossip`
            # Collect after the timestamp of the reply, for which the identities wait. Otherwise the collection could
            # run before it, and count as part of this round.
            parts = [joined([view.params.read_value() for view in self.views]), self.replica.state.read_value()]
            with tf.control_dependencies([timer.replied]):
                rule.collect(self.ps, slot, *map(tf.identity, parts), clock)
        return total, adopted

    # Local steps: a gradient on each batch, and the scheme's step with it.

    def _local_steps(self, rows: Any, after: Any, first: Any) -> Any:
        """Build a local step for each of `rows`, after the tensor `after`; returns the sum of the losses."""
        if self.period == 1:  # without a loop the message may be the gradient itself, in its buffers
            loss, gradients = self._gradient(rows[0], after)
            self._step(gradients)
            show(self.views, step=first + 1)
            show_each(self.views, gradient=gradients)
            if self.scheme.uses_gradient_sum:
                show_each(self.views, gradient_sum=gradients)
            return loss

        # `stepped` is empty, or has one flag if the round may end early: after False the loop ends, with a step less.

        def step(t: Any, total: Any, sums: Any, stepped: Any) -> tuple[Any, Any, Any, Any]:
            show(self.views, step=first + tf.cast(t, tf.int64))
            loss, gradients, stepped = self._local_step(rows[t], t)
            sums = [a + g for a, g in zip(sums, gradients, strict=True)] if sums else []
            return t + (tf.cast(stepped[0], tf.int32) if stepped else 1), total + loss, sums, stepped

        def is_left(t: Any, total: Any, sums: Any, stepped: Any) -> Any:
            return reduce(tf.logical_and, stepped, t < tf.shape(rows)[0])

        with tf.control_dependencies([after]):
            nothing = [zeros(size) for size in self.buckets.sizes] if self.scheme.uses_gradient_sum else []
            start = tf.constant(0), tf.constant(0.0), nothing, [tf.constant(True)] if self.may_end else []
        # One iteration at a time: a step reads the variables that the one before has written.
        made, total, sums, _ = tf.while_loop(is_left, step, start, parallel_iterations=1)
        self._end_steps(first, made if self.may_end else tf.shape(rows, tf.int64)[0])
        if self.scheme.uses_gradient_sum:
            show_each(self.views, gradient_sum=sums)
        return total

    def _local_step(self, rows: Any, t: Any) -> tuple[Any, list[Any], list[Any]]:
        """Build the local step `t`; returns its loss, its gradient in buckets, and no flag: each step is made."""
        del t
        loss, gradients = self._gradient(rows)
        self._step(gradients)
        return loss, gradients, []

    def _end_steps(self, first: Any, made: Any) -> None:
        """Set the number of the next step, once `made` steps from `first` are done."""
        show(self.views, step=first + tf.cast(made, tf.int64))

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
        if self.scheduled or self.is_center:
            self.clock.assign_add(1)

    def _scheme_now(self) -> Scheme:
        """Return the scheme with its current learning rates."""
        return self.scheme.at(tf.cast(self.clock.read_value(), tf.float32)) if self.scheduled else self.scheme

    def _gradient(self, rows: Any, *after: Any) -> tuple[Any, list[Any]]:
        """Return loss and gradient (in buckets) on one batch; only the read of the parameters waits for `after`."""
        with tf.control_dependencies(after):
            point = [tf.identity(self.scheme.gradient_point(view)) for view in self.views]
        loss, gradient = self.replica.gradient(self.buckets.of_variables(point), rows)
        return loss, self.buckets.from_variables(gradient)


def _variables(scheme: Scheme, name: str, size: int, center: Any = None) -> dict[str, Any]:
    """Make the parameters of a bucket and its local variables, by name; `center` serves as the parameters if given."""
    own = first_values(scheme.local_variables, tf.zeros([size]))
    check_names(scheme.name, "local variable", own)
    params = tf.Variable(tf.zeros([size]), name=f"{name}_params") if center is None else center
    return {"params": params} | {key: tf.Variable(value, name=f"{name}_{key}") for key, value in own.items()}


def _sent_early(worker: DenseWorker, scheme: Scheme, rows: Any, timer: RoundTimer, first: Any, slot: WorkerSlot) -> Any:
    """Build the steps of a round and its exchange before the last of them; returns the loss, and the reply."""
    before, total = tf.maximum(tf.shape(rows)[0] - worker.overlap, 0), tf.constant(0.0)
    if worker.overlap < worker.period:
        total = worker._local_steps(rows[:before], timer.begun, first)
    message = timer.send(message_of(scheme, worker, timer.begun))
    reply = scheme.sync.exchange(worker.ps, replace(slot, times=timer.times), message)
    rest = timer.overlap(worker._local_steps(rows[before:], timer.ready, first + tf.cast(before, tf.int64)))
    return total + rest, reply


def _round_in_pairs(worker: DenseWorker, scheme: Scheme, rows: Any, timer: RoundTimer, first: Any) -> Any:
    """Build a round at whose end a worker averages with a peer; what is not finite is refused. Returns the loss."""
    rule: Any = scheme.sync  # a `Pairs`
    total = worker._local_steps(rows, timer.begun, first)
    message = timer.send(message_of(scheme, worker, timer.begun, total))
    fine = is_finite(message) & tf.math.is_finite(total)
    slot = replace(worker.slot, times=timer.times, round=worker.views[0].round)
    with timer.reply(), tf.control_dependencies([worker.ps.transactions.check([fine])]):
        message = tf.nest.map_structure(tf.identity, message)
        rule.meet(worker.ps, slot, message, lambda reply: worker._on_reply(scheme, reply))
    if slot.index == 0:
        due = tf.equal((slot.round + 1) % rule.every(worker.ps.last_version), 0)
        with tf.control_dependencies([timer.replied]):
            when(due, lambda: rule.read_copies(worker.ps, slot))
    return total


def local_state(worker: DenseWorker) -> dict[str, list[Any]]:
    """Return the local state to save, which joining does not restore: variables in buckets or slices, by name.

    It has the variables of worker, codec and model. Joining sets the parameters to the newest center. So they are left
    out

    * if they are the center, or equal it after each round: every reply is the center, and a barrier meets all workers;
    * if they are an older center, and the worker has no other local state that belongs to it.

    The parameters of workers that gossip are never the center.
    """
    scheme, center, workers = worker.scheme, worker.ps.center, worker.views[0].num_workers
    adopts = type(scheme).on_reply is Scheme.on_reply and not scheme.sync.gossips
    adopts = adopts and "push" not in scheme.events and not scheme.exchange_first  # after a round they are its reply
    were_center = adopts and center.replies_center and type(scheme.reply_codec) is Codec
    own = {name: [getattr(view, name) for view in worker.views] for name in worker.names}
    params = {"params": own.pop("params")}
    own |= {f"codec.{name}": parts for name, parts in worker.encoder.local.items()} | worker.replica.local
    meets = workers == 1 or scheme.sync.meets(workers)
    return own if worker.is_center or (were_center and (meets or not own)) else params | own


def message_of(scheme: Scheme, worker: DenseWorker, begun: Any, total: Any = None) -> Message:
    """Build the message of a worker.

    Args:
        scheme: the algorithm, with its current learning rates.
        worker: the worker.
        begun: start of the round, a tensor. The means of a message run in sequence, after those of the round before.
        total: the sum of the losses of the round, if they are known.

    Raises:
        UserError: the message does not have the scalars or the means that the scheme declares.
    """
    last = begun

    def mean(vector: Any) -> Any:
        nonlocal last
        with tf.control_dependencies([last]):
            last = scheme.sync.mean(worker.ps, worker.slot, tf.identity(vector))
        return last

    if total is not None:
        show(worker.views, loss=total / worker.views[0].steps)
    show(worker.views, mean=declared_means(scheme.name, scheme.message_sizes(worker.replica.model.shapes), mean))
    parts = [as_message(scheme.name, scheme.scalars, scheme.message(view)) for view in worker.views]
    message = Message(joined([part.vector for part in parts]), parts[0].scalars)
    hide(worker.views)
    if last is begun:
        return message
    # The exchange must follow every mean, also one whose result the message does not use: the queues between workers
    # identify tensors by their order alone.
    with tf.control_dependencies([last]):
        return tf.nest.map_structure(tf.identity, message)


def show(views: Iterable[Any], **known: Any) -> None:
    """Set the same attributes on the view of each bucket of a worker."""
    for view in views:
        vars(view).update(known)


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
