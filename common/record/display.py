"""The display of a run while it runs: on a terminal, in a notebook, or as plain lines."""

from __future__ import annotations

import contextlib
import contextvars
import html
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..cluster.task_spec import TaskSpec
from ..files import own_folder, standard_error_to, writing
from .metrics import shown
from .plot import task_of

LINE_SECONDS = 2.0  # between two plain lines, at first

SILENT_SECONDS = 10.0  # before the first evaluation: longest time between two lines, which then show the tasks' states

PATIENCE = 10  # the next plain line comes when the run has lasted longer by 1/10

LONGEST_SECONDS = 60.0  # between two plain lines, at last

BAR_COLUMNS = 40

NAMES = 4  # tasks of one state that are named; the others are counted

SETTLE_SECONDS = 0.2  # reports closer than that give no rate

RATE_SECONDS = 30.0  # window of a rate

TOLD = {
    "restarted": "{task} is started again ({reason})",
    "not_restarted": "{task} is not started again ({reason})",
    "evicted": "the run continues without worker {worker}",
    "resumed": "the run resumes from version {version}",
    "restored": "the state of version {version} has been restored",
    "left_out": "{number:,} messages of worker {worker} were not finite, and were left out",
    "refused": "a message of worker {worker} was refused: it is not finite",
    "warning": "{message}",
    "limits": "{message}",
    "printed": "{text}",
    "interrupted": "{signal}: the run ends, and keeps its center (a second signal ends it at once)",
    "leaving": "{signal}: this program leaves the run, and keeps the center (a second signal ends it at once)",
}

MINUTES_SECONDS = 600  # from that duration on the format is 10:00

REFRESH_SECONDS = 0.5  # between two updates of the line

NOTES = 5  # most lines that stay, such as warnings; the newest are kept

UNWRITABLE = (OSError, ValueError)  # raised by a stream on a full disk, of a terminal that is gone, or closed

LINE = '<pre style="white-space:pre-wrap;margin:0">{}</pre>'


