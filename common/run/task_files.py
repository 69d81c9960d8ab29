"""What a task keeps of the run in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..record.event_log import EventLog
from ..record.stamp_file import StampWriter, stamp_file
from ..record.tensorboard import Summaries

KEEP = 1 << 19  # events that stay in the file where the record is off, so that a restoration can go back exactly


@dataclass(frozen=True)
class TaskFiles:
    """The folder of a task, and what is kept there.

    Attributes:
        folder: that of the run; on several machines, that of this task.
        every_round: keep every round, and not only what they add up to.
        tensorboard: write summaries of the center, too.
    """

    folder: Path
    every_round: bool
    tensorboard: bool

    def event_log(self, workers: int) -> EventLog:
        """The events of that number of workers."""
        return EventLog(self.folder, workers, None if self.every_round else KEEP)

    def stamps(self, worker: int, exchange_first: bool) -> StampWriter:
        """The moments of the rounds of a worker, which may begin with the exchange."""
        return StampWriter(stamp_file(self.folder, worker) if self.every_round else None, exchange_first)

    def summaries(self) -> Summaries | None:
        """For TensorBoard, if they are wanted."""
        return Summaries(self.folder / "tb") if self.tensorboard else None
