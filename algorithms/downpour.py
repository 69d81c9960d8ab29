"""DOWNPOUR SGD: workers take local steps and push the sums of their gradients; the server applies Adagrad.

    worker, each step       x ← x − η g_k(x),  A ← A + g
    every push period       push A,  A ← 0
    every pull period       x ← θ
    server, each push       S ← S + A²,  θ ← θ − γ A / √S                  one atomic event, elementwise

If both periods end at the same step, push and pull are one atomic event. The phase sets these steps; t is the number of
steps done:

    window      push if t is a multiple of the push period, pull if it is a multiple of the pull period
    dean        the paper's loop: if t is a multiple, pull before step t + 1, push after it; so the first push has one
                gradient, and with equal periods above one a pull replaces steps that are not yet pushed

Use: for workers of different speed with slow links; not for very long runs, in which Adagrad's steps become small.
Reference: Dean et al., *Large Scale Distributed Deep Networks*, NIPS 2012.
Departures: by default push and pull end a window together, as in most implementations (the paper: phase `dean`). A
worker waits for its pull. S starts at `initial_accumulator`, as in TensorFlow; the paper starts at zero.
Limits: with periods of one it is `async_sgd` with Adagrad on the server; `downpour_easy` has plain SGD there. With a
warm start longer than the run worker 0 trains to its end alone, and then the others train.
"""

from dataclasses import dataclass
from typing import Literal

from ..common.contract import Async, Count, FixedPeriod, Kind, Natural, Positive, Rate, Scheme, adagrad, sgd, take
from ..common.contract.rounds import USUAL, Rounds


@dataclass(frozen=True, kw_only=True)
class Downpour(Scheme):
    """Sums of gradients over a period, Adagrad on the server."""

    paper = "Dean et al. 2012"
    elementwise = True

    communication_period: FixedPeriod = 5
    """Local steps between two exchanges."""
    push_period: Natural | None = None
    """Local steps between two pushes; the communication period by default."""
    pull_period: Natural | None = None
    """Local steps between two pulls; the communication period by default."""
    phase: Literal["window", "dean"] = "window"
    """Time of an exchange: at the end of a period, or as in the paper's loop."""
    learning_rate: Rate = 0.1
    """The worker's step size η."""
    server_learning_rate: Rate = 0.03
    """The server's step size γ (Adagrad)."""
    initial_accumulator: Positive = 0.1
    """Initial value of Adagrad's sum of squares."""
    warm_start: Count = 0
    """Number of updates that worker 0 makes alone before the others start."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Async(warm_start=self.warm_start)

    @property
    def period(self):
        return self.push_period or self.communication_period

    @property
    def kinds(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        together = self.phase == "window" and self.period == (self.pull_period or self.communication_period)
        return {"exchange": Kind()} if together else USUAL

    def rounds(self, steps, done=0, worker=0, seed=0):
        # The last round of a run always exchanges, so a resumed run begins with whole periods.
        return Rounds.repeating(self._rounds, steps, self.period, self.pull_period or self.communication_period)

    def _rounds(self, steps, last):
        pull_period, begun = self.pull_period or self.communication_period, 0
        for t in range(1, steps + 1):
            push = (t - (self.phase == "dean")) % self.period == 0
            pull = t % pull_period == 0
            end = last and t == steps
            if push or pull or end:
                yield t - begun, "exchange" if push == pull or end else "push" if push else "pull"
                begun = t

    def local_variables(self, params):
        return {"accumulated": 0 * params}

    def global_variables(self, center):
        return {"squares": 0 * center + self.initial_accumulator}

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, self.learning_rate)
        worker.accumulated.assign_add(gradient)

    def message(self, worker):
        return take(worker.accumulated)

    def server_update(self, server, message, staleness):
        adagrad(server.center, server.squares, message, self.server_learning_rate)
        return server.center
