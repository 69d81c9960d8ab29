"""The timeline of a run: its rounds, the trace, the picture."""

import gzip
import io
import itertools
import json
import re

import numpy as np
import pytest

from distsgd.algorithms import AllReduce, AsyncSGD, SyncSGD
from distsgd.common.cli.main import dispatch
from distsgd.common.errors import UserError
from distsgd.common.record_format import EVENTS, RECORD, read_result
from distsgd.common.server.trace import ROUND
from distsgd.common.timeline.lanes import COLUMNS, PARTS, TIMES, read_lanes
from distsgd.common.timeline.picture import SCALE, last_of_scale
from distsgd.common.timeline.trace_export import write_trace
from runs import change, record

START = 1_795_000_000_000_000  # microseconds: a real clock

# Three rounds of two workers: (version, worker, staleness, accepted, microseconds, event), in order.
TRACE = [
    (0, 1, 0, 1, 1_100, 0),
    (1, 0, 1, 1, 2_000, 0),
    (2, 1, 1, 1, 2_500, 3),
    (2, 1, 0, 0, 3_000, 0),
]
# worker, round, begun, ready, computed, arrived, released, replied
ROUNDS = [
    (0, 0, 0, 1_500, 1_500, 2_000, 2_000, 2_400),
    (1, 0, 0, 1_000, 1_000, 1_100, 1_900, 2_000),
    (1, 1, 2_600, 2_900, 2_900, 3_000, -1, 3_500),
]
CONFIG = {"algorithm": "async_sgd", "workers": 2, "ps": 1, "dataset": "digits", "model": "mlp"}
CONFIG |= {"backend": "processes", "record": "full"}


def save(folder, trace=TRACE, rounds=ROUNDS, start=START, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "result.json").write_text(json.dumps({"updates": int(len(trace) and trace[-1][0] + trace[-1][3])}))
    trace, rounds = np.array(trace, np.int64).reshape(-1, len(RECORD)), np.array(rounds, np.int64)
    trace[:, RECORD.index("microseconds")] += start
    np.savez(folder / "trace.npz", **dict(zip(RECORD, trace.T, strict=True)))
    if len(rounds):
        rounds[:, 2:] = np.where(rounds[:, 2:] < 0, -1, rounds[:, 2:] + start)
        np.savez(folder / "rounds.npz", **dict(zip(ROUND, rounds.T, strict=True)))
    return folder


def rows(columns):
    return list(zip(*(np.asarray(columns[name]).tolist() for name in COLUMNS), strict=True))


def many(folder, workers, rounds, waits):
    """A run of workers that all take 10 ms a round, the last one three times as long; `waits` if all wait for it."""
    trace, log = [], []
    for r in range(rounds):
        for k in range(workers):
            length = 10_000 + 40 * k + 20_000 * (k == workers - 1)
            begun = r * (32_000 + 40 * workers) if waits else r * (length + 2_000)
            arrived = begun + length + 1_000
            released = begun + 31_000 + 40 * (workers - 1) if waits else arrived
            log.append((k, r, begun, begun + length, begun + length, arrived, released, released + 1_000))
            trace.append((0, k, 0, 1, arrived, 0))
    trace.sort(key=lambda event: event[4])
    read = dict.fromkeys(range(workers), 0)
    for n, (_, k, _, _, arrived, _) in enumerate(trace):
        version = n // workers if waits else n
        trace[n] = (version, k, version - read[k], 1, arrived, 0)
        read[k] = version + 1
    return save(folder, trace, log, workers=workers, algorithm="sync_sgd" if waits else "async_sgd")


# The lanes.


def test_each_event_is_joined_with_the_stamps_of_its_round(tmp_path):
    run = read_lanes(save(tmp_path / "run"))
    names = ("worker", "round", "event", "version", "after", "staleness", "accepted")
    assert names + TIMES == COLUMNS
    assert rows(run.columns) == [
        (0, 0, 0, 1, 2, 1, 1, 0, 1_500, 1_500, 2_000, 2_000, 2_400),
        (1, 0, 0, 0, 1, 0, 1, 0, 1_000, 1_000, 1_100, 1_900, 2_000),
        (1, -1, 3, 2, 2, 1, 1, -1, -1, -1, 2_500, -1, -1),  # joined again: no round
        (1, 1, 0, 2, 2, 0, 0, 2_600, 2_900, 2_900, 3_000, -1, 3_500),
    ]
    assert (run.seconds, run.notes, run.workers) == (0.0035, (), 2)
    assert run.about == "2 workers, 1 parameter server; digits, mlp; real, processes"
    assert EVENTS[3] == "join"


