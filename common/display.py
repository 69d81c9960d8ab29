"""What a run shows while it runs, and at its end."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .cluster import Place

LINE_SECONDS = 2.0  # between two plain lines
SETTLE_SECONDS = 0.2  # before a rate means something


TOLD = {
    "restarted": "{task} is started again ({reason})",
    "abandoned": "{task} is not started again ({reason})",
    "expelled": "the run goes on without worker {worker}",
    "resumed": "the run goes on from version {version}",
    "restored": "the state of version {version} has been restored",
    "refused": "a message of worker {worker} was refused: it is not finite",
    "warning": "{message}",
}


class Page(Console):
    """Prints what is read at leisure: `| head` may stop reading, which is no error."""

    def on_broken_pipe(self) -> None:
        """End the program; there is nobody to print for."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()
        raise SystemExit(0)


class Display:
    """One live display on a terminal or in a notebook, a plain line now and then elsewhere."""

    def __init__(self, config: dict[str, Any], console: Console | None = None):
        self.config, self.console = config, console or Console(stderr=True)
        self.center: dict[str, Any] = {}
        self.tasks: dict[str, str] = {}
        self.steps: dict[int, int] = {}
        self.losses: dict[int, float] = {}
        self.began: float | None = None
        self.printed = time.monotonic()
        self.live = self.console.is_terminal or self.console.is_jupyter
        self._live = Live(console=self.console, auto_refresh=False, transient=True)

    def __enter__(self) -> Display:
        if self.live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self._live.stop()

    def on_event(self, event: dict[str, Any]) -> None:
        """Show what an event changed."""
        kind = event["event"]
        task = event.get("task") or (f"worker-{event['worker']}" if "worker" in event else None)
        if kind == "network":
            self._network(event["state"])
        elif kind == "started":
            self.tasks = {name: self.tasks.get(name, "starting") for name in event["pids"]}
        elif kind == "worker":
            self.began = self.began or time.monotonic()
            self.steps[event["worker"]] = event["steps"]
            self.losses[event["worker"]] = event["loss"]
        elif kind == "center":
            self.center = event
        elif kind in TOLD:
            self.console.print(TOLD[kind].format_map(event), highlight=False, soft_wrap=True)
        if task is not None:
            states = {"exit": "ended", "error": "failed", "ready": "ready", "listening": "serving"}
            self.tasks[task] = states.get(kind, "running")
        if kind in ("worker", "center", "started", "exit", "error"):
            self._show()

    def place(self, place: Place, wait_seconds: float) -> None:
        """What one task of several machines says at its start; the one that evaluates, who has which place."""
        if place.origin and place.evaluates:
            self.console.print(place.origin, highlight=False, soft_wrap=True)
        others = len(place.all_tasks()) - len(place.tasks())
        address = place.addresses.of(place.job, place.index)
        listens = f"listens on all interfaces at port {address.rpartition(':')[2]}, open to whoever can reach it"
        self.console.print(
            f"{place.job} {place.index} {listens if address else 'does not listen'}; "
            f"waits up to {wait_seconds:g} s for {others} other tasks.",
            highlight=False,
            soft_wrap=True,
        )

    def _network(self, state: str) -> None:
        if state.startswith("refused"):
            self.console.print(
                f"No private network ({state.removeprefix('refused: ')}): "
                "the ports of this run are open to whoever can reach this machine."
            )

    def figures(self) -> dict[str, str]:
        """The numbers to show, by name."""
        center = self.center
        found: dict[str, str] = {"version": str(center.get("version", 0))}
        if self.began and (elapsed := time.monotonic() - self.began) > SETTLE_SECONDS:
            found["examples/s"] = f"{sum(self.steps.values()) * self.config['batch_size'] / elapsed:,.0f}"
        if self.losses:
            found["loss"] = f"{sum(self.losses.values()) / len(self.losses):.4f}"
        for name, value in center.items():
            if name.startswith("test_"):
                found[name.replace("_", " ")] = f"{value:.4f}"
        if "staleness_mean" in center:
            found["staleness"] = f"{center['staleness_mean']:.2f} (max {center['staleness_max']})"
        return found

    def _show(self) -> None:
        figures = self.figures()
        if self.live:
            table = Table(box=None, pad_edge=False)
            for name in figures:
                table.add_column(name, justify="right")
            table.add_row(*figures.values())
            shown = list(self.tasks.items())
            states = "  ".join(f"{task} {state}" for task, state in shown[:12])
            more = f"  ... and {len(shown) - 12} more" if len(shown) > 12 else ""
            self._live.update(Group(Text(states + more, style="dim"), table), refresh=True)
        elif self.center and time.monotonic() - self.printed > LINE_SECONDS:
            self.printed = time.monotonic()
            self.console.print("  ".join(f"{k} {v}" for k, v in figures.items()), highlight=False)


def summary(result: dict[str, Any]) -> Table:
    """The result of a run as a table."""
    table = Table(title=f"{result['algorithm']}: {result['outcome']}", show_header=False, title_justify="left")
    stale = result["staleness"]
    rows = {
        "test accuracy": _format(result["test_accuracy"], ".4f"),
        "test loss": _format(result["test_loss"], ".4f"),
        "examples/s": _format(result["examples_per_second"], ",.0f"),
        "updates": _format(result["updates"], ",d"),
        "staleness": f"mean {_format(stale['mean'], '.2f')}, max {_format(stale['max'], 'd')}",
        "dropped": _format(result["dropped"], ",d") if result["dropped"] else None,
        "pushed / pulled": f"{_bytes(result['bytes_pushed'])} / {_bytes(result['bytes_pulled'])}",
        "seconds": f"{_format(result['seconds_training'], '.1f')} training, "
        f"{_format(result['seconds_total'], '.1f')} in all",
        "run": result["run_dir"],
        "plot": f"{result['run_dir']}/plot.png",
    }
    for name, value in rows.items():
        if value is not None:
            table.add_row(name, value)
    return table


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
