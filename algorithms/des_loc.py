"""DES-LOC: local Adam steps, and means of the parameters and of both moments, each with a period of its own.

    worker, each step       x, m, v ← AdamW(x, m, v, g_k(x))
    every K steps           push x,  wait,  x ← θ
    every a K steps         push m,  wait,  m ← m̄
    every b K steps         push v,  wait,  v ← v̄
    server                  reply the mean of the vectors; that of the x is θ;  then release all workers

A message has one vector, so the three are averaged at different steps: m after the first third of every a-th period of
x, v after two thirds of every b-th. A moment changes slowly, the second most slowly, so that a and b may be large.

Use: for long periods with AdamW, where moments that never leave the worker (`diloco`, `local_sgd`) drift apart.
Reference: Iacob, Sani, Safaryan, Giampouras, Horváth, Jovanović, Kurmanji, Aleksandrov, Shen, Qiu, Lane, *DES-LOC:
Desynced Low Communication Adaptive Optimizers for Foundation Models*, ICLR 2026, arXiv:2505.22549, Algorithm 1.
Departures: the paper averages all that are due before the same step; here they are a third of a period apart. It clips
each coordinate of a gradient to a bound before the moments, from which its rule of half-lives follows; here only
`--clip-norm` exists, for the whole norm. Its experiments have ADOPT inside; here it is Adam, whose moments are
corrected for their start. An average of m or v counts as an update of the center, which it leaves as it is.
Limits: with a and b that are never reached it is `local_sgd` with AdamW; with one worker serial AdamW. With a = b = 1
it is nearly Local Adam (Cheng and Glasgow 2025), which averages all three vectors at one step: 1 + 1/a + 1/b vectors in
a period are half of that for the defaults. A worker that falls behind would send x where others send m: restarts and
dropped messages are refused; so are codecs, whose memory would mix the vectors. The last message of a run has x unless
the run ends at a step of m or v, or a script leaves shortly before: choose a multiple of the period.
Defaults: a = 3 and b = 6, as the paper recommends; a moment should not be older than its half-life, ln ½ / ln β steps.
"""

import math
from dataclasses import dataclass

from ..common.contract import Barrier, Kind, Rounds, Scheme, UserError, adamw, tf
from ..common.contract.hyperparameters import Decay, FixedPeriod, Natural, Rate, WeightDecay


@dataclass(frozen=True, kw_only=True)
class DESLOC(Scheme):
    """Local AdamW steps, and means of the parameters and, less often, of the moments."""

    paper = "Iacob et al. 2026"
    aliases = ("local_adam --first-moment-every 1 --second-moment-every 1",)
    sync = Barrier()
    sends = "params"
    kinds = dict.fromkeys(("parameters", "first_moment", "second_moment"), Kind())
    scalars = ("parameters",)

    communication_period: FixedPeriod = 10
    """Local steps K between two averages of the parameters; at least 3."""
    first_moment_every: Natural = 3
    """Periods a between two averages of the first moment."""
    second_moment_every: Natural = 6
    """Periods b between two averages of the second moment."""
    learning_rate: Rate = 0.002
    """Step size η."""
    beta_1: Decay = 0.9
    """Decay of the first moment."""
    beta_2: Decay = 0.999
    """Decay of the second moment."""
    weight_decay: WeightDecay = 0.01
    """Weight decay λ of a local step."""

    def check(self, workers):
        if self.communication_period < 3:
            got = f"Received: communication_period={self.communication_period}"
            raise UserError(f"communication_period must be at least 3, a step for each vector. {got}")

    def rounds(self, steps, done=0, worker=0, seed=0):
        cycle = self.communication_period * math.lcm(self.first_moment_every, self.second_moment_every)
        begun = done % cycle
        lead = min(steps, cycle - begun)  # a resumed run continues its cycle
        first = Rounds(((tuple(self._rounds(begun, begun + lead)), 1),))
        return first + Rounds.repeating(lambda length, last: self._rounds(0, length), steps - lead, cycle)

    def _rounds(self, begun, end):
        """Yield the rounds from step `begun` of a cycle to `end`, where the last one ends."""
        period, third = self.communication_period, self.communication_period // 3
        for n in range(1 + begun // period, 1 - (-end // period)):
            due = {third: "first_moment"} if n % self.first_moment_every == 0 else {}
            due |= {2 * third: "second_moment"} if n % self.second_moment_every == 0 else {}
            for place, kind in (due | {period: "parameters"}).items():
                step = (n - 1) * period + place
                if begun < min(step, end):
                    yield min(step, end) - begun, kind if step <= end else "parameters"
                    begun = min(step, end)

    def local_variables(self, params):
        return {"first_moment": 0 * params, "second_moment": 0 * params, "adam_steps": 0 * params[0]}

    def local_step(self, worker, gradient):
        moments = worker.first_moment, worker.second_moment, worker.adam_steps
        options = {name: getattr(self, name) for name in ("weight_decay", "beta_1", "beta_2")}
        adamw(worker.params, *moments, gradient, self.learning_rate, decayed=worker.decayed, **options)

    def message(self, worker):
        return self._averaged(worker).read_value(), {"parameters": float(worker.kind == "parameters")}

    def server_update(self, server, message, staleness):
        server.center.assign(tf.where(server.sent.parameters > 0.5, message, server.center))
        return message

    def on_reply(self, worker, reply):
        self._averaged(worker).assign(reply)

    def _averaged(self, worker):
        """Return the variable of which a round takes the mean."""
        return worker.params if worker.kind == "parameters" else getattr(worker, worker.kind)