def test_rounds_without_an_event_and_events_without_a_round_are_told(tmp_path):
    run = read_lanes(save(tmp_path / "run", rounds=[*ROUNDS[:2], (0, 1, 2_500, 2_900, -1, -1, -1, -1)]))
    assert rows(run.columns)[1] == (0, 1, -1, -1, -1, -1, -1, 2_500, 2_900, -1, -1, -1, -1)
    assert run.notes == (
        "Rounds of which only the arrival of the message is known: 1 of 3.",
        "Rounds that are not in the trace, as their messages were refused or undone: 1.",
    )


# What is wrong is one line.


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "not a run directory: it has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{}"), "not those of a run: they have no 'record'"),
        (lambda folder: (folder / "result.json").unlink(), "cannot read .*result.json"),
        (lambda folder: (folder / "trace.npz").unlink(), "has no trace.npz: it ended without a result"),
        (lambda folder: (folder / "trace.npz").write_bytes(b"PK"), "cannot read .*trace.npz"),
        (lambda folder: change(folder, "trace.npz", more=[1]), "trace.npz is damaged: it needs the columns version"),
        (lambda folder: change(folder, "trace.npz", worker=[0, 1, 2, 0]), "trace.npz is damaged: worker must be"),
        (lambda folder: change(folder, "rounds.npz", worker=[0, 1, 2]), "rounds.npz is damaged: worker must be"),
        (lambda folder: (folder / "rounds.npz").write_bytes(b"PK"), "cannot read .*rounds.npz, which is damaged"),
    ],
)
def test_what_is_no_record_of_a_run_is_refused_in_one_line(tmp_path, spoil, message):
    folder = save(tmp_path / "run")
    spoil(folder)
    with pytest.raises(UserError, match=message):
        read_lanes(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no such folder"),
        (["off"], "recorded with record=off"),
        (["empty"], "its trace is empty"),
        (["run", "run", "run"], "one run, or two to compare. Received: 3"),
        (["run", "--begin", "5"], "takes 0.004 s: it has no round in that time"),
        (["run", "--begin", "2", "--end", "1"], "--end must be later than --begin"),
        (["run", "--picture", "a.jpg"], "ends in .png, .svg or .pdf"),
        (["run", "--output", "no/where.json"], "cannot write no/where.json"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "run")
    save(tmp_path / "off", record="off")
    save(tmp_path / "empty", (), ())
    with pytest.raises(Exception, match=message):
        dispatch(["timeline", *arguments])


# The trace.


def traced(*runs):
    """Return the events of a trace, which is JSON in the strict sense."""
    written = io.BytesIO()
    write_trace(runs, written)
    return parsed(written.getvalue())


def parsed(text):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    trace = json.loads(text, parse_constant=refuse)
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]


def chosen(events, *phases, **wanted):
    return [event for event in events if event["ph"] in phases and wanted.items() <= event.items()]


NEEDED = {
    "M": {"name", "args"},
    "X": {"name", "ts", "dur", "tid", "args"},
    "i": {"name", "ts", "tid", "s", "args"},
    "s": {"name", "cat", "id", "ts", "tid"},
    "f": {"name", "cat", "id", "ts", "tid"},
    "C": {"name", "ts", "args"},
}


