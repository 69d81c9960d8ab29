"""The files of a run in the folder of a task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..record.event_log import EventLog
from ..record.metrics import Summaries

KEEP = 1 << 19  # newest events that the file keeps with record=off, so that a restoration can go back exactly


@dataclass(frozen=True)
class TaskFiles:
    """The folder of a task, and its files.

    Attributes:
        folder: folder of the run; on several machines, of this task.
        every_round: record every round, and not only aggregate statistics.
        tensorboard: also write summaries of the center.
    """

    folder: Path
    every_round: bool
    tensorboard: bool

    def event_log(self, workers: int) -> EventLog:
        """Return the log of the events of that number of workers."""
        return EventLog(self.folder, workers, None if self.every_round else KEEP)

    def summaries(self) -> Summaries | None:
        """Return the writer of summaries for TensorBoard; None without `tensorboard`."""
        return Summaries(self.folder / "tb") if self.tensorboard else None
