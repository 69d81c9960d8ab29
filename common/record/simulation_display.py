"""The display of a simulated run: two phases, virtual time and real time."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from .display import Display, clock

MINUTES_SECONDS = 600  # from that duration on the format is 10:00


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