def check_format(events):
    """Check what the format asks of events, alone and on each thread."""
    threads, arrows = {}, {}
    for event in events:
        assert event.keys() >= NEEDED[event["ph"]] | {"pid"}, event
        assert type(event["pid"]) is int
        assert all(type(event[key]) is int and event[key] >= 0 for key in ("ts", "dur", "tid") if key in event), event
        if event["ph"] in ("s", "f"):
            arrows.setdefault(event["id"], []).append(event)
        elif event["ph"] in ("X", "i"):
            threads.setdefault((event["tid"], event["ph"]), []).append(event)
        assert event["ph"] != "C" or all(type(value) is int for value in event["args"].values())
    for (tid, _), found in threads.items():
        assert chosen(events, "M", tid=tid, name="thread_name", pid=found[0]["pid"])
        for before, after in itertools.pairwise(found):
            assert before["ts"] + before.get("dur", 0) <= after["ts"]
    for start, end in arrows.values():
        assert (start["ph"], end["ph"]) == ("s", "f")
        assert start["ts"] <= end["ts"]
        assert all(start[key] == end[key] for key in ("name", "cat", "pid"))


def test_a_trace_shows_each_part_of_a_round_with_versions_and_seconds(tmp_path):
    events = traced(read_lanes(save(tmp_path / "run")))
    check_format(events)
    told = {
        "round": 0, "version found": 1, "version after": 2, "version pulled": 0, "staleness": 1, "dropped": False,
    }  # fmt: skip
    seconds = {"compute": 0.0015, "push": 0.0005, "pull": 0.0004}
    compute, push, pull = bars = chosen(events, "X", tid=2)
    assert [(bar["name"], bar["ts"], bar["dur"]) for bar in bars] == [
        ("compute", 0, 1_500), ("push", 1_500, 500), ("pull", 2_000, 400),
    ]  # fmt: skip
    assert compute["args"] == push["args"] == pull["args"] == told | {"seconds": seconds}
    (arrival,) = chosen(events, "i", ts=2_000)
    assert (arrival["name"], arrival["tid"], arrival["args"]) == ("exchange", 1, {"worker": 0} | told)
    arrows = [(event["name"], event["ph"], event["ts"], event["tid"]) for event in chosen(events, "s", "f")]
    assert arrows[:4] == [
        ("message", "s", 1_000, 3), ("message", "f", 1_100, 1), ("message", "s", 1_500, 2), ("message", "f", 2_000, 1),
    ]  # fmt: skip
    # Worker 1: its second message was dropped, and when it was released is not known.
    assert [bar["name"] for bar in chosen(events, "X", tid=3)] == [
        "compute", "push", "wait", "pull", "compute", "push", "wait + pull",
    ]  # fmt: skip
    assert [bar["cname"] for bar in chosen(events, "X", name="compute")] == ["bad", "good", "terrible"]
    (join,) = chosen(events, "i", name="join")
    assert join["args"] == {"worker": 1, "version found": 2, "version after": 2}


def test_the_counter_follows_the_version_of_the_center(tmp_path):
    events = traced(read_lanes(save(tmp_path / "run")))
    counted = [(event["ts"], event["args"]["version"]) for event in chosen(events, "C")]
    assert counted == [(1_100, 1), (2_000, 2), (2_500, 2), (3_000, 2)]


