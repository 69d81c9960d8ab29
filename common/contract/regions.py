"""Servers of regions, below a global one, as `Scheme.regions` declares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arguments import CheckedCall, at_least


@dataclass(frozen=True, kw_only=True)
class Regions(CheckedCall):
    """A server in each region: for its workers it is the server, and for the global server it is a worker.

    Worker k is in region k mod R. The `server_update` of the scheme is that of a region, with the region's model as
    `server.center`. The global server, whose model is the center of the run, has the scheme `above`. Its functions are
    called with a region as the worker: `worker.params` is the region's model, and `worker.index` its number.

        local_variables, global_variables    as of any scheme: the former on each region's server
        message                              when so many messages of workers, `every`, have come since the last merge
        server_update                        when that message has arrived at the global server
        on_reply                             the merge: `delay` further messages of workers later, or when the reply is
                                             there

    Attributes:
        number: number R of regions.
        every: messages of a region's workers between its last merge and its message.
        delay: the least number of messages of its workers between its message and the merge of the reply.
        above: the scheme of the global server and its workers, the regions.

    Raises:
        UserError: a number is not whole, or too small.
    """

    number: int
    every: int
    delay: int
    above: Any

    def __post_init__(self) -> None:
        at_least(1, number=self.number, every=self.every)
        at_least(0, delay=self.delay)
