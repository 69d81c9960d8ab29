"""The mutations of `mutants.py`: each changes one place, and the tests that are about it must turn red."""

from __future__ import annotations

from dataclasses import dataclass

PS, GATES = "common/parameter_server.py", "common/gates.py"
SERVER = "tests/test_server.py::test_"


@dataclass(frozen=True)
class Mutation:
    """A single change: the old text must be in the file exactly once."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str


MUTATIONS = [
    Mutation(
        "no passes",
        PS,
        "right = tf.reduce_all(tf.equal(here, seat.passport))",
        "right = tf.constant(True)",
        (SERVER + "a_message_of_whoever_sat_there_before_is_refused_and_leaves_no_trace",),
        "what a predecessor has sent is folded, although its rounds are done again",
    ),
    Mutation(
        "old tokens",
        GATES,
        "void = seat.tokens.dequeue_many(seat.tokens.size())",
        "void = seat.tokens.size()",
        (SERVER + "a_token_for_whoever_sat_there_before_is_void",),
        "a worker that comes back goes through the barrier alone",
    ),
    Mutation(
        "pull without the lock",
        PS,
        """        with self.event(seat):
            version = self.read_version()
            self.record(version, seat, self.staleness(version, seat), accepted=False, event="pull")""",
        """        with nullcontext():
            version = self.read_version()
            self.record(version, seat, self.staleness(version, seat), accepted=False, event="pull")""",
        (SERVER + "every_event_reads_and_writes_the_global_variables_under_the_lock_and_nowhere_else",),
        "a worker goes on from a center that never was",
    ),
]

# Changes that look like faults, and are none.
EQUIVALENT: dict[str, str] = {}
