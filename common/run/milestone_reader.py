"""The milestone reader: what the ps has set aside during a run, when it is over."""

from __future__ import annotations

import time
from collections.abc import Mapping

from .calls import ObserverCalls
from .center_path import Moment
from .figures import Figures
from .record_reader import RecordReader


class MilestoneReader:
    """Reads the centers that the ps has set aside, and what the run added up to then.

    Args:
        calls: of the evaluator.
        reader: of the record.
        figures: of the run.
        every: updates between two of them.
    """

    def __init__(self, calls: ObserverCalls, reader: RecordReader, figures: Figures, every: int):
        self.calls, self.reader, self.figures, self.every = calls, reader, figures, every

    def read(self, known: Mapping[int, float]) -> list[Moment]:
        """All that were passed.

        Args:
            known: other versions, also the last one, and when they were seen here: the others were passed between.
        """
        before, found = time.monotonic(), self.calls.milestones()
        ago = before - float(found["now"])  # from the clock of the ps to the one here, which saw `now` a little earlier
        rows = [i for i, passed in enumerate(found["passed"]) if passed > 0 and i * self.every <= max(known)]
        versions, tallies = [i * self.every for i in rows], []
        self.reader.give(lambda log: tallies.extend(log.tallies(versions)))
        moments = []
        for row, version, tally in zip(rows, versions, tallies, strict=True):
            when = max([found["passed"][row] + ago, *(when for other, when in known.items() if other < version)])
            when = min([when, *(when for other, when in known.items() if other > version)])
            figures = {"version": version, **self.figures.of(tally)}
            moments.append(Moment(float(when), figures, {"center": found["kept"][row], "state": found["states"][row]}))
        return moments
