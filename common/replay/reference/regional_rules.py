"""The schemes with two levels of servers: one in each region, and a global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .gradients import Gradient
from .inner_steps import InnerStep, Period, State, inner_window, length_at, sgd_step
from .outer_rules import DelayedNesterov
from .sending import Send, as_it_is

# Keyword arguments of `halos` that are named like its hyperparameters.
RATES = (
    *("regional_servers", "regional_learning_rate", "regional_momentum", "regional_buffer"),
    *("global_learning_rate", "global_momentum", "global_buffer"),
    *("moves_per_merge", "merge_share", "merge_delay"),
)


def delayed_server(start: np.ndarray, epsilon: float, beta: float, size: int) -> DelayedNesterov:
    """Return a server whose plain steps are θ ← θ − ε g: its authors divide the momentum by N, and not the step."""
    return DelayedNesterov(start, epsilon * size, beta, size)


class RegionalServer:
    """A server of HALoS in a region; the calls may be any time apart.

    step(g)     θ_r ← DelayedNesterov(θ_r, g), and after K of them since the last merge: send p_r − θ_r
    merge(Θ)    θ_r ← (1 − α) θ_r + α Θ;  p_r ← θ_r

    Args:
        server: the server that makes the steps.
        every: K.
        share: α, the weight of the global model.

    Attributes:
        since: number of steps since the last merge.
        merged: p_r, the model after the last merge.
    """

    def __init__(self, server: DelayedNesterov, every: int, share: float):
        self.server, self.every, self.share = server, every, share
        self.since, self.merged = 0, server.theta

    def step(self, g: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Execute the step with a worker's move; return θ_r, and the message to the global server if there is one."""
        theta = self.server.step(g)
        self.since += 1
        return theta, self.merged - theta if self.since == self.every else None

    def merge(self, theta: np.ndarray) -> None:
        """Merge the reply of the global server."""
        self.server.theta = self.merged = (1 - self.share) * self.server.theta + self.share * theta
        self.since = 0


def halos(
    start: np.ndarray,
    gradient: Gradient,
    order: Sequence[int],
    workers: int,
    *,
    eta: float,
    regional_servers: int,
    regional_learning_rate: float,
    regional_momentum: float,
    regional_buffer: int,
    global_learning_rate: float,
    global_momentum: float,
    global_buffer: int,
    moves_per_merge: int,
    merge_share: float,
    merge_delay: int,
    period: Period,
    steps: int,
    between: Mapping[int, Sequence[tuple[str, int]]] | None = None,
    inner: InnerStep = sgd_step,
    send: Send = as_it_is,
) -> list[np.ndarray]:
    """Execute Algorithm 1 of the paper, with worker k in region k mod R: returns Θ after each message of a worker.

    Worker: H inner steps from the θ_r that it pulled, whose optimizer keeps its state; send θ_r as pulled − x,
    and continue from θ_r. A message of a region reaches the global server at once, Θ ← DelayedNesterov(Θ, p_r − θ_r);
    its reply is merged D steps of the region later. ~k in `order` is a lost worker k that starts anew from Θ.

    If messages between servers take time, `between` has those that arrive after so many events of `order`: "up" and r
    for that of region r at the global server, "down" and r for the reply that the region merges.
    """
    top = delayed_server(start, global_learning_rate, global_momentum, global_buffer)
    regions = [
        RegionalServer(
            delayed_server(start, regional_learning_rate, regional_momentum, regional_buffer),
            moves_per_merge,
            merge_share,
        )
        for _ in range(regional_servers)
    ]
    sent, replies = [start] * regional_servers, [start] * regional_servers  # the messages between servers
    path, pulled, t = [], [start] * workers, [0] * workers
    states: list[State] = [{} for _ in range(workers)]

    def arrives(event: str, r: int) -> None:
        if event == "up":
            replies[r] = top.step(sent[r])
        else:
            regions[r].merge(replies[r])

    for i, k in enumerate(order, 1):
        if k < 0:
            pulled[~k] = top.theta
        else:
            r, length = k % regional_servers, length_at(period, t[k], steps)
            x = inner_window(pulled[k], states[k], gradient, k, t[k], length, eta, inner)
            t[k] += length
            pulled[k], news = regions[r].step(send(pulled[k] - x, k))
            sent[r] = sent[r] if news is None else news
            if between is None:
                if news is not None:
                    arrives("up", r)
                if regions[r].since == moves_per_merge + merge_delay:
                    arrives("down", r)
            path.append(top.theta)
        for event, r in (between or {}).get(i, ()):
            arrives(event, r)
            path[-1] = top.theta
    return path
