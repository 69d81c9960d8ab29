"""A run in virtual time."""

from typing import Any

from distsgd.common.cluster.platform import Platform
from distsgd.common.contract.scheme import Scheme
from distsgd.simulator.virtual_time.schedule import EventLoop, EventSchedule


def happens(scheme: Scheme, workers=4, steps=10, seed=0, size=1e6, rounds: Any = None, **options: Any) -> EventSchedule:
    """Return the events of a run on machines that the other options describe; messages and replies have one size."""
    own = {name: options.pop(name) for name in ("ps", "stop_at_version", "reply_bytes", "apart") if name in options}
    rounds = scheme.rounds(steps) if rounds is None else rounds
    sizes = {"message_bytes": size, "reply_bytes": size}
    return EventLoop(scheme, Platform(**options), workers=workers, rounds=rounds, seed=seed, **sizes | own).run()
