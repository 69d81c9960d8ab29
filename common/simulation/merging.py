"""Merging of the messages of a simulated run into the center, one after the other, by the rules of the real server."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..messages.codec import Codec
from ..server.center import Center
from ..server.slices import Row
from .batched_workers import BatchedWorkers
from .program import Do

Action = Callable[
    [Any, Any, Any], None
]  # arguments: worker (of `CLOSE`: number of messages), its clock and steps, place in the outbox


class Merging:
    """The effects of actions on the center and the workers.

    Args:
        scheme: the algorithm.
        center: the center of the run.
        lanes: the workers.
        kinds: the kinds of actions that occur, of `Do`.
        places: the most messages that are computed and not yet merged.

    Attributes:
        outbox: messages that are computed and not yet merged, [places, P + m].
        inbox: the sum of the messages of a set, [P + m].
        at_once: True if messages of a set are only added: then the inbox receives them as soon as they are computed.
        kinds: the kinds of actions with an effect.
        adopts_later: True if workers may adopt the reply to their set as late as in the computation of the next round.
    """

    def __init__(self, scheme: Scheme, center: Center, lanes: BatchedWorkers, kinds: Collection[int], places: int):
        self.scheme, self.center, self.lanes, self.part = scheme, center, lanes, center.slices[0]
        size = center.sizes[0]
        in_sets = scheme.gate.exchanges and scheme.gate.set_size(center.num_workers) is not None
        self.drops = Do.LEAVE in kinds
        self.adopts_later = in_sets and self.part.anchors is None and not lanes.model.state_size
        self.at_once = in_sets and type(scheme).weigh is Scheme.weigh and type(scheme.codec) is Codec
        long = size + len(scheme.scalars)
        self.inbox = tf.Variable(tf.zeros([long]), name="inbox")
        self.outbox = tf.Variable(tf.zeros([0 if self.at_once else places, long]), name="outbox")
        self.reply = tf.Variable(tf.zeros([size]), name="reply")
        self.kinds = sorted(kind for kind in kinds if kind in self._actions())

    def keep(self, places: Any, messages: Any, counts: Any) -> None:
        """Store computed messages [B, P + m], each in its place; `counts` is False for those that will be dropped."""
        if self.at_once:
            counting = tf.where(counts[:, None], messages, 0.0) if self.drops else messages
            self.inbox.assign_add(tf.reduce_sum(counting, 0))
        else:
            Row(self.outbox, places).assign(messages)

    def run(self, do: Any, workers: Any, when: Any, places: Any) -> Any:
        """Build the execution of actions, one after the other; return their number."""
        if not (kinds := self.kinds):
            return tf.constant(0)

        def body(i: Any) -> Any:
            def branch(kind: int) -> Callable[[], Any]:
                def act() -> Any:
                    self._actions()[kind](workers[i], when[i], places[i])
                    return tf.constant(1)

                return act

            if len(kinds) == 1:
                return i + branch(kinds[0])()
            which = tf.searchsorted(kinds, do[i : i + 1])[0]
            return i + tf.switch_case(which, [branch(kind) for kind in kinds])

        return tf.while_loop(lambda i: i < tf.shape(do)[0], body, [tf.constant(0)], parallel_iterations=1)[0]

    def _actions(self) -> dict[int, Action]:
        actions: dict[int, Action] = {
            Do.FOLD: self._fold,
            Do.PUSH: self._push,
            Do.PULL: self._pull,
            Do.READ: self._read,
            Do.START: self._start,
            Do.CLOSE: self._close,
        }
        return actions if self.at_once else actions | {Do.ARRIVE: self._arrive}

    def _received(self, worker: Any, place: Any) -> Any:
        """Return a message after encoding and decoding by the codec."""
        cells = self.lanes.cells(worker)
        kept = SimpleNamespace(**cells["codec"])
        encoder = SimpleNamespace(encode=lambda message: [self.scheme.codec.encode(message, kept)])
        slot: Any = SimpleNamespace(index=worker, encoder=encoder)
        message = self.center.receive(slot, Row(self.outbox, place).read_value())[0]
        self.lanes.keep(worker, cells)
        return message

    def _merged(self, worker: Any, place: Any) -> Any:
        """Merge a message into the center; return the reply."""
        center, sender = self.center, _slot(worker)
        message = self._received(worker, place)
        version = center.read_version()
        staleness = tf.cast(center.staleness(version, sender), tf.float32)
        completes = center.count_message(True)
        reply = tf.convert_to_tensor(center.merge(self.part, message, staleness, version, sender, completes))
        center.count_updates(completes)
        return center.reply([reply])

    def _fold(self, worker: Any, now: Any, place: Any) -> None:
        reply = self._merged(worker, place)
        self.center.note_pull(_slot(worker))
        self.lanes.adopt_one(worker, now, reply)
        self.lanes.share_state(worker)

    def _push(self, worker: Any, now: Any, place: Any) -> None:
        del now
        self._merged(worker, place)
        self.lanes.share_state(worker)

    def _pull(self, worker: Any, now: Any, place: Any) -> None:
        del place
        self.center.note_pull(_slot(worker))
        self.lanes.adopt_one(worker, now, self.part.center.read_value())
        self.lanes.share_state(worker)

    def _read(self, worker: Any, now: Any, place: Any) -> None:
        del place
        self.center.note_pull(_slot(worker))
        self.lanes.adopt_one(worker, now, self.center.reply(self.center.read()))
        self.lanes.share_state(worker)

    def _start(self, worker: Any, now: Any, place: Any) -> None:
        del now, place
        self.center.note_pull(_slot(worker))
        self.lanes.start_one(worker, self.part.center.read_value())

    def _arrive(self, worker: Any, now: Any, place: Any) -> None:
        del now
        message = self._received(worker, place)
        sender = _slot(worker)
        self.inbox.assign_add(self.center.weigh(self.part, message, tf.constant(0.0), sender))

    def _close(self, messages: Any, now: Any, place: Any) -> None:
        """Merge the mean of a set into the center."""
        del place
        center, version = self.center, self.center.read_version()
        mean = self.inbox / tf.cast(messages, tf.float32)
        reply = tf.convert_to_tensor(center.merge(self.part, mean, tf.constant(0.0), version))
        self.reply.assign(center.reply([reply]))
        self.inbox.assign(tf.zeros_like(self.inbox))
        if not self.scheme.gate.uses_ps:  # the parameters of worker 0 are the center
            self._follow_worker_0(now)
        center.count_updates(1)

    def _follow_worker_0(self, now: Any) -> None:
        cells = self.lanes.cells(0)
        self.lanes.scheme_at(now[0]).adopt(self.lanes.view(cells, 0, now, done=True), self.reply.read_value())
        self.part.center.assign(cells["params"].read_value())
        self.part.move_average(now[0])

    def adopt(self, workers: Any, when: Any, *, number: int | None) -> Any:
        """Let these workers, [number], adopt the reply to their set."""
        workers, when = tf.ensure_shape(workers, [number]), tf.ensure_shape(when, [number, 3])
        self.lanes.adopt(workers, when, self.reply.read_value())
        self.lanes.share_state(workers)
        anchors = self.part.anchors
        if anchors is not None:
            ones = tf.ones_like(tf.cast(workers, tf.float32))
            Row(anchors, workers).assign(ones[:, None] * self.part.center.read_value())
        return tf.size(workers)


def _slot(worker: Any) -> Any:
    """Return a stand-in for a worker's slot with the attribute that the center uses."""
    return SimpleNamespace(index=worker)
