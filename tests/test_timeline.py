"""The timeline of a run: its lanes, the page, and what a browser makes of it."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from browser import COMMAND, Browser, CannotStart
from distsgd.common.cli.main import dispatch
from distsgd.common.engine.trace import EVENTS, RECORD, ROUND
from distsgd.common.errors import UserError
from distsgd.common.timeline import lanes, page
from distsgd.common.timeline.colours import SCALE, last_of_scale
from distsgd.common.timeline.lanes import COLUMNS, STAMPS, read_lanes

ROOT = Path(__file__).resolve().parent.parent
START = 1_795_000_000_000_000  # microseconds: a real clock

# Three rounds of two workers: (version, worker, staleness, accepted, microseconds, event), in order.
TRACE = [
    (0, 1, 0, 1, 1_100, 0),
    (1, 0, 1, 1, 2_000, 0),
    (2, 1, 1, 1, 2_500, 3),
    (2, 1, 0, 0, 3_000, 0),
]
# worker, round, begun, ready, arrived, released, replied
ROUNDS = [
    (0, 0, 0, 1_500, 2_000, 2_000, 2_400),
    (1, 0, 0, 1_000, 1_100, 1_900, 2_000),
    (1, 1, 2_600, 2_900, 3_000, -1, 3_500),
]
CONFIG = {"algorithm": "async_sgd", "workers": 2, "ps": 1, "dataset": "digits", "model": "mlp", "backend": "processes"}


def save(folder, trace=TRACE, rounds=ROUNDS, start=START, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    trace, rounds = np.array(trace, np.int64).reshape(-1, len(RECORD)), np.array(rounds, np.int64)
    trace[:, RECORD.index("microseconds")] += start
    np.savez(folder / "trace.npz", **dict(zip(RECORD, trace.T, strict=True)))
    if len(rounds):
        rounds[:, 2:] = np.where(rounds[:, 2:] < 0, -1, rounds[:, 2:] + start)
        np.savez(folder / "rounds.npz", **dict(zip(ROUND, rounds.T, strict=True)))
    return folder


def embedded(html):
    """What the page was told, its columns as they were."""
    told = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)[1])
    for run in told["runs"]:
        run["columns"] = {name: np.cumsum(steps).tolist() for name, steps in run["columns"].items()}
    return told


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
            released = begun + 31_000 + 40 * workers if waits else arrived
            log.append((k, r, begun, begun + length, arrived, released, released + 1_000))
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
    names = ("worker", "round", "event", "version", "staleness", "accepted")
    assert names + STAMPS == COLUMNS
    assert rows(run.columns) == [
        (0, 0, 0, 1, 1, 1, 0, 1_500, 2_000, 2_000, 2_400),
        (1, 0, 0, 0, 0, 1, 0, 1_000, 1_100, 1_900, 2_000),
        (1, -1, 3, 2, 1, 1, -1, -1, 2_500, -1, -1),  # joined again: no round
        (1, 1, 0, 2, 0, 0, 2_600, 2_900, 3_000, -1, 3_500),
    ]
    assert (run.seconds, run.notes, run.workers) == (0.0035, (), 2)
    assert run.about == "2 workers, 1 parameter server; digits, mlp; real, processes"
    assert EVENTS[3] == "join"


def test_a_run_without_rounds_is_drawn_from_its_trace_and_says_what_is_missing(tmp_path):
    run = read_lanes(save(tmp_path / "run", rounds=()))
    assert run.columns["arrived"].tolist() == [900, 0, 1_400, 1_900]  # since the first
    assert all((run.columns[name] == -1).all() for name in STAMPS if name != "arrived")
    assert run.shares is None
    assert run.notes == (
        "There is no rounds.npz: when workers computed, waited and sent is not known, only when messages came.",
    )


def test_rounds_without_an_event_and_events_without_a_round_are_told(tmp_path):
    run = read_lanes(save(tmp_path / "run", rounds=[*ROUNDS[:2], (0, 1, 2_500, 2_900, -1, -1, -1)]))
    assert rows(run.columns)[1] == (0, 1, -1, -1, -1, -1, 2_500, 2_900, -1, -1, -1)
    assert run.notes == (
        "Rounds of which only the moment is known at which the message came: 1 of 3.",
        "Rounds that are not on record, as their messages were refused or undone: 1.",
    )


def test_where_workers_exchange_first_what_they_compute_after_the_reply_is_in_the_next_message(tmp_path):
    later = [(1, 1, 0, 1, 9_000, 0), (1, 0, 0, 1, 9_500, 0)]
    rounds = [*ROUNDS[:2], (1, 1, 8_000, 8_500, 9_000, 9_000, 9_100), (0, 1, 7_000, 9_000, 9_500, 9_500, 9_600)]
    folder = save(tmp_path / "run", TRACE[:2] + later, rounds, algorithm="easgd")
    assert read_lanes(folder).columns["begun"].tolist() == [0, 7_000, 0, 8_000]
    run = read_lanes(folder, exchange_first={"easgd"})
    assert run.columns["begun"].tolist() == [0, 2_400, 0, 2_000]
    assert run.shares.compute > read_lanes(folder).shares.compute
    assert read_lanes(folder, exchange_first={"aeasgd"}).columns["begun"].tolist() == [0, 7_000, 0, 8_000]


@pytest.mark.parametrize(
    ("rounds", "begun"),
    [
        ([(0, 0, 0, 10, 20, 20, 30), (0, 2, 60, 70, 80, 80, 90)], [0, 60]),  # round 1 is not on record
        ([(0, 0, 0, 10, 20, 20, -1), (0, 1, 60, 70, 80, 80, 90)], [0, 60]),  # its reply was lost
        ([(0, 0, 0, 10, 20, 20, 30), (1, 1, 60, 70, 80, 80, 90)], [0, 60]),  # of another worker
        ([(1, 1, 60, 70, 80, 80, 90), (0, 1, 50, 60, 70, 70, 80), (1, 0, 5, 10, 20, 20, 30)], [50, 5, 30]),
    ],
)
def test_a_round_that_exchanges_first_begins_with_the_reply_of_the_round_before_and_of_no_other(rounds, begun):
    rows = lanes._since_reply(np.array(rounds, np.int64))
    assert rows[:, ROUND.index("begun")].tolist() == begun


def test_of_a_long_run_a_part_is_shown_that_can_be_chosen(tmp_path, monkeypatch):
    folder = many(tmp_path / "run", 4, 50, waits=False)
    whole = read_lanes(folder)
    part = read_lanes(folder, 0.1, 0.2)
    begun, replied = (part.columns[name] for name in ("begun", "replied"))
    assert replied.min() >= 100_000
    assert begun.max() <= 200_000
    assert len(begun) == ((whole.columns["replied"] >= 100_000) & (whole.columns["begun"] <= 200_000)).sum()
    assert part.seconds == whole.seconds
    monkeypatch.setattr(lanes, "MOST", 60)
    first = read_lanes(folder)
    latest = np.sort(whole.columns["begun"])[60]
    assert len(first.columns["worker"]) == (whole.columns["begun"] < latest).sum() <= 60
    assert re.fullmatch(r"Only the 60 first of 200 rounds are here, up to [\d.]+ s: .*", first.notes[0])


def test_the_scale_ends_where_one_message_in_a_hundred_is_later(tmp_path):
    late = [(i, 0, 40 if i == 7 else i % 5, 1, i, 0) for i in range(500)]
    assert last_of_scale([read_lanes(save(tmp_path / "run", late, ()))]) == 4
    assert last_of_scale([read_lanes(save(tmp_path / "fresh", TRACE[:1], ()))]) == 1


def test_the_colours_are_told_apart_by_their_lightness_alone():
    """By everybody, then: it rises in steps of one size."""
    rgb = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in SCALE]) / 255
    light = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92) @ [0.2126, 0.7152, 0.0722]
    steps = np.diff(116 * np.cbrt(light) - 16)
    assert steps.min() > 0.6 * steps.max() > 0


# What is wrong is one line.


def changed(name, **columns):
    def change(folder):
        with np.load(folder / name) as file:
            found = dict(file) | {key: np.array(value) for key, value in columns.items()}
        np.savez(folder / name, **found)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "not a run directory: it has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{}"), "not those of a run: they have no 'workers'"),
        (lambda folder: (folder / "trace.npz").unlink(), "has no trace.npz: it came to no result"),
        (lambda folder: (folder / "trace.npz").write_bytes(b"PK"), "cannot read .*trace.npz"),
        (changed("trace.npz", more=[1]), "trace.npz is damaged: it needs the columns version"),
        (changed("trace.npz", worker=[0, 1, 2, 0]), "trace.npz is damaged: worker must be .* less than 2"),
        (changed("rounds.npz", worker=[0, 1, 2]), "rounds.npz is damaged: worker must be .* less than 2"),
        (lambda folder: (folder / "rounds.npz").write_bytes(b"PK"), "cannot read .*rounds.npz, which is damaged"),
    ],
)
def test_what_is_no_record_of_a_run_is_refused_in_one_line(tmp_path, change, message):
    folder = save(tmp_path / "run")
    change(folder)
    with pytest.raises(UserError, match=message) as error:
        read_lanes(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no such folder"),
        (["off"], "recorded with record=off"),
        (["empty"], "its trace is empty"),
        (["run", "run", "run"], "two above each other. Received: 3"),
        (["run", "--begin", "5"], "takes 0.004 s: there is nothing in that time"),
        (["run", "--begin", "2", "--end", "1"], "--end must be later than --begin"),
        (["run", "--picture", "a.jpg"], "ends in .png or .svg"),
        (["run", "--output", "no/where.html"], "cannot write no/where.html"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "run")
    save(tmp_path / "off", record="off")
    save(tmp_path / "empty", (), ())
    with pytest.raises(Exception, match=message) as error:
        dispatch(["timeline", *arguments])
    assert "\n" not in str(error.value)


# The page.


def test_the_command_writes_one_file_that_asks_nothing_of_others(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a")
    save(tmp_path / "b", algorithm="</script><b>own & odd")
    assert dispatch(["timeline", "a", "b"]) == 0
    assert capsys.readouterr().out == "a/timeline.html\n"
    html = (tmp_path / "a" / "timeline.html").read_text()
    assert not re.search(r"https?:|//\w|@import|url\((?!data:)|\b(src|href)=\"(?!data:)|fetch\(|import\(", html)
    assert html.count("<script") == html.count("</script>") == 2
    assert "{{" not in html
    told = embedded(html)
    assert [run["algorithm"] for run in told["runs"]] == ["async_sgd", "</script><b>own & odd"]
    for run, folder in zip(told["runs"], "ab", strict=True):
        assert rows(run["columns"]) == rows(read_lanes(tmp_path / folder).columns)
    assert told["runs"][0]["shares"] == read_lanes(tmp_path / "a").shares.as_dict()


def test_a_picture_of_two_runs_is_drawn_without_a_browser(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a")
    many(tmp_path / "b", 30, 20, waits=True)
    assert dispatch(["timeline", "a", "b", "--output", "both.html", "--picture", "both.svg"]) == 0
    assert capsys.readouterr().out == "both.html\nboth.svg\n"
    svg = (tmp_path / "both.svg").read_text()
    assert svg.startswith("<?xml")
    assert "http" not in re.sub(r'xmlns\S*="[^"]*"|<!DOCTYPE[^>]*>|<metadata>.*?</metadata>', "", svg, flags=re.DOTALL)


def test_a_picture_has_a_scale_of_staleness_where_messages_are_stale_and_its_name_fits_beside_two_lanes(
    tmp_path, monkeypatch
):
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


def test_what_the_page_is_made_of_is_installed_with_the_package():
    there = {path.name for path in (ROOT / "common" / "timeline").iterdir() if path.is_file() and path.suffix != ".py"}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["distsgd.common.timeline"]
    assert there == {"page.html", "page.css", *page.SCRIPTS}
    assert all(any(Path(name).match(pattern) for pattern in patterns) for name in there)


# In a browser.


@pytest.fixture(scope="module")
def browser():
    if COMMAND is None:
        pytest.skip("there is no Chromium")
    try:
        started = Browser()
    except CannotStart as error:
        pytest.skip(f"{COMMAND} does not start here: {error}")
    with started as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    few = [read_lanes(many(folder / name, 8, 12, waits)) for name, waits in (("sync", True), ("async", False))]
    (folder / "few.html").write_text(page.page(few))
    large = read_lanes(many(folder / "large", 1000, 50, waits=False))
    (folder / "large.html").write_text(page.page([large]))
    (folder / "old.html").write_text(page.page([read_lanes(save(folder / "old", rounds=()))]))
    return folder


@pytest.fixture
def opened(browser, pages):
    """Opens a page; in the end it has complained of nothing, and asked nobody for anything."""

    def open_(name):
        browser.open(pages / name)
        return browser

    yield open_
    assert browser.complaints == []


def place(browser, panel, time, y):
    """Where a moment of a run is on the screen, at a height of its canvas."""
    return browser.get(
        f"(() => {{ const p = panels[{panel}], b = p.canvas.getBoundingClientRect();"
        f"return [b.x + p.x({time}), b.y + {y}] }})()"
    )


def lane(browser, panel, worker):
    return browser.get(f"panels[{panel}].y({worker}) + panels[{panel}].lane / 2")


def inks(browser, panel):
    """How many colours there are in the drawing."""
    return browser.get(
        f"(() => {{ const {{ canvas }} = panels[{panel}], copy = new OffscreenCanvas(canvas.width, canvas.height);"
        "const context = copy.getContext('2d', { willReadFrequently: true });"
        "context.drawImage(canvas, 0, 0);"
        "const pixels = context.getImageData(0, 0, copy.width, copy.height);"
        "return new Set(new Uint32Array(pixels.data.buffer)).size })()"
    )


def test_two_runs_are_drawn_above_each_other_under_one_scale_of_time(opened):
    browser = opened("few.html")
    assert browser.get("document.title") == "Timeline: sync_sgd and async_sgd"
    assert browser.get("[...document.querySelectorAll('h2')].map(h => h.textContent)") == ["sync_sgd", "async_sgd"]
    boxes = browser.get("panels.map(p => p.canvas.getBoundingClientRect().toJSON())")
    assert boxes[0]["bottom"] < boxes[1]["top"]
    assert boxes[0]["left"] == boxes[1]["left"]
    assert browser.get("panels[0].x(100000) === panels[1].x(100000)")
    assert all(inks(browser, panel) > 20 for panel in (0, 1))
    text = browser.get("document.getElementById('legend').innerText")
    assert all(word in text for word in ("staleness", "push, pull", "wait", "reply"))
    assert browser.get("document.documentElement.scrollHeight <= innerHeight")


def test_the_pointer_shows_what_happened_where_it_is(opened):
    browser = opened("few.html")
    begun = 2 * (10_000 + 40 * 3 + 2_000)  # of round 2 of worker 3
    browser.mouse("mouseMoved", *place(browser, 1, begun + 5_000, lane(browser, 1, 3)))
    tip = browser.get("document.getElementById('tip').innerText")
    run = read_lanes(Path(browser.get("runs[1].name")))
    row = np.flatnonzero((run.columns["worker"] == 3) & (run.columns["round"] == 2))[0]
    version, staleness = (int(run.columns[name][row]) for name in ("version", "staleness"))
    assert tip.splitlines()[0] == "worker 3, round 2: exchange"
    told = dict(re.findall(r"^(\D+?)\t(.+)$", tip, re.MULTILINE))
    assert told == {
        "read version": str(version - staleness),
        "arrived at version": str(version),
        "staleness": str(staleness),
        "compute": "10.1 ms",
        "push": "1.00 ms",
        "pull": "1.00 ms",
        "from": "24.2 ms",
        "to": "36.4 ms",
    }
    # The same message on the lane of the ps, in the other run, and nothing beside the lanes.
    browser.mouse("mouseMoved", *place(browser, 1, begun + 11_120, 25))
    assert browser.get("document.querySelector('#tip b').textContent") == "worker 3, round 2: exchange"
    browser.mouse("mouseMoved", *place(browser, 0, 25_000, lane(browser, 0, 0)))
    tip = browser.get("document.getElementById('tip').innerText")
    assert "worker 0, round 0" in tip
    assert "wait\t20.3 ms" in tip
    assert browser.get("panels.map(p => p.chosen >= 0)") == [True, False]
    browser.mouse("mouseMoved", 5, 5)
    assert browser.get("document.getElementById('tip').hidden")


def test_the_slider_moves_the_time_and_the_words_beside_it(opened):
    browser = opened("few.html")
    told = "[...document.querySelectorAll('p.now')].map(p => p.textContent)"
    assert browser.get(told)[0] == "96 messages  ·  version 11"
    browser.get(
        "(() => { const t = document.getElementById('time'); t.value = 0; t.dispatchEvent(new Event('input')) })()"
    )
    browser.settle()
    assert browser.get(told)[0] == "0 messages  ·  version 0  ·  compute 8"
    x, y = place(browser, 0, 20_000, lane(browser, 0, 0))
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="left", clickCount=1)
    assert browser.get("Math.abs(view.cursor - 20000) < (view.to - view.from) / 500")
    assert browser.get(told)[0] == "7 messages  ·  version 0  ·  compute 1  ·  wait 7"
    assert browser.get("document.getElementById('clock').textContent") in ("20 ms", "20.0 ms")
    assert 0 < browser.get("Number(document.getElementById('time').value)") < 1000


def test_it_plays_to_the_end_and_begins_anew(opened):
    browser = opened("few.html")
    browser.get("document.getElementById('speed').value = '10'")
    browser.click("#play")
    assert browser.get("playing !== null && view.cursor < whole")
    before = browser.get("view.cursor")
    browser.get(
        f"new Promise(done => {{ const wait = () => view.cursor > {before} ? done(0) : setTimeout(wait, 5); wait() }})"
    )
    browser.click("#play")
    assert browser.get("playing === null && view.cursor < whole")
    browser.click("#play")
    browser.get("new Promise(done => { const wait = () => playing === null ? done(0) : setTimeout(wait, 5); wait() })")
    assert browser.get("view.cursor === whole")
    assert browser.get("document.getElementById('play').innerText").endswith("play")


def test_wheel_keys_and_buttons_zoom_and_the_mouse_moves(opened):
    browser = opened("few.html")
    x, y = place(browser, 0, 100_000, lane(browser, 0, 2))
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-600)
    assert browser.get("view.to - view.from < whole * 0.45")
    assert abs(place(browser, 0, 100_000, 0)[0] - x) < 1.5  # what the pointer is on stays there
    assert browser.get("panels[0].x(100000) === panels[1].x(100000)")
    browser.drag(x, y, x - 100)
    assert abs(place(browser, 0, 100_000, 0)[0] - (x - 100)) < 1.5
    browser.click("#few")
    assert browser.get("view.to - view.from") == pytest.approx(6 * 32_320, rel=0.01)
    browser.get("document.activeElement.blur()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="0", text="0")
    browser.settle()
    assert browser.get("[view.from, view.to - whole]") == [0, 0]
    browser.click("#in")
    assert browser.get("(view.to - view.from) / whole") == pytest.approx(1 / 1.5)


@pytest.mark.slow
def test_a_thousand_workers_are_drawn_as_shares_and_scroll(opened):
    browser = opened("large.html")
    assert browser.get("panels[0].many > DETAILED && panels[0].scrolls")
    assert inks(browser, 0) > 50
    assert browser.get("panels[0].seen[0]") == 0
    browser.get("panels[0].box.scrollTop = 1e6")
    browser.settle()
    assert browser.get("panels[0].seen[1]") == 1000
    browser.mouse("mouseMoved", *place(browser, 0, 40_000, lane(browser, 0, 999)))
    assert browser.get("document.querySelector('#tip b').textContent") == "worker 999, round 0: exchange"
    for _ in range(12):
        browser.click("#lower")
    assert browser.get("panels[0].seen") == [0, 1000]  # all of them, several in a row of pixels
    assert inks(browser, 0) > 20


def test_a_drawing_fits_its_place_when_that_changes(opened):
    browser = opened("few.html")
    fits = "panels.map(p => p.height === p.box.clientHeight && p.width === p.box.clientWidth && p.height > 100)"
    assert browser.get(fits) == [True, True]
    browser.get("panels[0].words.style.flexBasis = '100%'")  # the words above take another line
    browser.settle()
    assert browser.get(fits) == [True, True]
    browser.resize(900, 700)
    browser.settle()
    assert browser.get(fits) == [True, True]
    browser.resize(1400, 800)


def test_a_run_without_rounds_is_shown_with_a_word_on_what_is_missing(opened):
    browser = opened("old.html")
    assert "There is no rounds.npz" in browser.get("document.querySelector('p.note').textContent")
    browser.mouse("mouseMoved", *place(browser, 0, 1_800, lane(browser, 0, 1)))
    tip = browser.get("document.getElementById('tip').innerText")
    assert tip.startswith("worker 1, round 1: dropped")
    assert "round\t500 µs" in tip