@pytest.mark.parametrize(
    ("scheme", "backend"), [(AsyncSGD(), "threads"), (SyncSGD(), "simulation"), (AllReduce(), "simulation")]
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_the_trace_of_a_run_has_the_seconds_of_its_rounds(tmp_path, scheme, backend):
    record(scheme, tmp_path / "run", workers=3, backend=backend, steps=12, hidden=(4,))
    events = traced(read_lanes(tmp_path / "run"))
    check_format(events)
    with np.load(tmp_path / "run" / "rounds.npz") as file:
        rounds = dict(file)
    for name, first, last in zip(PARTS, (TIMES[0], *TIMES[2:]), TIMES[2:], strict=False):
        assert (rounds[first] >= 0).all()
        spent = sum(bar["dur"] for bar in chosen(events, "X", name=name))
        assert spent == (rounds[last] - rounds[first]).sum(), name
    with np.load(tmp_path / "run" / "trace.npz") as trace:
        assert len(chosen(events, "i")) == len(trace["version"])
    assert chosen(events, "C")[-1]["args"]["version"] == read_result(tmp_path / "run")["updates"] > 0
    (named,) = chosen(events, "M", name="process_name")
    assert named["args"]["name"].startswith(f"{scheme.name}: 3 workers, ")
    assert named["args"]["name"].endswith("in virtual time" if backend == "simulation" else "real, threads")


def test_a_round_computes_until_the_last_step_that_overlaps_its_message(tmp_path):
    trace, rounds = [(0, 0, 0, 1, 1_200, 0)], [(0, 0, 0, 1_000, 1_500, 1_200, 1_600, 1_900)]
    events = traced(read_lanes(save(tmp_path / "run", trace, rounds)))
    bars = [(bar["name"], bar["ts"], bar["dur"]) for bar in chosen(events, "X")]
    assert bars == [("compute", 0, 1_500), ("wait", 1_500, 100), ("pull", 1_600, 300)]


def test_two_runs_are_two_processes_whose_threads_differ(tmp_path):
    runs = [read_lanes(many(tmp_path / name, 4, 5, waits)) for name, waits in (("a", True), ("b", False))]
    events = traced(*runs)
    check_format(events)
    names = chosen(events, "M", name="process_name")
    assert [name["args"]["name"].split(":")[0] for name in names] == ["sync_sgd", "async_sgd"]
    threads = [{event["tid"] for event in events if event["pid"] == name["pid"] and "tid" in event} for name in names]
    assert [len(found) for found in threads] == [5, 5]
    assert not threads[0] & threads[1]
    labels = [event["args"]["name"] for event in chosen(events, "M", name="thread_name")]
    assert labels == 2 * ["parameter server", *(f"worker {k}" for k in range(4))]


def test_a_reply_leads_from_the_last_arrival_to_the_next_slice(tmp_path):
    """Where times are equal, the order in the file tells a viewer which slices an arrow connects."""
    events = traced(read_lanes(many(tmp_path / "run", 4, 5, waits=True)))
    kinds = [(event["ph"], event["name"]) for event in events]
    replies = [i for i, kind in enumerate(kinds) if kind == ("s", "reply")]
    assert len(replies) == 4 * (5 - 1)  # that of the last round leads nowhere
    assert max(i for i, kind in enumerate(kinds) if kind == ("i", "exchange")) < min(replies)
    for i in replies:
        assert kinds[i - 1 : i + 3] == [("X", "pull"), ("s", "reply"), ("f", "reply"), ("X", "between rounds")]
        pull, start, end, between, compute = events[i - 1 : i + 4]
        assert pull["tid"] == end["tid"] == between["tid"] == compute["tid"]
        assert (between["ts"], between["ts"] + between["dur"]) == (end["ts"], compute["ts"])
        assert (start["ts"], end["ts"]) == (pull["ts"], pull["ts"] + pull["dur"])
        assert [event["tid"] for event in chosen(events, "i", ts=start["ts"])] == [start["tid"]]


def test_a_trace_without_rounds_shows_arrivals_alone(tmp_path):
    events = traced(read_lanes(save(tmp_path / "run", rounds=())))
    check_format(events)
    assert not chosen(events, "X", "s", "f")
    assert [event["ts"] for event in chosen(events, "i")] == [0, 900, 1_400, 1_900]


def test_a_message_between_servers_is_of_a_region_and_no_worker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, more in ("plain", []), ("apart", [(2, 1, 0, 0, 3_200, EVENTS.index("up"))]):
        save(tmp_path / name, [*TRACE, *more])
        assert dispatch(["timeline", name, "--picture", f"{name}.svg"]) == 0
    (up,) = chosen(traced(read_lanes(tmp_path / "apart")), "i", name="up")
    assert up["args"]["region"] == 1
    assert "worker" not in up["args"]
    plain, apart = ((tmp_path / f"{name}.svg").read_text().count('id="patch') for name in ("plain", "apart"))
    assert plain == apart


def test_a_part_of_a_run_has_whole_rounds_and_arrows(tmp_path):
    folder = many(tmp_path / "run", 4, 50, waits=False)
    whole, part = traced(read_lanes(folder)), traced(read_lanes(folder, 0.1, 0.2))
    check_format(part)
    assert 0 < len(part) < len(whole) / 2
    known = {json.dumps(event) for event in whole if event["ph"] in "XiC"}
    assert {json.dumps(event) for event in part if event["ph"] in "XiC"} < known
    assert all(bar["ts"] + bar["dur"] >= 90_000 and bar["ts"] <= 235_000 for bar in chosen(part, "X"))


@pytest.mark.parametrize("arrived", [500, 1_700])
def test_an_arrival_by_another_clock_stays_within_its_round(tmp_path, arrived):
    trace, rounds = (
        [(0, 0, 0, 1, arrived, 0)],
        [(0, 0, 0, 1_000, 1_000, arrived, arrived, 1_500), (0, 1, 1_510, 1_520, -1, -1, -1, -1)],
    )
    events = traced(read_lanes(save(tmp_path / "run", trace, rounds)))
    check_format(events)
    assert sum(bar["dur"] for bar in chosen(events, "X") if bar["args"]["round"] == 0) == 1_500
    assert [event["ts"] for event in chosen(events, "i")] == [arrived]


def test_a_trace_is_written_one_event_at_a_time(tmp_path):
    class Chunks(list):
        write = list.append

    chunks = Chunks()
    write_trace([read_lanes(many(tmp_path / "run", 4, 500, waits=False))], chunks)
    assert len(chunks) > 10_000
    assert max(map(len, chunks)) < 1_000


def test_the_command_writes_a_trace_and_says_where_to_open_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a", algorithm='own & "odd" \\ ü')
    save(tmp_path / "b", rounds=())
    assert dispatch(["timeline", "a", "b"]) == 0
    written, where, missing = capsys.readouterr().out.splitlines()
    assert written == "a/trace.json"
    assert "Perfetto" in where
    assert "chrome://tracing" in where
    assert missing.startswith("b: rounds.npz is missing")
    events = parsed((tmp_path / "a" / "trace.json").read_bytes())
    assert chosen(events, "M", name="process_name")[0]["args"]["name"].startswith('own & "odd" \\ ü: 2 workers')
    assert dispatch(["timeline", "a", "b", "--output", "both.json.gz"]) == 0
    assert parsed(gzip.decompress((tmp_path / "both.json.gz").read_bytes())) == events


# The picture.


def test_the_scale_ends_where_one_message_in_a_hundred_is_later(tmp_path):
    late = [(i, 0, 40 if i == 7 else i % 5, 1, i, 0) for i in range(500)]
    assert last_of_scale([read_lanes(save(tmp_path / "run", late, ()))]) == 4
    assert last_of_scale([read_lanes(save(tmp_path / "fresh", TRACE[:1], ()))]) == 1


def test_the_colours_are_told_apart_by_their_lightness_alone():
    """All workers then add to it: it rises in steps of one size."""
    rgb = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in SCALE]) / 255
    light = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92) @ [0.2126, 0.7152, 0.0722]
    steps = np.diff(116 * np.cbrt(light) - 16)
    assert steps.min() > 0.6 * steps.max() > 0


