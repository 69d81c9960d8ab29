"""A file of a user, for `--import`: stale synchronous parallel with a rule of one's own, of public parts."""

from dataclasses import dataclass

import tensorflow as tf

from distsgd.common.contract import Count, Rate, Scheme, Synchronization, sgd


@dataclass(frozen=True)
class BoundedRounds(Synchronization):
    """A synchronization rule: no worker begins a round more than `slack` rounds ahead of the last."""

    slack: int = 1
    waits = True
    label = "bounded rounds"

    def variables(self, ps):
        return {**super().variables(ps), "clocks": tf.zeros([ps.num_workers], tf.int64)}

    def exchange(self, ps, slot, message):
        slot, slices = ps.center.receive(slot, message)
        with ps.event(slot, slices) as pushed:
            ps.apply(slot, slices)
            with tf.device(ps.devices[0]):
                clock = ps.variables.clocks.read_value()[slot.index] + 1
                noted = [
                    ps.slots.write(ps.variables.clocks, slot, clock),
                    ps.slots.write(ps.variables.arrived, slot, True),
                ]
                with tf.control_dependencies(noted):
                    self.release(ps)
        with ps.transactions.lock(after=[slot.sleep(after=[pushed.released])]):
            ps.center.note_pull(slot)
            replies = ps.center.each_slice(lambda part, _: part.center.read_value())
        return ps.center.reply(replies)

    def awaited(self, ps):
        clocks, waiting = ps.variables.clocks.read_value(), ps.variables.arrived.read_value()
        return ps.slots.active & (clocks + self.slack < tf.reduce_max(tf.where(waiting, clocks, 0)))

    def release(self, ps):
        clocks, waiting = ps.variables.clocks.read_value(), ps.variables.arrived.read_value()
        last = tf.reduce_min(tf.where(ps.slots.active & ~ps.slots.finished, clocks, clocks.dtype.max))
        free = waiting & (clocks - self.slack <= last)
        with tf.control_dependencies([ps.variables.arrived.assign(waiting & ~free)]):
            ps.wake(free)


@dataclass(frozen=True, kw_only=True)
class BoundedSGD(Scheme):
    """Every gradient is applied when it arrives, with bounded rounds."""

    name = "bounded_sgd"

    learning_rate: Rate = 0.1
    """Step size."""
    slack: Count = 1
    """Rounds that a worker may be ahead of the last."""

    @property
    def sync(self):
        return BoundedRounds(self.slack)

    def server_update(self, server, message, staleness):
        sgd(server.center, message / server.num_workers, self.learning_rate)
        return server.center
