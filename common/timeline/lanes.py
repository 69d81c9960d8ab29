"""A run as lanes: its rounds, each joined with its event on the ps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..record.round_log import FILE, UNKNOWN, load_rounds
from ..record_format import read_config, read_result, read_trace
from ..server.trace import ROUND, ends_round

TIMES = ROUND[2:]

# The parts of a round between two of its times; parts with an unknown time between them are merged.
PARTS = ("compute", "push", "wait", "pull")

BETWEEN = "between rounds"  # after a reply, until the worker's next round

COLUMNS = ("worker", "round", "event", "version", "after", "staleness", "accepted", *TIMES)

LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Tracks:
    """The rounds of a run.

    Attributes:
        name: path of the folder.
        algorithm: name of the algorithm.
        about: size of the run, in words.
        workers: number of lanes.
        ps: number of parameter server tasks.
        columns: integers, [n] for each name of `COLUMNS`: rounds, and joins of restarted workers, sorted by worker,
            then time. A message finds the center at `version` and leaves it at `after`. Times are microseconds since
            the first of the run; unknown values are -1.
        seconds: time from the first time to the last.
        notes: missing data, one sentence each.
    """

    name: str
    algorithm: str
    about: str
    workers: int
    ps: int
    columns: Mapping[str, np.ndarray]
    seconds: float
    notes: tuple[str, ...] = ()


def read_lanes(run_dir: Path, begin: float = 0.0, end: float | None = None) -> Tracks:
    """Read the rounds of a run that has ended, real or simulated.

    Args:
        run_dir: run directory.
        begin: seconds; rounds that ended before are left out.
        end: seconds; rounds that began later are left out.

    Raises:
        UserError: the trace is missing or damaged, or has no event in that time.
    """
    config = read_config(run_dir)
    trace = read_trace(run_dir, config)
    found = lanes_of(
        config["algorithm"],
        trace,
        _rounds(run_dir, config["workers"]),
        workers=config["workers"],
        ps=config["ps"],
        updates=read_result(run_dir)["updates"],
        name=str(run_dir),
        about=_about(config),
    )
    return within(found, begin, end)


def lanes_of(
    algorithm: str,
    trace: Mapping[str, np.ndarray],
    rounds: np.ndarray,
    *,
    workers: int,
    ps: int,
    updates: int | None,
    name: str = "",
    about: str = "",
) -> Tracks:
    """Join the rounds of a run with its events on the ps.

    Args:
        algorithm: its name.
        trace: events on the ps, as in `trace.npz`.
        rounds: rows of `rounds.npz`, [n, len(ROUND)].
        workers: W.
        ps: number of ps tasks.
        updates: version of the center at the end; None if it is unknown.
        name: folder of the run.
        about: size of the run, in words.

    Raises:
        UserError: the trace has no event.
    """
    rows, notes = _joined(trace, rounds, updates)
    times = rows[:, -len(TIMES) :]
    is_known = times != UNKNOWN
    if not is_known.any():
        raise UserError(f"nothing happened in the run in {name}: its trace is empty")
    times[is_known] -= times[is_known].min()
    first = np.where(is_known, times, LATEST).min(axis=1)
    columns: dict[str, np.ndarray] = dict(zip(COLUMNS, rows[np.lexsort((first, rows[:, 0]))].T, strict=True))
    return Tracks(name, algorithm, about, workers, ps, columns, float(times.max() / 1e6), notes)


def within(tracks: Tracks, begin: float, end: float | None) -> Tracks:
    """Return the rounds that overlap a time, in seconds.

    Raises:
        UserError: there is none.
    """
    times = np.stack([tracks.columns[name] for name in TIMES])
    first, last = np.where(times != UNKNOWN, times, LATEST).min(axis=0), times.max(axis=0)
    keep = (last >= begin * 1e6) & (first <= (tracks.seconds if end is None else end) * 1e6)
    if not keep.any():
        raise UserError(f"the run in {tracks.name} takes {tracks.seconds:.3f} s: it has no round in that time")
    return replace(tracks, columns={name: column[keep] for name, column in tracks.columns.items()})


def _about(config: Mapping[str, Any]) -> str:
    """Return the size of a run, in words."""
    workers, ps = config["workers"], config["ps"]
    where = "in virtual time" if config["backend"] == "simulation" else f"real, {config['backend']}"
    tasks = f"{workers:,} worker{'s' * (workers != 1)}, {ps or 'no'} parameter server{'s' * (ps > 1)}"
    return f"{tasks}; {config['dataset']}, {config['model']}; {where}"


def _rounds(run_dir: Path, workers: int) -> np.ndarray:
    """Return the rows of rounds.npz, [n, len(ROUND)]; none if the file is missing."""
    if not (run_dir / FILE).exists():
        return np.empty((0, len(ROUND)), np.int64)
    rows = load_rounds(run_dir)
    if not ((rows[:, 0] >= 0) & (rows[:, 0] < workers)).all():
        raise UserError(f"{FILE} is damaged: worker must be at least 0 and less than {workers}")
    return rows


def _joined(
    trace: Mapping[str, np.ndarray], rounds: np.ndarray, last: int | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return events with the times of their rounds, then rounds without an event, [n, len(COLUMNS)]; and notes.

    The center has version `last` at the end. A message leaves it at the version that the next one finds.
    """
    events = np.full((len(trace["worker"]), len(COLUMNS)), UNKNOWN, np.int64)
    for name in ("worker", "event", "version", "staleness", "accepted"):
        events[:, COLUMNS.index(name)] = trace[name]
    if len(events):
        events[:, COLUMNS.index("after")] = [*trace["version"][1:], UNKNOWN if last is None else last]
    is_round = ends_round(trace["event"])
    events[is_round, COLUMNS.index("round")] = _count(trace["worker"][is_round])
    arrived = COLUMNS.index("arrived")
    events[:, arrived] = trace["microseconds"]

    more = np.full((len(rounds), len(COLUMNS)), UNKNOWN, np.int64)
    for i, name in enumerate(ROUND):
        more[:, COLUMNS.index(name)] = rounds[:, i]
    row_of = {key: row for row, key in enumerate(map(tuple, events[:, :2].tolist())) if key[1] != UNKNOWN}
    event_rows = np.array([row_of.get(key, UNKNOWN) for key in map(tuple, rounds[:, :2].tolist())], np.int64)
    on_record = event_rows != UNKNOWN
    for name in TIMES:
        i = COLUMNS.index(name)
        stamped = on_record & (more[:, i] != UNKNOWN)
        events[event_rows[stamped], i] = more[stamped, i]
    notes = []
    if not len(rounds):
        notes.append(
            f"{FILE} is missing: only arrivals of messages are known, not when workers computed, waited and sent."
        )
    elif (without := int((events[is_round, COLUMNS.index("begun")] == UNKNOWN).sum())) > 0:
        notes.append(f"Rounds of which only the arrival of the message is known: {without:,} of {is_round.sum():,}.")
    if lost := int((~on_record).sum()):
        notes.append(f"Rounds that are not in the trace, as their messages were refused or undone: {lost:,}.")
    return np.concatenate([events, more[~on_record]]), tuple(notes)


def _count(worker: np.ndarray) -> np.ndarray:
    """Return for each event how many events of the same worker came before it."""
    order = np.argsort(worker, kind="stable")
    firsts = np.searchsorted(worker[order], worker[order])
    count = np.empty(len(worker), np.int64)
    count[order] = np.arange(len(worker)) - firsts
    return count