def test_a_picture_of_two_runs_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a")
    many(tmp_path / "b", 30, 20, waits=True)
    assert dispatch(["timeline", "a", "b", "--output", "both.json", "--picture", "both.svg"]) == 0
    assert capsys.readouterr().out.splitlines()[::2] == ["both.json", "both.svg"]
    svg = (tmp_path / "both.svg").read_text()
    assert svg.startswith("<?xml")
    assert "http" not in re.sub(r'xmlns\S*="[^"]*"|<!DOCTYPE[^>]*>|<metadata>.*?</metadata>', "", svg, flags=re.DOTALL)


def test_a_picture_of_stale_messages_has_a_scale_whose_name_fits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for waits in (True, False):
        many(tmp_path / str(waits), 2, 5, waits)
        assert dispatch(["timeline", str(waits), "--picture", f"{waits}.svg"]) == 0
    alone, stale = ((tmp_path / f"{waits}.svg").read_text() for waits in (True, False))
    assert "<!-- staleness -->" not in alone
    height = float(re.search(r'height="([\d.]+)pt"', stale)[1])
    name = stale[stale.index("<!-- staleness -->") :]
    at = float(re.search(r"translate\([\d.]+ ([\d.]+)\) rotate\(-90\)", name)[1])  # where it begins, below
    assert at - 5 * len("staleness") > 0
    assert at < height