def in_notebook() -> bool:
    """Return True in a Jupyter kernel, which shows published output; False in IPython on a terminal."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")


class NotebookLine:
    """A line below the cell, rewritten by a thread of its own, and above it notes that stay.

    Args:
        text: function that returns the current line.
    """

    def __init__(self, text: Callable[[], str]):
        self.text = text
        self.notes: list[str] = []
        self._context = contextvars.copy_context()  # publishes below this cell, from any thread
        self._handle: Any = None
        self._showing, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> NotebookLine:
        self.show()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.show()

    def note(self, text: str) -> None:
        """Add a line that stays."""
        self.notes = [*self.notes, text][-NOTES:]
        self.show()

    def show(self) -> None:
        """Publish the notes and the current line."""
        text = "\n".join([*self.notes, self.text()])
        with self._showing:
            self._context.run(self._publish, {"text/plain": text, "text/html": LINE.format(html.escape(text))})

    def _publish(self, data: dict[str, str]) -> None:
        from IPython.display import DisplayHandle

        if self._handle is None:
            self._handle = DisplayHandle()
            self._handle.display(data, raw=True)
        else:
            self._handle.update(data, raw=True)

    def _refresh(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            self.show()


@contextlib.contextmanager
def native_output(file: Path) -> Iterator[None]:
    """Redirect the standard error of native code in this process to a file while the context is open.

    Raises:
        CannotWrite: the file cannot be written.
    """
    with writing(file):
        own_folder(file.parent)
    with standard_error_to(file):
        yield


class Display:
    """A live display on a terminal, a line that is rewritten in a notebook, a plain line now and then elsewhere.

    A thread redraws it; an event only changes the values to draw.

    Args:
        config: the configuration of the run.
        console: where to draw; by default standard error.
        planned: the devices that the workers will have.
    """

    def __init__(self, config: dict[str, Any], console: Console | None = None, planned: str = ""):
        self.config, self.console, self.planned = config, console or Console(stderr=True), planned
        self.reporting = config["workers"]  # that report their devices here
        self.devices: dict[int, list[str]] = {}
        each = config.get("steps_per_worker", 0)  # unknown if a script decides when to leave
        self.total: int = sum(config.get("steps_of_workers", [each] * config["workers"]))
        self.center: dict[str, Any] = {}
        self.tasks: dict[str, str] = {}
        self.steps: dict[int, int] = {}
        self.losses: dict[int, float] = {}
        self.entered = self.printed = time.monotonic()
        self.reports: deque[tuple[float, int]] = deque(maxlen=1000)  # the latest: time, and steps of all workers
        self.notebook = NotebookLine(self.line) if console is None and in_notebook() else None
        self.live = self.notebook is not None or self.console.is_terminal
        self._changing = threading.Lock()
        self._live = Live(console=self.console, get_renderable=self.picture, refresh_per_second=4, transient=True)

    def __enter__(self) -> Display:
        self.entered = self.printed = time.monotonic()
        if self.notebook is not None:
            self.notebook.__enter__()
        elif self.live:
            with contextlib.suppress(*UNWRITABLE):
                self._live.start(refresh=True)
        else:
            self.say(f"{self.headline()}; starting TensorFlow ...")
        return self

    def __exit__(self, *_: object) -> None:
        if self.notebook is not None:
            self.notebook.__exit__()
        elif self.live:
            with contextlib.suppress(*UNWRITABLE):
                self._live.stop()

    def on_event(self, event: dict[str, Any]) -> None:
        """Update the values to draw, or print a line."""
        kind = event["event"]
        if kind == "network":
            self._network(event["state"])
        elif kind == "devices":
            self._devices(event)
        elif kind in TOLD:
            self.say(TOLD[kind].format_map(event))
        with self._changing:
            self._take(kind, event)
        if not self.live and (self.center or self.tasks) and time.monotonic() - self.printed > self._pause():
            self.printed = time.monotonic()
            self.say(self.told() if self.center else f"{', '.join(self.progress())}; {self.states()}")

    def _take(self, kind: str, event: dict[str, Any]) -> None:
        task = event.get("task") or (f"worker-{event['worker']}" if "worker" in event else None)
        if kind == "started":
            self.tasks = {name: self.tasks.get(name, "starting") for name in event["pids"]}
        elif kind == "worker":
            self.steps[event["worker"]] = event["steps"]
            if "loss" in event:
                self.losses[event["worker"]] = event["loss"]
            self.reports.append((time.monotonic(), sum(self.steps.values())))
            while self.reports[0][0] < self.reports[-1][0] - RATE_SECONDS:
                self.reports.popleft()
        elif kind == "center":
            self.center = event
        if task is not None and kind != "beat":
            states = {"exit": "ended", "error": "failed", "ready": "ready", "listening": "serving"}
            self.tasks[task] = states.get(kind, "running")

    def task(self, task: TaskSpec, wait_seconds: float) -> None:
        """Print the start of one task of several machines; the evaluator also prints which machine has which task."""
        self.reporting = 1
        if task.origin and task.evaluates:
            self.say(task.origin)
        others = len(task.all_tasks()) - len(task.tasks())
        address = task.addresses.of(task.job, task.index)
        listens = f"listens on all interfaces, port {address.rpartition(':')[2]}, open to any program that can reach it"
        self.say(
            f"{task.job} {task.index} {listens if address else 'does not listen'}; "
            f"waits up to {wait_seconds:g} s for {others} other tasks."
        )

    def _network(self, state: str) -> None:
        if state.startswith("refused"):
            self.say(
                f"No private network ({state.removeprefix('refused: ')}): "
                "the ports of this run are open to any program that can reach this machine."
            )

    def _devices(self, event: dict[str, Any]) -> None:
        """Print the devices of the workers when all are known, if there are other ones than CPUs."""
        before = dict(self.devices)
        self.devices[event["worker"]] = event["devices"]
        if len(before) < len(self.devices) == self.reporting and any(d != ["CPU"] for d in self.devices.values()):
            self.say(on_devices(self.devices))

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self.notebook is not None:
            return self.notebook.note(text)
        with contextlib.suppress(*UNWRITABLE):
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def headline(self) -> str:
        """Return algorithm, data set, model and tasks in one line."""
        config = self.config
        tasks = f"{config['ps']} ps + {config['workers']} workers" if config["ps"] else f"workers: {config['workers']}"
        devices = f" on {self.planned}" if self.planned else ""
        return f"{config['algorithm']} on {task_of(config)} ({tasks}{devices})"

    def _pause(self) -> float:
        """Return the seconds between two plain lines, which are longer in longer runs."""
        pause = LINE_SECONDS if self.center else SILENT_SECONDS
        return min(LONGEST_SECONDS, max(pause, (time.monotonic() - self.entered) / PATIENCE))

    def _rate(self) -> float | None:
        """Return the recent steps per second of all workers; None with too few reports."""
        if not self.reports:
            return None
        (before, first), (after, last) = self.reports[0], self.reports[-1]
        return (last - first) / (after - before) if after - before > SETTLE_SECONDS and last > first else None

    @property
    def done(self) -> int:
        """Local steps so far, of `total`."""
        return sum(self.steps.values())

    def progress(self) -> list[str]:
        """Return the steps so far, the time elapsed, and the time left if a rate is known."""
        now, done = time.monotonic(), self.done
        of_all = f" of {self.total:,}" if self.total else ""
        found = [f"step {done:,}{of_all}", f"{clock(now - self.entered)} elapsed"]
        if self.total and (rate := self._rate()):
            found.append(f"{clock((self.total - done) / rate)} left")
        return found

    def figures(self) -> dict[str, str]:
        """Return the figures to show, by name."""
        center = self.center
        found: dict[str, str] = {"version": f"{center.get('version', 0):,}"}
        if rate := self._rate():
            batch = self.config.get("batch_size")
            found["examples/s" if batch else "steps/s"] = f"{rate * (batch or 1):,.0f}"
        if self.losses:
            found["loss"] = f"{sum(self.losses.values()) / len(self.losses):.4f}"
        for name, value in center.items():
            if name.startswith("test_"):
                found[name.replace("_", " ")] = shown(value)
        if "staleness_mean" in center:
            found["staleness"] = f"{center['staleness_mean']:.2f} (max {center['staleness_max']})"
        return found

    def told(self) -> str:
        """Return progress and figures in one line."""
        return "  ".join([", ".join(self.progress()), *(f"{k} {v}" for k, v in self.figures().items())])

    def line(self) -> str:
        """Return the line of a notebook."""
        with self._changing:
            return f"{self.headline()}: {self.told() if self.tasks or self.done else 'starting TensorFlow ...'}"

    def picture(self) -> RenderableType:
        """Return the live display at this moment, at any width of the terminal."""
        with self._changing:
            tasks = self.states() or "starting TensorFlow ..."
            done, progress, figures = self.done, self.progress(), self.figures()
        bar = ProgressBar(total=self.total or None, completed=done, width=min(BAR_COLUMNS, self.console.width - 6))
        line = Table.grid(padding=(0, 1))
        line.add_row(bar, f"{min(1.0, done / self.total):4.0%}" if self.total else "")
        return Group(
            Text(self.headline(), style="bold"),
            Text(tasks, style="dim"),
            line,
            _side_by_side([Text(text) for text in progress]),
            _side_by_side([Text.assemble((f"{name} ", "dim"), value) for name, value in figures.items()]),
        )

    def states(self) -> str:
        """Return the tasks by state, in one line."""
        names: dict[str, list[str]] = defaultdict(list)
        for task, state in self.tasks.items():
            names[state].append(task)
        return "; ".join(
            f"{state}: {', '.join(tasks[:NAMES])}" + (f" and {len(tasks) - NAMES} more" if len(tasks) > NAMES else "")
            for state, tasks in names.items()
        )


def on_devices(devices: dict[int, list[str]]) -> str:
    """Return the devices of workers in words: `workers 0, 2 on GPU 0 (NVIDIA H100); worker 1 on GPU 1 (...)`."""
    workers: dict[str, list[str]] = defaultdict(list)
    for worker, names in sorted(devices.items()):
        workers[" and ".join(names)].append(str(worker))
    return "; ".join(f"worker{'s' * (len(k) > 1)} {', '.join(k)} on {names}" for names, k in workers.items())


def _side_by_side(texts: list[Text]) -> Columns:
    """Lay out texts in as many lines as the width demands; no text is broken."""
    return Columns(texts, padding=(0, 2))


def clock(seconds: float) -> str:
    """Format a duration as 1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class SimulationDisplay(Display):
    """A `Display` whose bar counts the events of the first phase, then the local steps of the second."""

    def __init__(self, config: dict[str, Any], console: Console | None = None):
        self.phase = self.events = 0
        self.virtual_end: float | None = None
        self.phase_began = time.monotonic()
        super().__init__(config, console)
        self.steps_of_all = self.total

    @property
    def done(self) -> int:
        """Events of the first phase so far, or local steps of the second."""
        return min(self.events, self.total)

    def headline(self) -> str:
        """Return algorithm, data set, model and simulated tasks in one line."""
        return f"simulation: {super().headline()}"

    def states(self) -> str:
        """Return the phase of the simulation."""
        return ("", "phase 1 of 2: the order of the events", "phase 2 of 2: the arithmetic")[self.phase]

    def _take(self, kind: str, event: dict[str, Any]) -> None:
        if kind in ("ordering", "ordered"):
            self.phase, self.events, self.total = 1, event["events"], event.get("of", event["events"])
        elif kind == "center":
            if self.phase < 2:  # the evaluation at the beginning
                self.phase_began = time.monotonic()
            self.phase, self.center = 2, event
            self.losses = {0: event["loss"]} if "loss" in event else {}  # mean of all workers
            self.events, self.total = event["steps"], self.steps_of_all
        if kind == "ordered":
            self.virtual_end = event["virtual"]

    def on_event(self, event: dict[str, Any]) -> None:
        """Update the values to draw; print a line after the first phase."""
        super().on_event(event)
        if event["event"] == "ordered" and not self.live:
            took = f"{event['order_seconds']:.1f} s"
            self.say(f"order of {event['events']:,} events in {took}: {duration(event['virtual'])} of virtual time")

    def _network(self, state: str) -> None:
        """Ignore the network: a simulation sends nothing."""

    def _rate(self) -> float | None:
        """Return the local steps per second of virtual time; None if they are unknown."""
        seconds = self.center.get("virtual")
        return self.events / seconds if self.phase == 2 and seconds else None

    def progress(self) -> list[str]:
        """Return the progress of the run in virtual and in real time."""
        now, unit = time.monotonic(), ("event", "event", "step")[self.phase]
        found = [f"{unit} {self.done:,} of {self.total:,}"] if self.phase else []
        if self.virtual_end is not None:
            found.append(f"virtual {duration(self.center.get('virtual', 0))} of {duration(self.virtual_end)}")
        found.append(f"{clock(now - self.entered)} elapsed")
        if self.phase == 2 and 0 < self.done < self.total:
            found.append(f"{clock((now - self.phase_began) * (self.total - self.done) / self.done)} left")
        return found


def duration(seconds: float) -> str:
    """Format a duration as 12.3 s, or 12:34."""
    return clock(seconds) if seconds >= MINUTES_SECONDS else f"{seconds:.3g} s"
