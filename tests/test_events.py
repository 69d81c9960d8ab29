"""The events of a run: counted right, in a file that survives, in memory that does not grow."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from distsgd.common.errors import CannotWrite
from distsgd.common.record import event_log as module
from distsgd.common.record.event_log import EventLog, Tally
from distsgd.common.record_format import EVENTS, RECORD
from distsgd.common.server.trace import ROW

WORKERS = 3


def some_events(number: int, seed: int = 0, staleness: int = 20) -> np.ndarray:
    rng = np.random.default_rng(seed)
    columns = {
        "version": np.arange(number),
        "worker": rng.integers(0, WORKERS, number),
        "staleness": rng.integers(0, staleness, number),
        "accepted": rng.integers(0, 2, number),
        "microseconds": np.arange(number) * 500,
        "event": rng.integers(0, len(EVENTS), number),
    }
    times = {name: np.arange(number) * 500 for name in ROW if name not in columns}
    return np.stack([(columns | times)[name] for name in ROW], 1).astype(np.int64)


def kept(log: EventLog) -> np.ndarray:
    return np.concatenate([np.zeros((0, len(ROW)), np.int64), *log.chunks()])


def figures(tally: Tally) -> dict:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(tally).items()}


def tally_of(events: np.ndarray) -> dict:
    """One event after the other."""
    found = Tally(WORKERS)
    for version, worker, staleness, accepted, _, kind, *_ in events.tolist():
        found.events += 1
        found.version = max(found.version, version)
        found.kinds[kind] += 1
        if EVENTS[kind] in ("exchange", "push", "pull"):
            found.rounds[worker] += 1
        if accepted:
            found.accepted[worker] += 1
            found.staleness[staleness] += 1
            found.staleness_sum += staleness
            found.staleness_max = max(found.staleness_max, staleness)
        elif EVENTS[kind] in ("exchange", "push"):
            found.dropped += 1
    return figures(found)


def test_events_are_counted_as_one_by_one():
    events, tally = some_events(5000), Tally(WORKERS)
    for part in np.split(events, [0, 1, 7, 4000]):
        tally.add(part)
    assert figures(tally) == tally_of(events)


def test_a_histogram_of_large_staleness_stays_small_and_nearly_exact():
    events, tally = some_events(300_000, staleness=10**9), Tally(WORKERS)
    tally.add(events)
    accepted = events[events[:, RECORD.index("accepted")] == 1, RECORD.index("staleness")]
    assert len(tally.staleness) < module.EXACT
    assert (tally.staleness.total(), tally.staleness_max) == (len(accepted), accepted.max())
    assert tally.staleness_mean == pytest.approx(accepted.mean(), rel=1e-12)
    assert sum(t * n for t, n in tally.staleness.items()) == pytest.approx(accepted.sum(), rel=0.01)
    below = Counter(accepted[accepted < module.EXACT].tolist())
    assert {t: n for t, n in tally.staleness.items() if t < module.EXACT} == below


@pytest.mark.rotating
def test_memory_does_not_grow_with_the_record(tmp_path):
    """The whole log was in memory, and at the end twice more; to count it again took six microseconds an event."""
    events = some_events(200_000)
    log = EventLog(tmp_path, WORKERS)
    for _ in range(5):
        log.append(events)
    tracemalloc.start()
    try:
        again = EventLog(tmp_path, WORKERS)
        again.append(events[:1000])
        again.save(tmp_path / "trace.npz")
        again.truncate(7, 900_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * module.CHUNK * module.ROW_BYTES < (tmp_path / "events.bin").stat().st_size
    assert again.tally.events == len(again) == len(kept(again)) == 900_000


def test_the_trace_is_what_numpy_would_have_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 7)
    events, log = some_events(100), EventLog(tmp_path, WORKERS)
    for part in np.split(events, [0, 30, 31]):
        log.append(part)
    log.save(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz", allow_pickle=False) as trace:
        assert np.array_equal(np.stack([trace[name] for name in RECORD], 1), events[:, : len(RECORD)])
        assert {array.dtype for array in trace.values()} == {np.dtype(np.int64)}


def test_what_a_restoration_undoes_is_not_counted_any_more(tmp_path):
    events, log = some_events(100), EventLog(tmp_path, WORKERS)
    log.append(events)
    assert log.truncate(restoration=5, length=60) == (40, 0)
    log.append(events[80:])
    expected = np.concatenate([events[:60], events[80:]])
    for read in (log, EventLog(tmp_path, WORKERS)):
        assert read.restoration == 5
        assert np.array_equal(kept(read), expected)
        assert figures(read.tally) == tally_of(expected)


def test_an_event_log_on_a_full_disk_has_what_it_had(tmp_path, monkeypatch):
    events, log = some_events(100), EventLog(tmp_path, WORKERS)
    log.append(events[:50])
    with monkeypatch.context() as patch:
        patch.setattr(module, "flush", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(CannotWrite, match="No space"):
            log.append(events[50:70])
    log.append(events[70:])
    for read in (log, EventLog(tmp_path, WORKERS)):
        assert np.array_equal(kept(read)[:80], np.concatenate([events[:50], events[70:]]))
    assert figures(log.tally) == tally_of(np.concatenate([events[:50], events[70:]]))


@pytest.fixture
def short(tmp_path):
    """A log that keeps the last 100 to 200 of 1000 events, and these events."""
    events, log = some_events(1000), EventLog(tmp_path, WORKERS, keep=100)
    for part in np.array_split(events, 37):
        log.append(part)
    return log, events


def test_where_the_record_is_off_a_file_of_bounded_size_counts_all(short, tmp_path):
    log, events = short
    assert len(log) == 1000
    for read in (log, EventLog(tmp_path, WORKERS, keep=100)):
        assert 100 <= len(kept(read)) <= 200
        assert np.array_equal(kept(read), events[-len(kept(read)) :])
        assert figures(read.tally) == tally_of(events)


def test_with_record_off_a_restoration_is_exact_within_the_kept_events(short, tmp_path):
    log, events = short
    assert log.truncate(restoration=5, length=930) == (70, 0)
    for read in (log, EventLog(tmp_path, WORKERS, keep=100)):
        assert figures(read.tally) == tally_of(events[:930])


def test_with_record_off_a_restoration_beyond_kept_events_returns_excess(short, tmp_path):
    log, events = short
    gone = 1000 - len(kept(log))
    assert log.truncate(restoration=5, length=500)[1] == gone - 500
    log.append(events[:10])
    for read in (log, EventLog(tmp_path, WORKERS, keep=100)):
        assert (len(read), len(kept(read)), read.tally.events) == (510, 10, 510)
        assert read.tally.rounds.sum() == sum(tally_of(events[:gone])["rounds"]) + sum(tally_of(events[:10])["rounds"])
    assert log.truncate(restoration=6, length=0)[1] == 0
    assert figures(log.tally) == figures(EventLog(tmp_path, WORKERS, keep=100).tally) == tally_of(events[:0])


def test_a_log_lost_while_shortening_its_file_counts_each_event_once(short, tmp_path, monkeypatch):
    log, events = short
    more = some_events(200, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(EventLog, "_forget", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            log.append(more)
    read = EventLog(tmp_path, WORKERS, keep=100)
    assert len(kept(read)) == 100
    assert figures(read.tally) == tally_of(np.concatenate([events, more]))
