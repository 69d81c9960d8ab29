"""The messages between the servers of regions in a recorded run."""

from __future__ import annotations

from dataclasses import replace

from ..record_format import BETWEEN_SERVERS, EVENTS
from .recorded import Hyperparameters, RecordedRun, must


def of_workers(run: RecordedRun) -> RecordedRun:
    """Return the run without these messages."""
    from_workers = run.trace["event"] < BETWEEN_SERVERS
    return replace(run, trace={name: column[from_workers] for name, column in run.trace.items()})


def between_servers(run: RecordedRun, scheme: Hyperparameters) -> dict[int, list[tuple[str, int]]] | None:
    """Return these messages, as "up" or "down" and their region, by the number of workers' events before them.

    Returns None of a run in which they take no time, and so are no events.

    Raises:
        ValueError: one was merged before the messages of workers that it needs, or before the one that it answers.
    """
    if not run.servers_apart:
        return None
    found: dict[int, list[tuple[str, int]]] = {}
    since, is_up, before = [0] * scheme.regional_servers, [False] * scheme.regional_servers, 0
    for k, event in zip(run.order, run.trace["event"].tolist(), strict=True):
        if event < BETWEEN_SERVERS:
            before += 1
            since[k % len(since)] += EVENTS[event] != "join"
            continue
        is_reply = EVENTS[event] == "down"
        needed = scheme.moves_per_merge + (scheme.merge_delay if is_reply else 0)
        fits = k < len(since) and is_up[k] == is_reply and since[k] >= needed
        must(fits, "when servers exchanged their models")
        found.setdefault(before, []).append((EVENTS[event], k))
        is_up[k], since[k] = not is_reply, 0 if is_reply else since[k]
    return found
