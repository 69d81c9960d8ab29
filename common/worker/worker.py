"""A worker whose steps have a copy of the parameters: its round, which every scheme shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..contract.seen import of_round
from ..messages.cut import joined, parts_of
from ..messages.ops import is_finite, when
from ..server.answers import Joined
from ..server.parameter_server import ParameterServer
from ..server.slices import move_average
from ..sync.store import WorkerSlot
from .replica import Replica
from .timing import RoundTimer, moment
from .worker_rules import WorkerRules, hide, show


class DenseWorker(WorkerRules):
    """One worker, and its round, built into the current graph; its arguments are those of `WorkerRules`."""

    def __init__(self, scheme: Scheme, replica: Replica, ps: ParameterServer, slot: WorkerSlot, name: str, seed: int):
        with tf.device(replica.devices[0]):
            self.encoder = ps.center.encoder(f"{name}_codec")
        super().__init__(scheme, replica, ps, replace(slot, encoder=self.encoder), name, seed)
        self.encoder.worker = self.views[0]
        with tf.device(self.device):
            self.initialize = tf.group(self.clock.initializer, replica.initialize)  # `start` assigns the others
        self.fed = replica.fed

    def start(self, recorded: Any) -> Joined:
        """Take a slot and initialise the local variables from the center; returns the results of `join`."""
        with tf.device(self.device):
            center, state, admitted = self.ps.join(self.slot, recorded)
            for view, part in zip(self.views, self.buckets.cut(center), strict=True):
                if not self.is_center:
                    view.params.assign(part)
                for name, value in self.scheme.worker_variables(part).items():
                    getattr(view, name).assign(value)
            for average, part in zip(self.averages, self.buckets.cut(center), strict=False):
                average.assign(part)
            self.encoder.begin_again()
            self.replica.state.assign(state)
        return admitted

    def rounds(self, rows: Any, kind: str, before: Any) -> Any:
        """Build several consecutive rounds of one kind into one call.

        Args:
            rows: the batches as numbers of examples, [rounds, steps, batch size].
            kind: the name of their kind, see `Scheme.kinds`.
            before: rounds and local steps that the worker has done, then `RoundTimer.end` of its last round, [4] int64.

        Returns:
            for each round its mean loss and the number of its steps that were not dropped, [rounds, 2]; the end of the
            last round, [2].
        """
        with tf.device(self.device):
            results, now, end = [], moment(), before[2:]
            for r in range(rows.shape[0]):
                timer = RoundTimer(now, end)
                done = before[0] + r, before[1] + tf.shape(rows, tf.int64)[1] * r
                results.append(self.round(rows[r], kind, timer, *done))
                now, end = timer.replied, timer.end
            return tf.stack(results), end

    def round(self, rows: Any, kind: str, timer: RoundTimer, number: Any, first: Any) -> Any:
        """Build one round; it calls a method for each form that a round may have.

        Args:
            rows: the batches, [steps, batch size].
            kind: the name of its kind.
            timer: takes the timestamps of the round.
            number: number of the round, from 0, an int64 scalar.
            first: number of its first local step, from 0, an int64 scalar.

        Returns:
            the mean loss of its steps and the number of its steps that were not dropped, [2].
        """
        scheme, ps, state = self._scheme_now(), self.ps, self.replica.state
        state_before = state.read_value()
        hide(self.views)
        steps = kept = tf.cast(tf.shape(rows)[0], tf.float32)
        show(self.views, **of_round(kind, steps, number, first))
        if not scheme.sync.exchanges:
            total, kept = self._steps_alone(rows, timer, first)
        elif scheme.sync.in_pairs:
            total = self._round_in_pairs(scheme, rows, timer, first)
        elif not scheme.sync.uses_ps:
            total, fine = self._collective_round(scheme, rows, timer, first)
            kept *= tf.cast(fine, tf.float32)
        elif self.overlap:
            total = self._overlapped_round(scheme, rows, timer, first, self._slot_of(kind))
        else:
            total = self.local_steps(rows, timer.begun, first)
            self._meet_server(scheme, kind, timer, total)
        if self.replica.model.state_size:
            if scheme.sync.most_left_out(ps.num_workers):  # a hostile worker's statistics would be part of their mean
                self.replica.keep_state(tf.reduce_all(tf.math.is_finite(state)), state_before)
            state.assign(scheme.sync.share_state(ps, self.slot, state.read_value()))
        # A worker alone drops single steps, whose losses are not in `total`; others drop the round after its last step.
        return tf.stack([total / (steps if scheme.sync.exchanges else kept), kept])

    def _meet_server(self, scheme: Scheme, kind: str, timer: RoundTimer, total: Any) -> None:
        """Build the pull, push or exchange of a round; `total` is the sum of its losses."""
        ends_with = scheme.kinds[kind]
        if not ends_with.sends:
            with tf.control_dependencies([timer.send(total)]):
                center = self.ps.pull(replace(self.slot, times=timer.times))
            with timer.reply():
                self.on_reply(scheme, center)
            return
        gradient, message = self._last_gradient(), self.message(scheme, timer.begun, total)
        message = timer.send(message, after=gradient)
        slot = replace(self._slot_of(kind), times=timer.times)
        if not ends_with.answered:
            with timer.reply():  # a push has no reply; the next round waits for its acknowledgement
                scheme.sync.push(self.ps, slot, message)
            return
        reply = scheme.sync.exchange(self.ps, slot, message)
        with timer.reply():
            self.on_reply(scheme, reply)

    def _slot_of(self, kind: str) -> WorkerSlot:
        """Return the slot with the codecs of a kind of rounds; those of the server may be others than the scheme's."""
        message, reply = self.scheme.codecs(kind)
        return replace(self.slot, codecs=(message if self.scheme.kinds[kind].codec else self.encoder.codec, reply))

    def _overlapped_round(self, scheme: Scheme, rows: Any, timer: RoundTimer, first: Any, slot: WorkerSlot) -> Any:
        """Build a round whose message leaves before its last steps, which run during the exchange; return the loss."""
        total, reply = self._sent_early(scheme, rows, timer, first, slot)
        with timer.reply(), tf.control_dependencies([total]):
            self.on_reply(scheme, reply)
        return total

    def _sent_early(self, scheme: Scheme, rows: Any, timer: RoundTimer, first: Any, slot: WorkerSlot) -> Any:
        """Build steps and exchange of a round, with `overlap` steps after the message; return loss and reply."""
        before, total = tf.maximum(tf.shape(rows)[0] - self.overlap, 0), tf.constant(0.0)
        if self.overlap < self.period:
            total = self.local_steps(rows[:before], timer.begun, first)
        message = timer.send(self.message(scheme, timer.begun))
        reply = scheme.sync.exchange(self.ps, replace(slot, times=timer.times), message)
        rest = timer.overlap(self.local_steps(rows[before:], timer.ready, first + tf.cast(before, tf.int64)))
        return total + rest, reply

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
            self.ps.journal.record(self.ps.center.read_version(), slot, 0, accepted=True, locked=False)
        self.ps.center.count_updates(done)
        return total, tf.cast(done, tf.float32)

    def _step_of_center(self, gradient: Any, uncounted: Any) -> None:
        """Make a step of the center; `uncounted` steps of this round, with this one, are not in its version yet."""
        self._scheme_now().local_step(self.views[0], gradient)
        self.ps.center.after_update(
            self.ps.center.read_version() + uncounted, self.clock.read_value(), self.replica.state
        )

    def _collective_round(self, scheme: Scheme, rows: Any, timer: RoundTimer, first: Any) -> tuple[Any, Any]:
        """Build a round without a ps; returns the sum of the losses, and True if the worker has used the reply.

        A reply that is not finite is dropped: by all workers if they reduce, as then they have the same reply.
        """
        state, clock = self.replica.state.read_value(), self.clock.read_value()
        slot = replace(self.slot, round=self.views[0].round)
        if self.overlap:
            total, reply = self._sent_early(scheme, rows, timer, first, slot)
        else:
            total = self.local_steps(rows, timer.begun, first)
            gradient, message = self._last_gradient(), self.message(scheme, timer.begun, total)
            message = timer.send(message, in_parts=scheme.sync.buckets > 1, after=gradient)
            reply = scheme.sync.exchange(self.ps, replace(slot, times=timer.times), message)
        fine = scheme.sync.is_finite(self.ps, reply)

        def on_reply() -> None:
            self.on_reply(scheme, reply)
            decay: Any = self.ps.center.ema_decay
            for average, view in zip(self.averages, self.views, strict=False):
                move_average(average, view.params, decay, clock)
            if self.is_center:
                self.ps.center.after_update(self.ps.center.read_version(), clock, self.replica.state)

        with timer.reply():
            adopted = when(fine, on_reply)
        self.replica.keep_state(fine, state)
        if scheme.sync.gossips:
            rule: Any = scheme.sync  # a `Gossip`
            # Collect after the timestamp of the reply, for which the identities wait. Otherwise the collection could
            # run before it, and count as part of this round.
            parts = self._collected()
            with tf.control_dependencies([timer.replied]):
                rule.collect(self.ps, slot, *map(tf.identity, parts))
        return total, adopted

    def _last_gradient(self) -> list[Any]:
        """Return the parts of the gradient of a single step, after which a message without it leaves."""
        holds_it = type(self.scheme).message is Scheme.message and self.scheme.sends != "params"
        return [] if self.period > 1 or holds_it else _parts([view.gradient for view in self.views])

    def _collected(self) -> list[Any]:
        """Read what worker 0 collects: the parameters with their average, if there is one, and the state."""
        kept = *(view.params for view in self.views), *self.averages
        return [joined([vector.read_value() for vector in kept]), self.replica.state.read_value()]

    def collect(self, rounds: Any) -> None:
        """Build the last collection of workers that gossip, after so many rounds of this worker."""
        rule: Any = self.scheme.sync
        if not rule.in_pairs:
            rule.collect(self.ps, replace(self.slot, round=rounds - 1), *self._collected(), tf.constant(True))
        elif self.slot.index == 0:
            rule.read_copies(self.ps, self.slot)

    def _round_in_pairs(self, scheme: Scheme, rows: Any, timer: RoundTimer, first: Any) -> Any:
        """Build a round that ends with an average with a peer; a message that is not finite is refused."""
        rule: Any = scheme.sync  # a `Pairs`
        total = self.local_steps(rows, timer.begun, first)
        gradient, message = self._last_gradient(), self.message(scheme, timer.begun, total)
        message = timer.send(message, after=gradient)
        fine = is_finite(message) & tf.math.is_finite(total)
        slot = replace(self.slot, times=timer.times, round=self.views[0].round)
        with timer.reply(), tf.control_dependencies([self.ps.transactions.check([fine])]):
            message = tf.nest.map_structure(tf.identity, message)
            rule.meet(self.ps, slot, message, lambda reply: self.on_reply(scheme, reply))
        if slot.index == 0:
            due = tf.equal((slot.round + 1) % rule.every(self.ps.last_version), 0)
            with tf.control_dependencies([timer.replied]):
                when(due, lambda: rule.read_copies(self.ps, slot))
        return total

    def local(self) -> dict[str, list[Any]]:
        """Return the local state to save, which joining does not restore: variables in buckets or slices, by name.

        It has the variables of worker, codec and model. Joining sets the parameters to the newest center. So they are
        left out

        * if they are the center, or equal it after each round: every reply is the center, and a barrier meets all
          workers;
        * if they are an older center, and the worker has no other local state that belongs to it.

        The parameters of workers that gossip are never the center.
        """
        variables = {name: [getattr(view, name) for view in self.views] for name in self.names}
        params = {"params": variables.pop("params")}
        variables |= {f"codec.{name}": parts for name, parts in self.encoder.local.items()} | self.replica.local
        variables |= {"moving.average": self.averages} if self.averages else {}
        workers = self.views[0].num_workers
        all_meet = workers == 1 or self.scheme.sync.meets(workers)
        restored = self.is_center or (self._ends_at_a_center() and (all_meet or not variables))
        return variables if restored else params | variables

    def _ends_at_a_center(self) -> bool:
        """Return True if the parameters are a center after each round, perhaps an older one: the reply, as it came."""
        scheme = self.scheme
        has_reply = "push" not in scheme.events and not scheme.sync.gossips
        keeps_it = type(scheme).on_reply is Scheme.on_reply
        return has_reply and keeps_it and self.ps.center.replies_center and not self.ps.center.encodes_replies


def _parts(gradients: Sequence[Any]) -> list[Any]:
    """Return the tensors of which vectors are concatenations, and those that are none."""
    return [part for gradient in gradients for part in parts_of(gradient) or [gradient]]
