"""What a run shows while it runs."""

import io
import re
import threading

import pytest
from rich.console import Console

from distsgd.common.record import display
from distsgd.common.record.display import Display, clock

CONFIG = {
    "algorithm": "downpour", "dataset": "digits", "model": "mlp", "ps": 1, "workers": 2, "batch_size": 32,
    "steps_per_worker": 22_000,
}  # fmt: skip
EVENTS = [
    {"event": "started", "pids": {"ps-0": 1, "worker-0": 2, "worker-1": 3, "evaluator-0": 4}},
    {"event": "listening", "task": "ps-0"},
    {"event": "worker", "worker": 0, "steps": 1000, "loss": 0.25},
    {"event": "worker", "worker": 1, "steps": 1000, "loss": 0.75},
    {"event": "worker", "worker": 0, "steps": 6000, "loss": 0.25},
    {"event": "worker", "worker": 1, "steps": 5000, "loss": 0.25},
    {
        "event": "center", "version": 2100, "test_loss": 0.12345, "test_accuracy": 0.9876,
        "staleness_mean": 1.0, "staleness_max": 7,
    },
]  # fmt: skip


@pytest.fixture
def now(monkeypatch):
    """A clock that is set by hand."""
    time = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: time[0])
    return time


def shown(now, **options):
    """What a display has after a minute: itself and its console's file."""
    file = io.StringIO()
    there = Display(CONFIG, Console(file=file, **options))
    for event in EVENTS:
        now[0] += 10
        there.on_event(event)
    return there, file


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_display_has_all_figures_at_any_width(now, width):
    there, file = shown(now, width=width, force_terminal=True, color_system=None)
    there.console.print(there.picture())
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= (13 if width == 40 else 6)
    assert "…" not in file.getvalue()
    for figure in (
        "25%",
        "step 11,000 of 44,000", "1:10 elapsed", "1:39 left", "version 2,100", "loss 0.2500", "examples/s 10,667",
        "test accuracy 0.9876", "test loss 0.1235", "staleness 1.00 (max 7)", "serving: ps-0",
    ):  # fmt: skip
        assert figure in file.getvalue(), figure


def test_the_display_shows_the_start_before_any_event(now):
    there = Display(CONFIG, Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None))
    there.console.print(there.picture())
    text = there.console.file.getvalue()
    assert "downpour on digits, mlp (1 ps + 2 workers)" in text
    assert "starting TensorFlow" in text
    assert "step 0 of 44,000" in text


def test_without_a_terminal_the_display_prints_few_lines(now):
    file = io.StringIO()
    with Display(CONFIG, Console(file=file, width=80)) as there:
        assert file.getvalue() == "downpour on digits, mlp (1 ps + 2 workers); starting TensorFlow ...\n"
        for _ in range(3600):
            now[0] += 1
            there.on_event(EVENTS[-1])
    lines = file.getvalue().splitlines()[1:]
    assert 60 <= len(lines) <= 120
    assert re.match(r"step 0 of 44,000, 0:03 elapsed  version 2,100  test loss 0.1235", lines[0])


def test_a_long_start_shows_the_state_of_each_task_before_any_evaluation(now):
    file = io.StringIO()
    there = Display(CONFIG, Console(file=file, width=80))
    for event in (
        EVENTS[0],
        EVENTS[1],
        {"event": "ready", "task": "worker-0"},
        *[{"event": "beat", "task": "worker-1"}] * 60,
    ):
        there.on_event(event)
        now[0] += 1
    lines = file.getvalue().splitlines()
    assert 3 <= len(lines) <= 6
    assert re.match(
        r"step 0 of 44,000, 0:1\d elapsed; serving: ps-0; ready: worker-0; starting: worker-1, ev", lines[0]
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_warnings_stay_on_the_screen_in_one_line_as_they_are(now, terminal):
    there, file = shown(now, width=40, force_terminal=terminal, color_system=None)
    message = "a callback [of mine] is slow, so that it misses events of the run"
    there.on_event({"event": "warning", "message": message})
    assert message + "\n" in file.getvalue()


def test_many_tasks_are_counted_not_listed(now):
    there, file = shown(now, width=80, force_terminal=True, color_system=None)
    there.on_event({"event": "started", "pids": {f"worker-{k}": k for k in range(64)}})
    there.console.print(there.picture())
    assert "and 58 more" in file.getvalue()


def test_the_display_draws_itself_while_events_come(now):
    """In its own thread: tasks may come and go meanwhile."""
    there, _ = shown(now, width=80, force_terminal=True, color_system=None)
    done = threading.Event()
    failed = []

    def draw():
        try:
            while not done.is_set():
                there.picture()
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    for k in range(2000):
        there.on_event({"event": "ready", "task": f"worker-{k}"})
    done.set()
    thread.join()
    assert not failed


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3723, "1:02:03")])
def test_clock(seconds, text):
    assert clock(seconds) == text
